//! The memory of a node under steady turnover at the cap: `prefixd serve` as a process of its own, new chains at a fixed
//! rate, each in the place of an old one, lookups beside them; the process's resident memory is sampled all the while.
//! The run stands for 30 minutes. PREFIXD_BENCH_SPEEDUP divides it and every period of the node alike (time to live,
//! sweeps, sessions, snapshots by log entries), so that each happens as often. Before it the node turns over as fast as it
//! can until its bounded caches are full: the log's tail, the store's pages, what snapshots need. Flat means: the last
//! tenth is within 5% of the second; else the run fails.

use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use prefixd_proto::inferencecache::{CacheStateUpdate, LookupRouteRequest, PrefixEntry};
use serde_json::json;
use served::{Fault, Served};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::transport::Channel;

mod metrics;
mod served;

const MINUTES: f64 = 30.0;
const CAP: u64 = 200_000;
const BLOCKS: u64 = 50;
const BLOCK_TOKENS: i32 = 16;
/// Chains of one update, which is one call.
const CHAINS: u64 = 20;
/// Calls a second: 10,000 new entries, so that all entries are new after 20 seconds.
const CALLS: u32 = 10;
const LOOKUPS: u32 = 100;
const REPLICAS: u64 = 64;
/// Tenants come and go too: each has so many calls.
const TENANT_CALLS: u64 = 500;
/// The last tenth may differ from the second by this part of it.
const MAX_DRIFT: f64 = 0.05;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Snapshots, by log entries, that are taken before the run.
const WARM_SNAPSHOTS: u64 = 4;

fn start(dir: &Path, speedup: f64) -> Result<Served, Fault> {
    let seconds = |seconds: f64| format!("{}ms", (seconds * 1_000.0 / speedup) as u64);
    let flags = [
        format!("--max-index-entries={CAP}"),
        format!("--default-ttl={}", seconds(1_800.0)),
        format!("--sweep-interval={}", seconds(60.0)),
        format!("--audit-interval={}", seconds(60.0)),
        // An hour by default; the shortest that is allowed is a minute.
        format!("--session-ttl={}s", (3_600.0 / speedup).max(60.0) as u64),
        format!("--snapshot-log-entries={}", log_entries(speedup)),
        "--keep-log-entries=500".into(),
    ];
    Served::start(dir, &flags)
}

fn series(served: &Served, name: &str) -> Result<f64, Fault> {
    metrics::sum(&served.url("http", "/metrics")?, name)
}

/// Log entries between two snapshots.
fn log_entries(speedup: f64) -> u64 {
    ((5_000.0 / speedup) as u64).max(100)
}

/// Every second call is an LFU tenant's; the others' tenants come and go.
fn tenant(call: u64) -> String {
    if call.is_multiple_of(2) { "lfu".to_owned() } else { format!("tenant-{}", call / TENANT_CALLS) }
}

fn hashes(chain: u64) -> Vec<bytes::Bytes> {
    let hash = |block: u64| (chain * BLOCKS + block).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    (0..BLOCKS).map(|block| bytes::Bytes::copy_from_slice(&hash(block))).collect()
}

fn update(call: u64) -> CacheStateUpdate {
    let entry = |chain| PrefixEntry {
        block_hashes: hashes(chain),
        block_token_counts: vec![BLOCK_TOKENS; BLOCKS as usize],
        ..Default::default()
    };
    CacheStateUpdate {
        replica_id: format!("replica-{}", call / 2 % REPLICAS),
        model_id: "model".into(),
        tenant_id: tenant(call),
        hash_scheme: "vllm".into(),
        prefixes: (call * CHAINS..(call + 1) * CHAINS).map(entry).collect(),
        ..Default::default()
    }
}

fn lookup(call: u64) -> LookupRouteRequest {
    LookupRouteRequest {
        model_id: "model".into(),
        tenant_id: tenant(call),
        hash_scheme: "vllm".into(),
        block_hashes: hashes(call * CHAINS),
        block_token_counts: vec![BLOCK_TOKENS; BLOCKS as usize],
        ..Default::default()
    }
}

/// Asks for recent chains until told to stop; returns how many answers had scores.
async fn ask(
    mut client: InferenceCacheClient<Channel>,
    calls: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Result<u64, Fault> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / LOOKUPS);
    let (mut matches, mut asked) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        asked += 1;
        // Of the last 64 calls a few, so that access counts have something to tell apart.
        let back = asked * 7 % 64 / 8 * 8;
        let answer = client.lookup_route(lookup(calls.load(Ordering::Relaxed).saturating_sub(1 + back))).await?;
        matches += u64::from(!answer.into_inner().replica_scores.is_empty());
    }
    Ok(matches)
}

async fn bench(speedup: f64) -> Result<(), Fault> {
    let dir = tempfile::tempdir()?;
    println!("environment: {}", served::environment());
    let served = start(dir.path(), speedup)?;
    let policy = json!({"version": 7, "policies": [{"namespace": "lfu", "eviction": "lfu"}]});
    ureq::post(&served.url("internal", "/policy")?).send(policy.to_string())?;
    let mut client = served.client().await?;
    let calls = Arc::new(AtomicU64::new(0));
    let mut report = async || -> Result<(), Fault> {
        let call = calls.load(Ordering::Relaxed);
        client.report_cache_state(tokio_stream::once(update(call))).await?;
        calls.store(call + 1, Ordering::Relaxed);
        Ok(())
    };
    // To the cap and a while beyond: the run is about what comes after.
    while series(&served, "prefixd_raft_purged_index")? < (WARM_SNAPSHOTS * log_entries(speedup)) as f64 {
        for _ in 0..CAP / (CHAINS * BLOCKS) {
            report().await?;
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    let asking = tokio::spawn(ask(served.client().await?, Arc::clone(&calls), Arc::clone(&stop)));
    let (began, length) = (Instant::now(), Duration::from_secs_f64(MINUTES * 60.0 / speedup));
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / CALLS);
    let mut tenths = [(0u64, 0u64); 10];
    let mut sampled = began;
    while began.elapsed() < length {
        ticks.tick().await;
        report().await?;
        if sampled.elapsed() >= SAMPLE_INTERVAL {
            sampled = Instant::now();
            let tenth = (began.elapsed().as_secs_f64() / length.as_secs_f64() * 10.0) as usize;
            if let Some((sum, samples)) = tenths.get_mut(tenth) {
                (*sum, *samples) = (*sum + served.memory_bytes("VmRSS")?, *samples + 1);
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let matches = asking.await??;
    let mib = tenths.map(|(sum, samples)| sum as f64 / samples.max(1) as f64 / f64::from(1 << 20));
    let drift = mib[9] / mib[1] - 1.0;
    println!(
        "{MINUTES} minutes in {:.0} s: {} entries reported, {} evicted by the cap, {} there, {matches} lookups matched",
        began.elapsed().as_secs_f64(),
        calls.load(Ordering::Relaxed) * CHAINS * BLOCKS,
        series(&served, "inferencecache_index_evictions_total")?,
        series(&served, "prefixd_index_entries")?,
    );
    println!("resident MiB by tenths: {}", mib.map(|mib| format!("{mib:.1}")).join(" "));
    println!("the last tenth is {:+.2}% of the second", drift * 100.0);
    if drift.abs() > MAX_DRIFT { Err("memory is not flat".into()) } else { Ok(()) }
}

fn main() -> Result<(), Fault> {
    let speedup = std::env::var("PREFIXD_BENCH_SPEEDUP").ok().map(|text| text.parse()).transpose()?.unwrap_or(1.0);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(bench(speedup))
}
