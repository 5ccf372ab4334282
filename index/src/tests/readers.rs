//! Readers beside the writer: no entry is seen torn, none crosses a tenant, and nothing panics while names come and
//! go. Each entry says its own time in its token count and tier, so that a mixture shows.

use super::{Dice, setting};
use crate::command::{Batch, ClusterMeta, Command, Stamped};
use crate::delta::{Chain, Delta, Event, EventKind, Exact, PrefixEntry, Stats, Update};
use crate::{Index, LookupRequest, LookupScratch, Prompt, RankConfig, Reason, View};
use std::sync::atomic::{AtomicBool, Ordering};

/// A power of two within f32's precision, so that a freshness says its age to the microsecond.
const TTL_US: u64 = 1 << 22;
const BEGIN_US: u64 = 1 << 40;
/// Time passes within this, so that nothing expires.
const SPAN_US: u64 = 1 << 21;

/// What an entry last seen then must say. Constant for a while, so that refreshes in place occur too.
fn tokens(seen_us: u64) -> i32 {
    (seen_us / 8 % 100_000) as i32 + 1
}

fn tier(seen_us: u64) -> i32 {
    (seen_us / 8 % 3) as i32 + 1
}

fn hash(n: u64) -> Vec<u8> {
    vec![n as u8; if n.is_multiple_of(3) { 40 } else { 8 }]
}

fn delta(dice: &mut Dice, at_us: u64) -> Delta {
    // A replica is named after its tenant; tenants come and go with few entries.
    let tenant = format!("t{}", dice.roll(4));
    let replica = format!("{tenant}-r{}", dice.roll(5));
    let model = "m".to_owned();
    match dice.roll(30) {
        0 => Delta::Event(Event { kind: EventKind::AllCleared, replica, tenant, model }),
        1..12 => {
            let kind = EventKind::PrefixEvicted { hash: hash(dice.roll(6)), adapter: String::new() };
            Delta::Event(Event { kind, replica, tenant, model })
        }
        _ => {
            let exact = |dice: &mut Dice| PrefixEntry {
                adapter: if dice.one_in(3) { "x".into() } else { String::new() },
                tier: tier(at_us),
                chain: None,
                exact: Some(Exact { hash: hash(dice.roll(6)), token_count: tokens(at_us) }),
            };
            let entries = (0..1 + dice.roll(4)).map(|_| exact(dice)).collect();
            let stats = dice.one_in(4).then_some(Stats { hit_rate: 0.5, ..Stats::default() });
            let (scheme, timestamp_us) = ("vllm".into(), at_us);
            Delta::Update(Update { replica, tenant, model, scheme, timestamp_us, entries, stats })
        }
    }
}

fn read(view: &View, dice: &mut Dice, scratch: &mut LookupScratch) -> u64 {
    let config = RankConfig { minimum_matched_tokens: 0, routing_floor_score: 0.0, ..RankConfig::default() };
    let now_us = BEGIN_US + SPAN_US;
    let tenant = format!("t{}", dice.roll(4));
    let (key, chain) = (hash(dice.roll(6)), [hash(dice.roll(6)), hash(dice.roll(6))]);
    let exact = LookupRequest::<Vec<u8>> {
        tenant: &tenant,
        model: "m",
        scheme: "vllm",
        adapter: if dice.one_in(3) { "x" } else { "" },
        prefix_hash: &key,
        prefix_token_count: 0,
        block_hashes: &[],
        block_token_counts: &[],
        token_ids: &[],
        prompt: Prompt::Absent,
        ttft_ms: 0,
    };
    let answer = view.lookup(&exact, now_us, &config, scratch);
    for score in &answer.scores {
        assert!(score.replica.starts_with(&tenant), "{tenant} was answered {answer:?}");
        if answer.reason == Reason::PrefixMatch {
            let seen_us = now_us - ((1.0 - f64::from(score.hit_prob)) * TTL_US as f64).round() as u64;
            assert_eq!((score.matched_tokens, score.tier), (tokens(seen_us), tier(seen_us)), "torn: {score:?}");
        }
    }
    let request = LookupRequest { prefix_hash: &[], block_hashes: &chain, block_token_counts: &[7, 9], ..exact };
    let runs = view.lookup(&request, now_us, &config, scratch);
    for score in &runs.scores {
        assert!(score.replica.starts_with(&tenant), "{tenant} was answered {runs:?}");
        assert!(runs.reason != Reason::PrefixMatch || [7, 16].contains(&score.matched_tokens), "{runs:?}");
    }
    let state = view.cache_state(&tenant, "m");
    assert!(state.replicas.iter().all(|(replica, _)| replica.starts_with(&tenant)));
    assert!(state.replicas.is_sorted_by(|a, b| a.0 < b.0), "{state:?}");
    if dice.one_in(200) {
        let rows = view.state_rows();
        assert!(rows.replicas.iter().all(|row| row.replica.starts_with(&*row.tenant)));
        assert!(view.models().len() <= 1);
    }
    answer.scores.len() as u64
}

