//! Gateways' and dashboards' messages to and from core types. Requests are borrowed, answers are lent; nothing is
//! judged here but the limits on prompts. Deadlines belong to the node, everything else to the index.

use crate::inferencecache as wire;
use bytes::Bytes;
use prefixd_index::{AnswerRef, CacheState, LookupRequest, Prompt, Reason, ScoreRef};

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

/// What a LookupRoute call says.
#[derive(Copy, Clone)]
pub struct Reply<'a> {
    /// The index's answer, lent by it; or why it wasn't asked, or not in time.
    pub answer: Result<&'a AnswerRef<'a>, Reason>,
    /// The request's adapter; it is echoed when the index says so.
    pub adapter: &'a str,
    /// Microseconds spent in the handler.
    pub latency_us: i64,
}

impl Reply<'_> {
    /// The reply on the wire.
    pub fn message(&self) -> wire::LookupRouteResponse {
        let mut replica_scores = Vec::new();
        if let Ok(answer) = self.answer {
            replica_scores.reserve(answer.len());
            answer.for_each_score(|score| replica_scores.push(score_to_wire(score)));
        }
        let reason = self.answer.map_or_else(|reason| reason, |answer| answer.reason);
        let is_echoed = self.answer.is_ok_and(|answer| answer.adapter_echo);
        wire::LookupRouteResponse {
            replica_scores,
            reason_code: reason.as_str().to_owned(),
            lookup_latency_us: self.latency_us,
            token_ids: Vec::new(),
            adapter_id: if is_echoed { self.adapter.to_owned() } else { String::new() },
        }
    }
}

fn score_to_wire(score: ScoreRef<'_>) -> wire::ReplicaScore {
    wire::ReplicaScore {
        replica_id: score.replica.as_ref().to_owned(),
        score: score.score,
        matched_tokens: score.matched_tokens,
        estimated_cache_hit_prob: score.hit_prob,
        tier: score.tier,
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
    use prefixd_index::command::{Batch, Command, Stamped};
    use prefixd_index::delta::{Chain, Delta, PrefixEntry, Stats, Update};
    use prefixd_index::{Index, LookupScratch, RankConfig};

    const NOW_US: u64 = 1_700_000_000_000_000;
    const HASHES: [[u8; 8]; 3] = [[1; 8], [2; 8], [3; 8]];

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

    fn said(index: &Index, model: &str) -> wire::LookupRouteResponse {
        let message = wire::LookupRouteRequest {
            model_id: model.into(),
            tenant_id: "t".into(),
            hash_scheme: "s".into(),
            adapter_id: "sql".into(),
            block_hashes: HASHES.map(|hash| Bytes::copy_from_slice(&hash)).into(),
            block_token_counts: vec![256; HASHES.len()],
            ..Default::default()
        };
        let (config, mut scratch) = (RankConfig::default(), LookupScratch::default());
        index.view().with_answer(&request(&message, 10), NOW_US, &config, &mut scratch, |answer| {
            Reply { answer: Ok(answer), adapter: &message.adapter_id, latency_us: 7 }.message()
        })
    }

    #[test]
    fn the_answer_is_the_indexs_and_the_adapter_echoed_only_when_that_was_consulted() {
        let mut index = Index::new(7);
        let update = |replica: &str, blocks: usize| {
            let chain = Chain::pack(&HASHES[..blocks], &vec![256; blocks]);
            Delta::Update(Update {
                replica: replica.into(),
                tenant: "t".into(),
                model: "m".into(),
                scheme: "s".into(),
                timestamp_us: 0,
                entries: vec![PrefixEntry { adapter: "sql".into(), tier: 2, chain, exact: None }],
                stats: None,
            })
        };
        let deltas = vec![update("replica-a", 3), update("replica-b", 1)];
        let batch = Batch { session: 1, sequence: 1, producer: None, deltas };
        index.apply(1, &Stamped { stamp_us: NOW_US, command: Command::Deltas(vec![batch]) });

        let found = said(&index, "m");
        assert_eq!((found.reason_code.as_str(), found.adapter_id.as_str()), ("PREFIX_MATCH", "sql"));
        assert_eq!((found.replica_scores.len(), found.lookup_latency_us), (2, 7));
        let best = found.replica_scores.first().unwrap();
        assert_eq!((best.replica_id.as_str(), best.matched_tokens, best.tier), ("replica-a", 768, 2));
        assert!(best.score > 0.0 && best.estimated_cache_hit_prob > 0.0);
        let refused = said(&index, "");
        assert_eq!((refused.reason_code.as_str(), refused.replica_scores.len()), ("NO_HINT", 0));
        let late = Reply { answer: Err(Reason::Timeout), adapter: "sql", latency_us: 0 }.message();
        assert_eq!((late.reason_code.as_str(), late.adapter_id.as_str()), ("TIMEOUT", ""));
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
