//! The bodies of the fuzz targets (`fuzz/bodies`) as plain tests: over what was ever found (`fuzz/cases`), over good
//! inputs, damaged ones and noise. PREFIXD_FUZZED_CASES asks for more; PREFIXD_FUZZED_SEEDS names a folder that the good
//! inputs are written to, one subfolder a target, for a fuzzer to begin with.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on says so by panicking")]

use bytes::Bytes;
use prefixd_index::command::{Audit, Batch, ClusterMeta, Command, Credit, Probe, Stamped};
use prefixd_index::delta::{Chain, Delta, Event, EventKind, Exact, PackedHashes, PrefixEntry, Stats, Update};
use prefixd_index::policy::PolicySet;
use prefixd_proto::inferencecache as wire;
use prefixd_raft::encode_command;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use prost::Message;
use std::path::Path;

#[path = "../fuzz/bodies/conversion.rs"]
mod conversion;
#[path = "../fuzz/bodies/log.rs"]
mod log;
#[path = "../fuzz/bodies/policy.rs"]
mod policy;
#[path = "../fuzz/bodies/tokens.rs"]
mod tokens;

/// Runs a body over the kept cases of a target, its good inputs as they are, and both damaged.
fn try_all(target: &str, seeds: Vec<Vec<u8>>, body: fn(&[u8])) {
    if let Ok(folder) = std::env::var("PREFIXD_FUZZED_SEEDS") {
        let folder = Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder).unwrap();
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), seed).unwrap();
        }
    }
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/cases").join(target);
    let mut inputs = seeds;
    for file in std::fs::read_dir(&kept).expect("each target has its folder of cases") {
        inputs.push(std::fs::read(file.unwrap().path()).unwrap());
    }
    inputs.iter().for_each(|input| body(input));
    let asked = std::env::var("PREFIXD_FUZZED_CASES").ok();
    let cases = asked.map_or(400, |text| text.parse().expect("PREFIXD_FUZZED_CASES is a number"));
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let edits = vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let damaged = (any::<prop::sample::Index>(), edits, any::<Option<prop::sample::Index>>());
    let damaged = damaged.prop_map(move |(which, edits, cut)| {
        let mut input = which.get(&inputs).clone();
        for (at, byte) in edits {
            if !input.is_empty() {
                let at = at.index(input.len());
                input[at] = byte;
            }
        }
        if let Some(cut) = cut {
            input.truncate(cut.index(input.len() + 1));
        }
        input
    });
    let input = prop_oneof![3 => damaged, 1 => vec(any::<u8>(), 0..512)];
    runner
        .run(&input, |input| {
            body(&input);
            Ok(())
        })
        .unwrap();
}

#[test]
fn policy_bodies() {
    let documents = [
        r#"{"version":7}"#,
        r#"{"version":3,"policies":[{"namespace":"t","evictionTTL":-1,"routingFloorScore":1e-3}],"tenants":[]}"#,
        r#"{"version":5,"policies":[{"namespace":"t","minimumMatchedTokens":0,"eviction":"fifo"},{"namespace":""}]}"#,
        r#"{"version":7,"policies":[{"namespace":"team-a","evictionTTL":900000000000,"minimumPrefixTokens":32,
            "minimumMatchedTokens":128,"routingFloorScore":5,"lookupTimeoutMs":25,"eviction":"lfu",
            "affinityRouting":true,
            "strategy":{"enableChainMatching":true,"requireChain":true,"enableTenantHot":false}}],
            "tenants":[{"tenantID":"team-a","maxIndexEntries":100000,"isolationMode":"Fairness"}]}"#,
        r#"{"version":6,"policies":[{"namespace":"t","strategy":{"enableChainMatching":false}}],
            "tenants":[{"tenantID":"t","maxIndexEntries":-5},{"tenantID":"t"}]}"#,
    ];
    try_all("policy", documents.map(|text| text.as_bytes().to_vec()).into(), policy::run);
}

#[test]
fn token_files() {
    let files = [
        "one-token\n",
        "# old and new\nabcdefghijklmnopqrstuvwxyz0123456789\r\n  second.token=  \n",
        "token-of-team-a team-a,team-b\ntoken-of-all *\n",
        "Bearer abc.def-ghi",
        "no tenant,\n",
    ];
    try_all("tokens", files.map(|text| text.as_bytes().to_vec()).into(), tokens::run);
}

/// Parts of an input, each after its length, and after its kind if it has one.
fn framed(parts: impl IntoIterator<Item = (Option<u8>, Vec<u8>)>) -> Vec<u8> {
    let mut input = Vec::new();
    for (kind, part) in parts {
        input.extend(kind);
        input.extend(u16::try_from(part.len()).unwrap().to_be_bytes());
        input.extend(part);
    }
    input
}

fn block(number: u8) -> Bytes {
    vec![number; 8].into()
}

