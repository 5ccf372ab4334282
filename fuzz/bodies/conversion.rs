//! Any bytes as messages of the public port, through the conversion into an index: updates, events and lookups, each
//! after its kind and its length. What the conversion lets through the core never refuses, two nodes make the same of
//! it, and every answer is one that the contract knows.

use prefixd_index::command::{Batch, Command, Stamped};
use prefixd_index::delta::Delta;
use prefixd_index::{Index, LookupScratch, RankConfig};
use prefixd_proto::inferencecache::{CacheEvent, CacheStateUpdate, LookupRouteRequest};
use prefixd_proto::ingest::{self, Drops};
use prefixd_proto::lookups::{self, Reply};
use prost::Message;

const REASONS: [&str; 9] = [
    "PREFIX_MATCH",
    "TENANT_HOT",
    "AFFINITY_HINT",
    "NO_HINT",
    "TIMEOUT",
    "POLICY_REQUIRES_CHAIN",
    "UNKNOWN_TENANT",
    "UNKNOWN_MODEL",
    "UNKNOWN_HASH_SCHEME",
];
/// As many messages of one input as are looked at.
const MAX_MESSAGES: u64 = 32;

/// (kind, bytes) of each message.
fn messages(mut data: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&[kind, high, low], rest) = data.split_first_chunk::<3>()?;
        let (message, rest) = rest.split_at(usize::from(u16::from_be_bytes([high, low])).min(rest.len()));
        data = rest;
        Some((kind % 3, message))
    })
}

/// Tries one series of messages.
pub fn run(data: &[u8]) {
    let (mut one, mut other) = (Index::new(1), Index::new(2));
    let mut drops = Drops::default();
    for (at, (kind, message)) in (1..=MAX_MESSAGES).zip(messages(data)) {
        let delta = match kind {
            0 => CacheStateUpdate::decode(message).ok().and_then(|m| ingest::update(m, &mut drops)).map(Delta::Update),
            1 => CacheEvent::decode(message).ok().and_then(|m| ingest::event(m, &mut drops)).map(Delta::Event),
            _ => {
                if let Ok(request) = LookupRouteRequest::decode(message) {
                    lookup(&one, request);
                }
                continue;
            }
        };
        let Some(delta) = delta else { continue };
        let batch = Batch { session: 1, sequence: at, producer: None, deltas: vec![delta] };
        let stamped = Stamped { stamp_us: 1_000_000 * at, command: Command::Deltas(vec![batch]) };
        let applied = one.apply(at, &stamped);
        assert_eq!(applied.refused, 0, "{stamped:?}");
        assert_eq!(applied, other.apply(at, &stamped));
        assert_eq!((one.digest(), one.totals()), (other.digest(), other.totals()));
    }
}

fn lookup(index: &Index, message: LookupRouteRequest) {
    let request = lookups::request(&message, 4_096);
    let (config, mut scratch) = (RankConfig::default(), LookupScratch::default());
    let sent = index.view().with_answer(&request, index.time_us(), &config, &mut scratch, |answer| {
        Reply { answer: Ok(answer), adapter: &message.adapter_id, latency_us: 1 }.message()
    });
    assert!(REASONS.contains(&sent.reason_code.as_str()), "{sent:?}");
    for score in &sent.replica_scores {
        assert!(score.score.is_finite() && !score.replica_id.is_empty(), "{sent:?}");
        assert!((0.0..=1.0).contains(&score.estimated_cache_hit_prob) || sent.reason_code == "TENANT_HOT", "{sent:?}");
    }
    let is_sorted = sent.replica_scores.windows(2).all(|pair| pair[0].score >= pair[1].score);
    assert!(is_sorted, "{sent:?}");
}
