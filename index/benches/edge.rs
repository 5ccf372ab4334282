//! What an index of a million entries costs at the edge of its limits: an ingest of 100 new blocks beside the same in a
//! half-full index, and removals of few and of many entries. Bounds that the design promises are asserted, so that a
//! scan that creeps in fails the run. `cargo bench -p prefixd-index --bench edge`; medians of single applies.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock; the core doesn't")]

use prefixd_index::command::{Batch, ClusterMeta, Command, Credit, Stamped};
use prefixd_index::delta::{Chain, Delta, Event, EventKind, PackedHashes, PrefixEntry, Update};
use prefixd_index::policy::{Eviction, PolicySet, TenantPolicy};
use prefixd_index::{Index, fingerprint};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

const CAP: u64 = 1_000_000;
/// Blocks of the ingest that is measured.
const NEW_BLOCKS: u64 = 100;
/// Measured applies of each kind.
const SAMPLES: usize = 1_000;
/// Replicas that hold the entries, and blocks of one reported chain.
const REPLICAS: u64 = 64;
const CHAIN_BLOCKS: u64 = 50;
const NOW_US: u64 = 1_700_000_000_000_000;
/// At the edge an ingest may cost this many times what it costs in a half-full index.
const MAX_RATIO: f64 = 3.0;

struct Log {
    index: Index,
    at: u64,
    /// The next hash that nobody has reported.
    fresh: u64,
}

fn hash(number: u64) -> [u8; 8] {
    fingerprint::chained(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number).to_be_bytes()
}

fn update(replica: u64, first: u64, blocks: u64) -> Delta {
    let hashes: Vec<[u8; 8]> = (first..first + blocks).map(hash).collect();
    let chain = Chain::pack(&hashes, &vec![16; hashes.len()]);
    Delta::Update(Update {
        replica: format!("replica-{replica}"),
        tenant: "tenant".into(),
        model: "model".into(),
        scheme: "vllm".into(),
        timestamp_us: 0,
        entries: vec![PrefixEntry { adapter: String::new(), tier: 1, chain, exact: None }],
        stats: None,
    })
}

fn event(replica: u64, kind: EventKind) -> Delta {
    Delta::Event(Event { kind, replica: format!("replica-{replica}"), tenant: "tenant".into(), model: "model".into() })
}

impl Log {
    /// An index with this cap and policy set, and nothing in it.
    fn new(cap: u64, policies: PolicySet) -> Self {
        let mut log = Self { index: Index::new(7), at: 0, fresh: 0 };
        log.apply(Command::ClusterMeta(ClusterMeta { max_entries: cap, ..ClusterMeta::default() }));
        log.apply(Command::SetPolicy(policies));
        log
    }

    /// Applies a command a millisecond of cluster time after the last, and says how long that took.
    fn apply(&mut self, command: Command) -> Duration {
        self.at += 1;
        let stamped = Stamped { stamp_us: NOW_US + self.at * 1_000, command };
        let begun = Instant::now();
        black_box(self.index.apply(self.at, &stamped));
        begun.elapsed()
    }

    fn deltas(&mut self, deltas: Vec<Delta>) -> Duration {
        let sequence = self.at + 1;
        self.apply(Command::Deltas(vec![Batch { session: 1, sequence, producer: None, deltas }]))
    }

    /// A chain of `blocks` new blocks of one replica.
    fn ingest(&mut self, replica: u64, blocks: u64) -> Duration {
        let first = self.fresh;
        self.fresh += blocks;
        self.deltas(vec![update(replica, first, blocks)])
    }

    /// Fills the index with new blocks of all replicas in turn.
    fn fill(mut self, entries: u64) -> Self {
        for at in 0..entries / CHAIN_BLOCKS {
            self.ingest(at % REPLICAS, CHAIN_BLOCKS);
        }
        self
    }

    /// One access more for each of the first `blocks` blocks that a replica reported.
    fn credit(&mut self, blocks: u64) {
        for first in (0..blocks).step_by(CHAIN_BLOCKS as usize) {
            let hashes: Vec<[u8; 8]> = (first..first + CHAIN_BLOCKS).map(hash).collect();
            let Some(hashes) = PackedHashes::pack(&hashes) else { continue };
            self.apply(Command::AccessCredits(vec![Credit {
                tenant: "tenant".into(),
                model: "model".into(),
                scheme: "vllm".into(),
                adapter: String::new(),
                replica: format!("replica-{}", first / CHAIN_BLOCKS % REPLICAS),
                counts: vec![1 + (first % 7) as u32; CHAIN_BLOCKS as usize],
                hashes,
            }]));
        }
    }
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}