#[test]
fn readers_see_entries_whole() {
    let applies = setting("PREFIXD_INDEX_APPLIES", 30_000);
    let seed = setting("PREFIXD_INDEX_SEED", 11);
    println!("seed {seed}");
    let mut index = Index::new(seed);
    let meta = ClusterMeta { default_ttl_us: TTL_US, max_entries: 60, slice_entries: 3, ..ClusterMeta::default() };
    index.apply(1, &Stamped { stamp_us: BEGIN_US, command: Command::ClusterMeta(meta) });
    let view = index.view();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let readers: Vec<_> = (0..3u64)
            .map(|reader| {
                let (view, is_done) = (view.clone(), &is_done);
                threads.spawn(move || {
                    let (mut dice, mut scratch) = (Dice(seed + 100 + reader), LookupScratch::default());
                    let (mut lookups, mut scores) = (0u64, 0);
                    while !is_done.load(Ordering::Relaxed) || lookups < 100 {
                        scores += read(&view, &mut dice, &mut scratch);
                        lookups += 1;
                    }
                    (lookups, scores)
                })
            })
            .collect();
        let mut dice = Dice(seed);
        for at in 0..applies {
            let at_us = BEGIN_US + at * (SPAN_US / applies);
            let deltas = (0..1 + dice.roll(3)).map(|_| delta(&mut dice, at_us)).collect();
            let command = match dice.roll(10) {
                0 => Command::Sweep,
                _ => Command::Deltas(vec![Batch { session: 1, sequence: at, producer: None, deltas }]),
            };
            index.apply(at + 2, &Stamped { stamp_us: at_us, command });
        }
        is_done.store(true, Ordering::Relaxed);
        for reader in readers {
            let (lookups, scores) = reader.join().unwrap();
            println!("{lookups} lookups, {scores} scores");
            assert!(scores > 0, "a reader that finds nothing proves nothing");
        }
    });
}

/// A chain that is written again and again in one piece is never seen with a hole, once it is there.
#[test]
fn a_refresh_leaves_no_hole() {
    let hashes: Vec<Vec<u8>> = (0..64u8).map(|block| vec![block; 8]).collect();
    let entry =
        |tier| PrefixEntry { adapter: String::new(), tier, chain: Chain::pack(&hashes, &[16; 64]), exact: None };
    let update = |replica: &str, tier| {
        Delta::Update(Update {
            replica: replica.into(),
            tenant: "t".into(),
            model: "m".into(),
            scheme: "vllm".into(),
            timestamp_us: 0,
            entries: vec![entry(tier)],
            stats: None,
        })
    };
    let mut index = Index::new(5);
    let mut at = 0;
    let mut apply = |delta: Delta| {
        at += 1;
        let batch = Batch { session: 1, sequence: at, producer: None, deltas: vec![delta] };
        index.apply(at, &Stamped { stamp_us: BEGIN_US + at, command: Command::Deltas(vec![batch]) });
        index.view()
    };
    let view = apply(update("r", 1));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let reader = threads.spawn(|| {
            let (mut scratch, config) = (LookupScratch::default(), RankConfig::default());
            let counts = [16; 64];
            let mut lookups = 0u64;
            while !is_done.load(Ordering::Relaxed) || lookups < 100 {
                let request = LookupRequest {
                    tenant: "t",
                    model: "m",
                    scheme: "vllm",
                    adapter: "",
                    prefix_hash: &[],
                    prefix_token_count: 0,
                    block_hashes: &hashes,
                    block_token_counts: &counts,
                    token_ids: &[],
                    prompt: Prompt::Absent,
                    ttft_ms: 0,
                };
                let answer = view.lookup(&request, BEGIN_US, &config, &mut scratch);
                let found = answer.scores.iter().find(|score| &*score.replica == "r");
                // While another replica holds as much, power and floor may hide the match, but nothing shortens it.
                if answer.reason == Reason::PrefixMatch {
                    assert_eq!(found.map(|score| score.matched_tokens), Some(1_024), "{answer:?}");
                }
                lookups += 1;
            }
        });
        for round in 0..setting("PREFIXD_INDEX_APPLIES", 30_000) / 20 {
            apply(update("r", (round % 3) as i32 + 1));
            apply(update("s", 1));
            let event =
                Event { kind: EventKind::AllCleared, replica: "s".into(), tenant: "t".into(), model: "m".into() };
            apply(Delta::Event(event));
        }
        is_done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}
