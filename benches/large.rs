//! Ten million entries on one node, through the real path: `prefixd serve` is filled over gRPC, writes a snapshot while
//! small reports keep coming, and is started anew from it. It prints what the snapshot takes (time, memory, bytes on
//! disk) and what it does to the reports beside it, and how fast the node comes back.
//! PREFIXD_BENCH_ENTRIES asks for another size. How long the walk of the index stopped apply is told by the node's own log,
//! which is let through.
//!
//! The set: chains of 64 blocks of 16 tokens with random 8-byte hashes on 64 replicas; the first 32 blocks of 16 chains in a
//! row are the same, on another replica each.

use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use prefixd_proto::inferencecache::{CacheStateUpdate, PrefixEntry};
use served::{Fault, Served};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tonic::transport::Channel;

mod served;

const ENTRIES: u64 = 10_000_000;
const REPLICAS: u64 = 64;
const BLOCKS: u64 = 64;
const FAMILY: u64 = 16;
const BLOCK_TOKENS: i32 = 16;
/// Chains of one call while the index is filled.
const FILL_CHAINS: u64 = 1_024;
/// Log entries that bring about a snapshot: more than the fill makes, fewer than the small reports do.
const SNAPSHOT_LOG_ENTRIES: u64 = 4_000;
/// Small reports without a snapshot, to compare with.
const QUIET_REPORTS: u64 = 1_500;
const PATIENCE: Duration = Duration::from_secs(300);

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

fn chain(number: u64, blocks: u64) -> CacheStateUpdate {
    let hash = |block: u64| {
        let owner = if block < blocks / 2 { number / FAMILY * 2 } else { number * 2 + 1 };
        bytes::Bytes::copy_from_slice(&mix(mix(owner.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ block).to_be_bytes())
    };
    CacheStateUpdate {
        replica_id: format!("replica-{}", number % REPLICAS),
        tenant_id: "large".into(),
        model_id: "model".into(),
        hash_scheme: "bench".into(),
        prefixes: vec![PrefixEntry {
            block_hashes: (0..blocks).map(hash).collect(),
            block_token_counts: vec![BLOCK_TOKENS; usize::try_from(blocks).unwrap_or(0)],
            ..Default::default()
        }],
        ..Default::default()
    }
}

async fn report(client: &mut InferenceCacheClient<Channel>, updates: Vec<CacheStateUpdate>) -> Result<(), Fault> {
    let ack = client.report_cache_state(tokio_stream::iter(updates)).await?.into_inner();
    if ack.accepted { Ok(()) } else { Err("a report was not accepted".into()) }
}

async fn fill(client: &mut InferenceCacheClient<Channel>, chains: u64) -> Result<(), Fault> {
    let mut next = 0;
    while next < chains {
        let end = chains.min(next + FILL_CHAINS);
        report(client, (next..end).map(|number| chain(number, BLOCKS)).collect()).await?;
        next = end;
    }
    Ok(())
}

/// Small reports one after the other until `done`; how long each took, in microseconds.
async fn trickle(
    client: &mut InferenceCacheClient<Channel>,
    numbers: &mut u64,
    mut done: impl FnMut() -> Result<bool, Fault>,
) -> Result<Vec<u128>, Fault> {
    let mut took = Vec::new();
    while !done()? {
        *numbers += 1;
        let update = chain(*numbers, 2);
        let began = Instant::now();
        report(client, vec![update]).await?;
        took.push(began.elapsed().as_micros());
    }
    took.sort_unstable();
    Ok(took)
}

fn spread(took: &[u128]) -> String {
    let at = |share: usize| took.get((took.len() * share / 1_000).min(took.len().saturating_sub(1)));
    let ms = |share| at(share).map_or(0.0, |us| *us as f64 / 1e3);
    format!("{} reports, p50 {:.2} ms, p99 {:.2} ms, longest {:.2} ms", took.len(), ms(500), ms(990), ms(1_000))
}

/// The finished generations, oldest first.
fn generations(dir: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(dir.join("data/snapshots")).into_iter().flatten().flatten();
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("gen-"));
    let mut found: Vec<PathBuf> = listed.map(|entry| entry.path()).filter(named).collect();
    found.sort();
    found
}

/// Bytes that the file system holds for a file: those of a hole are none.
fn held_bytes(file: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(file) * 512
}

/// Bytes of all files below a directory: as long as they are, and as the file system holds them.
fn disk_bytes(dir: &Path) -> Result<(u64, u64), Fault> {
    let mut sum = (0, 0);
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let (len, held) = match entry.file_type()?.is_dir() {
            true => disk_bytes(&entry.path())?,
            false => entry.metadata().map(|meta| (meta.len(), held_bytes(&meta)))?,
        };
        sum = (sum.0 + len, sum.1 + held);
    }
    Ok(sum)
}