#[test]
fn messages() {
    let update = wire::CacheStateUpdate {
        replica_id: "r".into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "s".into(),
        timestamp_us: 5,
        prefixes: vec![
            wire::PrefixEntry {
                block_hashes: (0..4).map(block).collect(),
                block_token_counts: vec![16; 4],
                prefix_hash: block(9),
                token_count: 64,
                tier: 2,
                ..Default::default()
            },
            wire::PrefixEntry { prefix_hash: block(7), token_count: 3, adapter_id: "a".into(), ..Default::default() },
        ],
        stats: Some(wire::ReplicaStats { hit_rate: 0.5, pressure: f32::NAN, ..Default::default() }),
        adapter_id: "default".into(),
    };
    let event = |kind: wire::cache_event::Type| wire::CacheEvent {
        r#type: kind.into(),
        replica_id: "r".into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        prefix_hash: block(1),
        ..Default::default()
    };
    let ask = wire::LookupRouteRequest {
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "s".into(),
        adapter_id: "default".into(),
        block_hashes: (0..4).map(block).collect(),
        block_token_counts: vec![64; 4],
        slo: Some(wire::Slo { ttft_ms: 5, tbt_ms: 0 }),
        ..Default::default()
    };
    let tokens = wire::LookupRouteRequest {
        block_hashes: Vec::new(),
        block_token_counts: Vec::new(),
        token_ids: (0..64).collect(),
        ..ask.clone()
    };
    let exact = wire::LookupRouteRequest { token_ids: Vec::new(), prefix_hash: block(9), ..tokens.clone() };
    use wire::cache_event::Type;
    let (reported, asked) = ((Some(0), update.encode_to_vec()), (Some(2), ask.encode_to_vec()));
    let told = |kind| (Some(1), event(kind).encode_to_vec());
    let seeds = vec![
        framed([reported.clone(), asked.clone()]),
        framed([reported.clone(), told(Type::PrefixEvicted), asked.clone(), told(Type::ReplicaUpdated)]),
        framed([reported.clone(), told(Type::AllCleared), asked, reported.clone()]),
        framed([reported, (Some(2), tokens.encode_to_vec()), (Some(2), exact.encode_to_vec())]),
    ];
    try_all("conversion", seeds, conversion::run);
}

/// One command of each kind.
fn commands() -> Vec<Command> {
    let hashes: Vec<[u8; 8]> = (0..4).map(|number| [number; 8]).collect();
    let update = Update {
        replica: "r".into(),
        tenant: "t".into(),
        model: "m".into(),
        scheme: "s".into(),
        timestamp_us: 0,
        entries: vec![PrefixEntry {
            adapter: "a".into(),
            tier: 1,
            chain: Chain::pack(&hashes, &[16; 4]),
            exact: Some(Exact { hash: vec![9; 8], token_count: 64 }),
        }],
        stats: Some(Stats { hit_rate: 0.5, ..Stats::default() }),
    };
    let event = |kind| Delta::Event(Event { kind, replica: "r".into(), tenant: "t".into(), model: "m".into() });
    let batch = |sequence, deltas| Batch { session: 7, sequence, producer: Some((1, 2)), deltas };
    let policies = br#"{"version":7,"policies":[{"namespace":"t","eviction":"lfu","evictionTTL":1000000}],
        "tenants":[{"tenantID":"t","maxIndexEntries":2}]}"#;
    let policies: PolicySet = prefixd_proto::policy::decode(policies).unwrap();
    let evicted = EventKind::PrefixEvicted { hash: vec![1; 8], adapter: String::new() };
    vec![
        Command::Deltas(vec![batch(1, vec![Delta::Update(update)])]),
        Command::AccessCredits(vec![Credit {
            tenant: "t".into(),
            model: "m".into(),
            scheme: "s".into(),
            adapter: "a".into(),
            replica: "r".into(),
            hashes: PackedHashes::pack(&hashes).unwrap(),
            counts: vec![1, 2, 3, u32::MAX],
        }]),
        Command::SetPolicy(policies),
        Command::ClusterMeta(ClusterMeta { max_entries: 2, slice_entries: 1, ..ClusterMeta::default() }),
        Command::Deltas(vec![batch(2, vec![event(evicted), event(EventKind::ReplicaUpdated { timestamp_us: 1 })])]),
        Command::Audit(Audit { index: 1, digest: 1 }),
        Command::Probe(Probe {
            replica: "p".into(),
            model: "m".into(),
            scheme: "s".into(),
            hash: vec![3; 8],
            present: true,
        }),
        Command::Deltas(vec![batch(3, vec![event(EventKind::AllCleared)])]),
        Command::Sweep,
    ]
}

#[test]
fn log_commands() {
    let whole: Vec<Vec<u8>> = (1u64..)
        .zip(commands())
        .map(|(at, command)| encode_command(&Stamped { stamp_us: at * 1_000_000, command }).unwrap().to_vec())
        .collect();
    // A body lies between ten bytes of head and eight of checksum.
    let bodies: Vec<Vec<u8>> = whole.iter().map(|bytes| bytes[10..bytes.len() - 8].to_vec()).collect();
    let each = bodies.iter().map(|body| framed([(None, body.clone())]));
    let mut seeds: Vec<Vec<u8>> = each.chain(whole.iter().cloned()).collect();
    seeds.push(framed(bodies.iter().map(|body| (None, body.clone()))));
    seeds.push(framed(bodies.iter().rev().chain(&bodies).take(16).map(|body| (None, body.clone()))));
    try_all("log", seeds, log::run);
}
