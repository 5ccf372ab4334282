//! Any bytes as the body of POST /policy: a set or a reason, never a panic. A set that was taken holds only what the
//! core may be given, says the same when it is written and read again, and governs lookups without a panic.

use prefixd_index::command::{Command, Stamped};
use prefixd_index::{Index, LookupRequest, LookupScratch, Prompt, RankConfig};
use prefixd_proto::policy;

/// Tries one body.
pub fn run(data: &[u8]) {
    let set = match policy::decode(data) {
        Ok(set) => set,
        Err(reason) => return assert!(!reason.is_empty()),
    };
    for (tenant, policy) in &set.policies {
        let is_normal = policy.ttl_us != Some(0)
            && policy.lookup_timeout_ms != Some(0)
            && policy.routing_floor_score.is_none_or(f32::is_finite)
            && policy.strategy.is_none_or(|gates| gates.enable_chain_matching || !gates.require_chain);
        assert!(!tenant.is_empty() && is_normal, "{tenant:?}: {policy:?}");
    }
    assert!(!set.quotas.contains_key(""));
    let written = policy::encode(&set);
    assert_eq!(policy::decode(written.as_bytes()).as_ref(), Ok(&set), "{written}");
    let mut index = Index::new(1);
    index.apply(1, &Stamped { stamp_us: 1, command: Command::SetPolicy(set.clone()) });
    index.apply(2, &Stamped { stamp_us: u64::MAX, command: Command::Sweep });
    let (view, mut scratch) = (index.view(), LookupScratch::default());
    for tenant in set.policies.keys().take(8) {
        let request = LookupRequest::<&[u8]> {
            tenant,
            model: "m",
            scheme: "s",
            adapter: "",
            prefix_hash: b"hash",
            prefix_token_count: 1,
            block_hashes: &[],
            block_token_counts: &[],
            token_ids: &[],
            prompt: Prompt::Absent,
            ttft_ms: 1,
        };
        let answer = view.lookup(&request, index.time_us(), &RankConfig::default(), &mut scratch);
        assert!(answer.scores.is_empty(), "nothing was reported: {answer:?}");
    }
}