/// Seconds of CPU time that threads of this name have used; all threads for "".
fn cpu_seconds(served: &Served, name: &str) -> Result<f64, Fault> {
    let mut ticks = 0;
    for task in std::fs::read_dir(format!("/proc/{}/task", served.id()))? {
        let stat = std::fs::read_to_string(task?.path().join("stat")).unwrap_or_default();
        let Some((head, fields)) = stat.rsplit_once(')') else { continue };
        if name.is_empty() || head.ends_with(&format!("({name}")) {
            let field = |at: usize| fields.split_whitespace().nth(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
            ticks += field(11) + field(12);
        }
    }
    Ok(ticks as f64 / 100.0)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

async fn measure(dir: &Path, entries: u64) -> Result<(), Fault> {
    let flags = |snapshot_after: u64| {
        vec![
            "--bootstrap=solo".into(),
            "--max-index-entries=0".into(),
            "--default-ttl=24h".into(),
            "--log-level=warn,prefixd_raft::machine=info".into(),
            format!("--snapshot-log-entries={snapshot_after}"),
        ]
    };
    println!("environment: {}", served::environment());
    let node = Served::start(dir, &flags(SNAPSHOT_LOG_ENTRIES))?;
    let empty = node.memory_bytes("VmRSS")?;
    let mut client = node.client().await?;
    let began = Instant::now();
    fill(&mut client, entries.div_ceil(BLOCKS)).await?;
    let took = began.elapsed().as_secs_f64();
    println!("fill: {entries} entries in {took:.1} s, {:.0} blocks/s from one client", entries as f64 / took);
    let log = std::fs::metadata(dir.join("data/log.redb"))?;
    let share = |bytes: u64| bytes as f64 / entries as f64;
    let (held, len) = (share(held_bytes(&log)), share(log.len()));
    println!("log: {held:.2} bytes a block as the file system holds it, {len:.2} as long as the file is");

    let mut number = 1 << 40;
    let mut left = QUIET_REPORTS;
    let quiet = trickle(&mut client, &mut number, || {
        left -= 1;
        Ok(left == 0)
    })
    .await?;
    println!("reports of 2 blocks, no snapshot: {}", spread(&quiet));

    let begun = || std::fs::read_dir(dir.join("data/snapshots")).map(|listed| listed.count() > 0).unwrap_or(false);
    let began = Instant::now();
    trickle(&mut client, &mut number, || match began.elapsed() > PATIENCE {
        true => Err("no snapshot was begun".into()),
        false => Ok(begun()),
    })
    .await?;
    let before = node.memory_bytes("VmRSS")?;
    std::fs::write(format!("/proc/{}/clear_refs", node.id()), "5")?;
    let (all, core) = (cpu_seconds(&node, "")?, cpu_seconds(&node, "prefixd-index")?);
    let began = Instant::now();
    let beside = trickle(&mut client, &mut number, || match began.elapsed() > PATIENCE {
        true => Err("no snapshot was finished".into()),
        false => Ok(!generations(dir).is_empty()),
    })
    .await?;
    let took = began.elapsed().as_secs_f64();
    let peak = node.memory_bytes("VmHWM")?;
    let (all, core) = (cpu_seconds(&node, "")? - all, cpu_seconds(&node, "prefixd-index")? - core);
    println!("snapshot: {took:.1} s; {all:.1} CPU-s of the node, {core:.1} of them the index thread's");
    println!("reports of 2 blocks beside it: {}", spread(&beside));
    let (extra, index) = (peak.saturating_sub(before), before.saturating_sub(empty));
    println!(
        "memory: {:.1} MiB resident before it ({:.1} bytes an entry), peak {:.1} MiB more ({:.1}%)",
        mib(before),
        index as f64 / entries as f64,
        mib(extra),
        extra as f64 / index as f64 * 100.0
    );
    let newest = generations(dir).pop().ok_or("the snapshot is gone")?;
    let (len, held) = disk_bytes(&newest)?;
    println!(
        "on disk: {:.1} MiB, {:.2} bytes an entry ({:.2} as the file system holds it)",
        mib(len),
        len as f64 / entries as f64,
        held as f64 / entries as f64
    );
    drop(node);

    for _ in 0..3 {
        let began = Instant::now();
        let node = Served::start(dir, &flags(1_000_000))?;
        let took = began.elapsed().as_secs_f64();
        let cpu = cpu_seconds(&node, "")?;
        let rate = entries as f64 / took;
        println!("restart: ready after {took:.2} s ({cpu:.2} CPU-s), {rate:.0} entries/s");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let entries = match std::env::var("PREFIXD_BENCH_ENTRIES") {
        Ok(text) => text.parse()?,
        Err(_) => ENTRIES,
    };
    let dir = tempfile::tempdir_in(std::env::var("PREFIXD_BENCH_DIR").unwrap_or_else(|_| "/tmp".into()))?;
    measure(dir.path(), entries).await
}