fn ingests(log: &mut Log) -> Duration {
    median((0..SAMPLES).map(|at| log.ingest(at as u64 % REPLICAS, NEW_BLOCKS)).collect())
}

fn lfu() -> PolicySet {
    let policy = TenantPolicy { eviction: Eviction::Lfu, ..TenantPolicy::default() };
    PolicySet { policies: BTreeMap::from([("tenant".into(), policy)]), quotas: BTreeMap::new() }
}

fn quota() -> PolicySet {
    PolicySet { policies: BTreeMap::new(), quotas: BTreeMap::from([("tenant".into(), CAP)]) }
}

/// Ingests at the edge against ingests in a half-full index; false if a bound is broken.
fn edge() -> bool {
    let half = ingests(&mut Log::new(CAP, PolicySet::default()).fill(CAP / 2));
    println!("ingest of {NEW_BLOCKS} new blocks, median of {SAMPLES}:");
    println!("  half full ({} of {CAP} entries): {half:?}", CAP / 2);
    let mut holds = true;
    let mut at_edge = |name: &str, mut log: Log| {
        let before = log.index.totals().entries;
        let spent = ingests(&mut log);
        let ratio = spent.as_secs_f64() / half.as_secs_f64();
        assert_eq!((before, log.index.totals().entries), (CAP, CAP), "each new block takes the place of one");
        println!("  {name}: {spent:?}, {ratio:.2} times the half-full cost");
        holds &= ratio <= MAX_RATIO;
    };
    at_edge("at the cap, LRU", Log::new(CAP, PolicySet::default()).fill(CAP));
    at_edge("at the cap, LFU, no accesses", Log::new(CAP, lfu()).fill(CAP));
    let mut accessed = Log::new(CAP, lfu()).fill(CAP);
    accessed.credit(CAP / 2);
    at_edge("at the cap, LFU, half of them accessed", accessed);
    at_edge("at a tenant's quota", Log::new(0, quota()).fill(CAP));
    holds
}

/// PREFIX_EVICTED in indexes of several sizes: the cost is the removed entry's, not the index's.
fn evicted() -> bool {
    println!("PREFIX_EVICTED of one entry, median of {SAMPLES}:");
    let costs = [CAP / 100, CAP / 10, CAP].map(|entries| {
        let mut log = Log::new(0, PolicySet::default()).fill(entries);
        let step = entries / SAMPLES as u64;
        let one = |at: u64| {
            let kind = EventKind::PrefixEvicted { hash: hash(at * step).to_vec(), adapter: String::new() };
            log.deltas(vec![event(at * step / CHAIN_BLOCKS % REPLICAS, kind)])
        };
        let spent = median((0..SAMPLES as u64).map(one).collect());
        assert_eq!(log.index.totals().entries, entries - SAMPLES as u64, "each removed one");
        println!("  of {entries} entries: {spent:?}");
        spent.as_secs_f64()
    });
    // Of a hundred times the entries a probe misses the caches, and trees are deeper.
    costs[2] / costs[0] <= 10.0
}

/// ALL_CLEARED of replicas of several sizes in an index of a million entries: the call itself, which purges one slice,
/// and the slices until nothing is left. By medians of slices: a whole clearing is longer than a turn of the scheduler.
fn cleared() -> bool {
    println!("ALL_CLEARED of one replica in an index of {CAP} entries:");
    let costs = [10_000, 100_000, 500_000].map(|held| {
        let mut log = Log::new(0, PolicySet::default()).fill(CAP - held);
        for _ in 0..held / CHAIN_BLOCKS {
            log.ingest(REPLICAS, CHAIN_BLOCKS);
        }
        let call = log.deltas(vec![event(REPLICAS, EventKind::AllCleared)]);
        let mut slices = Vec::new();
        while log.index.totals().dead_entries > 0 {
            slices.push(log.apply(Command::Sweep));
        }
        assert_eq!(log.index.totals().entries, CAP - held, "all of it went, and nothing else");
        let (count, slice) = (slices.len(), median(slices));
        let each = slice.as_secs_f64() / f64::from(ClusterMeta::default().slice_entries);
        println!(
            "  {held} entries: the call {call:?}, then {count} slices of {slice:?}, {:.0} ns an entry",
            each * 1e9
        );
        each
    });
    costs[2] / costs[0] <= 5.0
}

fn main() {
    let holds = [edge(), evicted(), cleared()];
    assert_eq!(holds, [true; 3], "a bound of edge, evicted or cleared is broken");
}
