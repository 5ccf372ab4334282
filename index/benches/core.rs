//! Lookup and apply in the core. The set: 16,384 chains of 64 blocks of 16 tokens, in families of 16 that share their
//! first 32 blocks, 8-byte hashes; 64 replicas, each chain held by one of them, so that a shared block has 16 holders
//! and the index 1,048,576 entries under 557,056 prefixes. `cargo bench -p prefixd-index`; figures are per unit named.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock; the core doesn't")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use prefixd_index::command::{Batch, ClusterMeta, Command, Stamped};
use prefixd_index::delta::{Chain, Delta, Event, EventKind, PrefixEntry, Update};
use prefixd_index::{Index, Loader, LookupRequest, LookupScratch, Prompt, RankConfig, fingerprint};
use std::hint::black_box;
use std::time::{Duration, Instant};

const CHAINS: u64 = 16_384;
const BLOCKS: usize = 64;
const SHARED: usize = 32;
const FAMILY: u64 = 16;
const REPLICAS: u64 = 64;
const UPDATE_CHAINS: u64 = 8; // of 64 blocks: 512 a batch
const NOW_US: u64 = 1_700_000_000_000_000;

fn hashes(chain: u64) -> Vec<[u8; 8]> {
    let mix = |a: u64, b: u64| fingerprint::chained(a.wrapping_mul(0x9e37_79b9_7f4a_7c15), b).to_be_bytes();
    (0..BLOCKS).map(|at| if at < SHARED { mix(chain / FAMILY, at as u64) } else { mix(!chain, at as u64) }).collect()
}

fn update(chains: impl Iterator<Item = u64>, replica: u64) -> Delta {
    let entry = |chain| {
        let chain = Chain::pack(&hashes(chain), &[16; BLOCKS]);
        PrefixEntry { adapter: String::new(), tier: 1, chain, exact: None }
    };
    Delta::Update(Update {
        replica: format!("replica-{replica}"),
        tenant: "tenant".into(),
        model: "model".into(),
        scheme: "vllm".into(),
        timestamp_us: 0,
        entries: chains.map(entry).collect(),
        stats: None,
    })
}

fn event(kind: EventKind, replica: u64) -> Delta {
    let replica = format!("replica-{replica}");
    Delta::Event(Event { kind, replica, tenant: "tenant".into(), model: "model".into() })
}

struct Log {
    index: Index,
    at: u64,
}

impl Log {
    fn new() -> Self {
        let mut log = Self { index: Index::new(7), at: 0 };
        log.apply(Command::ClusterMeta(ClusterMeta { max_entries: 0, ..ClusterMeta::default() }), 0);
        log
    }

    /// One replica reports its chains, 8 a batch.
    fn fill(&mut self, replicas: std::ops::Range<u64>, later_us: u64) -> u64 {
        let mut blocks = 0;
        for replica in replicas {
            let own: Vec<u64> = (0..CHAINS).filter(|chain| chain % REPLICAS == replica).collect();
            for chains in own.chunks(UPDATE_CHAINS as usize) {
                self.deltas(vec![update(chains.iter().copied(), replica)], later_us + self.at);
                blocks += (chains.len() * BLOCKS) as u64;
            }
        }
        blocks
    }

    fn deltas(&mut self, deltas: Vec<Delta>, later_us: u64) {
        let batch = Batch { session: 1, sequence: self.at + 1, producer: None, deltas };
        self.apply(Command::Deltas(vec![batch]), later_us);
    }

    fn apply(&mut self, command: Command, later_us: u64) {
        self.at += 1;
        black_box(self.index.apply(self.at, &Stamped { stamp_us: NOW_US + later_us, command }));
    }
}

fn request<'a>(hashes: &'a [[u8; 8]], counts: &'a [i32]) -> LookupRequest<'a, [u8; 8]> {
    LookupRequest {
        tenant: "tenant",
        model: "model",
        scheme: "vllm",
        adapter: "",
        prefix_hash: &[],
        prefix_token_count: 0,
        block_hashes: hashes,
        block_token_counts: counts,
        token_ids: &[],
        prompt: Prompt::Absent,
        ttft_ms: 0,
    }
}

/// Bytes of memory that this process occupies, where the system says so.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * 4_096)
}

fn lookups(c: &mut Criterion) {
    let before = resident_bytes();
    let mut log = Log::new();
    log.fill(0..REPLICAS, 0);
    let entries = log.index.totals().entries;
    println!("{} resident bytes an entry", resident_bytes().saturating_sub(before) / entries);
    let (view, config) = (log.index.view(), RankConfig::default());
    let mut scratch = LookupScratch::default();
    let now_us = log.index.time_us() + 1_000_000;
    let counts = [16; BLOCKS];
    let mut chain = 0u64;
    let mut next = move || {
        chain = (chain + 7_919) % CHAINS;
        chain
    };
    // All keys are made up front: hashing is the caller's.
    let all: Vec<Vec<[u8; 8]>> = (0..CHAINS).map(hashes).collect();
    let mut group = c.benchmark_group("lookup");
    group.throughput(Throughput::Elements(1));
    group.bench_function("chain of 64, 16 replicas match", |b| {
        b.iter(|| view.lookup(&request(&all[next() as usize], &counts), now_us, &config, &mut scratch));
    });
    let unknown: Vec<Vec<[u8; 8]>> = (CHAINS..2 * CHAINS).map(|chain| hashes(chain * FAMILY)).collect();
    group.bench_function("chain of 64, none matches", |b| {
        b.iter(|| view.lookup(&request(&unknown[next() as usize], &counts), now_us, &config, &mut scratch));
    });
    group.bench_function("one hash, 1 replica matches", |b| {
        b.iter(|| {
            let hash = &all[next() as usize][BLOCKS - 1];
            let request = LookupRequest { prefix_hash: hash, ..request(&[], &[]) };
            view.lookup(&request, now_us, &config, &mut scratch)
        });
    });
    let tokens: Vec<u32> = (0..1_024).collect();
    group.bench_function("1,024 token ids, none matches", |b| {
        b.iter(|| {
            let request = LookupRequest { token_ids: &tokens, ..request(&[], &[]) };
            view.lookup(&request, now_us, &config, &mut scratch)
        });
    });
    group.finish();
    println!("{:?}", log.index.totals());
}

