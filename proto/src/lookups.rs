//! Gateways' and dashboards' messages to and from core types. Requests are borrowed, answers are moved; nothing is
//! judged here but the limits on prompts. Deadlines belong to the node, everything else to the index.

use crate::inferencecache as wire;
use bytes::Bytes;
use prefixd_index::{CacheState, LookupAnswer, LookupRequest, Prompt};

/// The request as the index asks it. More than `max_tokens` token ids count as a prompt that can't be tokenized; so
/// does every prompt text, since there is no tokenizer here. Either is looked at only when there is no hash.
pub fn request(message: &wire::LookupRouteRequest, max_tokens: usize) -> LookupRequest<'_, Bytes> {
    let too_many = message.token_ids.len() > max_tokens;
    let untokenized = too_many || message.token_ids.is_empty() && !message.prompt_text.is_empty();
    LookupRequest {
        tenant: &message.tenant_id,
        model: &message.model_id,
        scheme: &message.hash_scheme,
        adapter: &message.adapter_id,
        prefix_hash: &message.prefix_hash,
        prefix_token_count: message.prefix_token_count,
        block_hashes: &message.block_hashes,
        block_token_counts: &message.block_token_counts,
        token_ids: if too_many { &[] } else { &message.token_ids },
        prompt: if untokenized { Prompt::Untokenized } else { Prompt::Absent },
        ttft_ms: message.slo.map_or(0, |slo| slo.ttft_ms),
    }
}

/// The answer on the wire. `adapter` is the request's; it is echoed when the index says so.
pub fn response(answer: LookupAnswer, adapter: String, latency_us: i64) -> wire::LookupRouteResponse {
    let scores = answer.scores.into_iter().map(|score| wire::ReplicaScore {
        replica_id: score.replica.as_ref().to_owned(),
        score: score.score,
        matched_tokens: score.matched_tokens,
        estimated_cache_hit_prob: score.hit_prob,
        tier: score.tier,
    });
    wire::LookupRouteResponse {
        replica_scores: scores.collect(),
        reason_code: answer.reason.as_str().to_owned(),
        lookup_latency_us: latency_us,
        token_ids: Vec::new(),
        adapter_id: if answer.adapter_echo { adapter } else { String::new() },
    }
}

/// The aggregate on the wire. hot_prefixes is 0 for now; a replica's client_version is not kept.
pub fn cache_state(state: CacheState) -> wire::GetCacheStateResponse {
    let replicas = state.replicas.into_iter().map(|(replica, stats)| wire::ReplicaStats {
        replica_id: replica.as_ref().to_owned(),
        cache_memory_bytes: stats.cache_memory_bytes,
        hit_rate: stats.hit_rate,
        pressure: stats.pressure,
        client_version: String::new(),
        t2_hit_tokens: stats.t2_hit_tokens,
        t2_query_tokens: stats.t2_query_tokens,
    });
    let total_prefixes = i64::try_from(state.total_prefixes).unwrap_or(i64::MAX);
    wire::GetCacheStateResponse {
        replicas: replicas.collect(),
        summary: Some(wire::CacheSummary { total_prefixes, hot_prefixes: 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prefixd_index::delta::Stats;
    use prefixd_index::{Reason, ReplicaScore};

    #[test]
    fn a_prompt_is_untokenized_only_where_it_would_be_used() {
        let ask = |tokens: usize, text: &str| wire::LookupRouteRequest {
            token_ids: vec![1; tokens],
            prompt_text: text.into(),
            ..Default::default()
        };
        for (tokens, text, kept, prompt) in [
            (0, "", 0, Prompt::Absent),
            (0, "hi", 0, Prompt::Untokenized),
            (3, "hi", 3, Prompt::Absent),
            (4, "", 4, Prompt::Absent),
            (5, "", 0, Prompt::Untokenized),
        ] {
            let message = ask(tokens, text);
            let asked = request(&message, 4);
            assert_eq!((asked.token_ids.len(), asked.prompt), (kept, prompt), "{tokens} {text}");
        }
    }

    #[test]
    fn the_adapter_is_echoed_only_when_the_index_was_consulted() {
        let score = ReplicaScore { replica: "r".into(), score: 1.5, matched_tokens: 64, hit_prob: 0.5, tier: 2 };
        let answer =
            LookupAnswer { scores: vec![score], adapter_echo: true, ..LookupAnswer::early(Reason::PrefixMatch) };
        let sent = response(answer.clone(), "sql".into(), 7);
        assert_eq!(
            (sent.reason_code.as_str(), sent.adapter_id.as_str(), sent.lookup_latency_us),
            ("PREFIX_MATCH", "sql", 7)
        );
        let wire::ReplicaScore { replica_id, score, matched_tokens, estimated_cache_hit_prob, tier } =
            sent.replica_scores.first().unwrap();
        assert_eq!((replica_id.as_str(), *score, *matched_tokens), ("r", 1.5, 64));
        assert_eq!((*estimated_cache_hit_prob, *tier), (0.5, 2));
        assert!(response(LookupAnswer { adapter_echo: false, ..answer }, "sql".into(), 7).adapter_id.is_empty());
    }

    #[test]
    fn the_state_keeps_its_order_and_shows_no_version() {
        let stats =
            Stats { cache_memory_bytes: 1 << 40, hit_rate: 0.5, pressure: 0.25, t2_hit_tokens: 3, t2_query_tokens: 9 };
        let sent = cache_state(CacheState {
            replicas: vec![("B".into(), stats), ("a".into(), Stats::default())],
            total_prefixes: 3,
        });
        assert_eq!(sent.replicas.iter().map(|r| r.replica_id.as_str()).collect::<Vec<_>>(), ["B", "a"]);
        assert_eq!(sent.replicas.first().map(|r| (r.t2_hit_tokens, r.client_version.as_str())), Some((3, "")));
        assert_eq!(sent.summary, Some(wire::CacheSummary { total_prefixes: 3, hot_prefixes: 0 }));
    }
}