/// Times `work` alone, on a state made anew for each iteration, per unit that it reports.
fn timed(iterations: u64, make: impl Fn() -> Log, mut work: impl FnMut(&mut Log) -> u64, unit: u64) -> Duration {
    let mut spent = Duration::ZERO;
    let mut units = 0;
    while units < iterations * unit {
        let mut log = make();
        let begun = Instant::now();
        units += work(&mut log);
        spent += begun.elapsed();
    }
    spent.mul_f64((iterations * unit) as f64 / units as f64)
}

fn applies(c: &mut Criterion) {
    let mut group = c.benchmark_group("apply");
    group.sample_size(10);
    let filled = || {
        let mut log = Log::new();
        log.fill(0..REPLICAS, 0);
        log
    };
    const BATCH: u64 = UPDATE_CHAINS * BLOCKS as u64;
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function("512 blocks, new", |b| {
        b.iter_custom(|n| timed(n, Log::new, |log| log.fill(0..REPLICAS, 0), BATCH));
    });
    group.bench_function("512 blocks, refreshed", |b| {
        b.iter_custom(|n| timed(n, filled, |log| log.fill(0..REPLICAS, 1_000_000), BATCH));
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("evicted events, 512 a batch", |b| {
        let work = |log: &mut Log| {
            let evicted = |chain: u64| {
                let tail = hashes(chain).into_iter().rev().take(SHARED);
                let kind = |hash: [u8; 8]| EventKind::PrefixEvicted { hash: hash.to_vec(), adapter: String::new() };
                tail.map(move |hash| event(kind(hash), chain % REPLICAS))
            };
            let events: Vec<Delta> = (0..CHAINS).flat_map(evicted).collect();
            let units = events.len() as u64;
            for chunk in events.chunks(512) {
                log.deltas(chunk.to_vec(), 0);
            }
            units
        };
        b.iter_custom(|n| timed(n, filled, work, 1));
    });
    group.bench_function("entries expired, 2,048 a sweep", |b| {
        let work = |log: &mut Log| {
            let entries = log.index.totals().entries;
            while log.index.totals().entries > 0 {
                log.apply(Command::Sweep, 3_600_000_000);
            }
            entries
        };
        b.iter_custom(|n| timed(n, filled, work, 1));
    });
    group.bench_function("ALL_CLEARED of 16,384 entries, 2,048 purged inline", |b| {
        let work = |log: &mut Log| {
            (0..REPLICAS).for_each(|replica| log.deltas(vec![event(EventKind::AllCleared, replica)], 0));
            REPLICAS
        };
        b.iter_custom(|n| timed(n, filled, work, 1));
    });
    group.bench_function("cap: new entries that each evict one, 512 a batch", |b| {
        let full = || {
            let mut log = filled();
            let meta = ClusterMeta { max_entries: log.index.totals().entries, ..ClusterMeta::default() };
            log.apply(Command::ClusterMeta(meta), 0);
            log
        };
        let work = |log: &mut Log| {
            let fresh: Vec<u64> = (CHAINS..CHAINS + 2_048).collect();
            for chains in fresh.chunks(UPDATE_CHAINS as usize) {
                log.deltas(vec![update(chains.iter().copied(), chains[0] % REPLICAS)], 10_000_000);
            }
            (fresh.len() * BLOCKS) as u64
        };
        b.iter_custom(|n| timed(n, full, work, 1));
    });
    group.finish();
}

fn snapshots(c: &mut Criterion) {
    let mut group = c.benchmark_group("snapshot");
    group.sample_size(10);
    let mut log = Log::new();
    log.fill(0..REPLICAS, 0);
    let entries = log.index.totals().entries;
    group.throughput(Throughput::Elements(entries));
    let walk = |index: &mut Index| {
        let info = index.begin_snapshot(0);
        let mut records = Vec::new();
        while let Ok(slice) = index.snapshot_slice(8_192) {
            records.extend(slice.records);
        }
        (info, records)
    };
    group.bench_function("walk, slices of 8,192", |b| b.iter(|| walk(&mut log.index)));
    let (info, records) = walk(&mut log.index);
    let bytes: u64 = records.iter().map(|record| bincode::serialized_size(record).unwrap_or(0)).sum();
    println!("{} records, {bytes} bytes, {:.2} an entry", records.len(), bytes as f64 / entries as f64);
    group.bench_function("load", |b| {
        b.iter(|| {
            let mut loader = Loader::new(3);
            records
                .iter()
                .try_for_each(|record| loader.push(record.clone()))
                .and_then(|()| loader.finish(1, info.digest))
        });
    });
    group.finish();
}

criterion_group!(benches, lookups, applies, snapshots);
criterion_main!(benches);
