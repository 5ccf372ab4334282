//! A backup and a restore of a large index, with the shipped commands: `prefixd serve` is filled over gRPC, `prefixd ctl
//! backup` and `prefixd restore` are timed as whole processes. It prints bytes an entry and seconds, and fails when a
//! backup takes 20 bytes an entry or more, or when 1,000,000 entries take 5 seconds or more to restore.
//! PREFIXD_BENCH_ENTRIES asks for another size.
//!
//! The set: conversations of 8 to 135 blocks of 16 tokens with random 8-byte hashes, each beginning with one of 256
//! system prompts of 8 to 39 blocks; each is reported by one of 64 replicas, turn by turn, so that what comes first in a
//! conversation is refreshed when it goes on.

use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use prefixd_proto::inferencecache::{CacheStateUpdate, PrefixEntry};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use served::{Fault, Served};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};
use tonic::transport::Channel;

mod served;

const ENTRIES: u64 = 1_000_000;
const MAX_BYTES_AN_ENTRY: f64 = 20.0;
const MAX_RESTORE: Duration = Duration::from_secs(5);
const RESTORES: usize = 3;
const REPLICAS: u64 = 64;
const PROMPTS: usize = 256;
const BLOCK_TOKENS: i32 = 16;
/// Blocks that one turn of a conversation adds at most.
const TURN_BLOCKS: usize = 32;

type Blocks = Vec<bytes::Bytes>;

/// Prints one result.
fn say(name: &str, figure: f64, unit: &str) {
    println!("{name:<44} | {figure:>12.2} | {unit}");
}

/// MiB that the process had resident at most, and forgets it.
fn peak_mib(served: &Served) -> Result<f64, Fault> {
    let peak = served.memory_bytes("VmHWM")?;
    std::fs::write(format!("/proc/{}/clear_refs", served.id()), "5")?;
    Ok((peak >> 20) as f64)
}

fn blocks(rng: &mut StdRng, count: usize) -> Blocks {
    (0..count).map(|_| bytes::Bytes::copy_from_slice(&rng.random::<[u8; 8]>())).collect()
}

/// Reports conversations until there are so many entries.
async fn fill(client: &mut InferenceCacheClient<Channel>, entries: u64) -> Result<(), Fault> {
    let mut rng = StdRng::seed_from_u64(4);
    let prompts: Vec<Blocks> = (0..PROMPTS)
        .map(|_| {
            let count = rng.random_range(8..40);
            blocks(&mut rng, count)
        })
        .collect();
    let (mut reported, mut known) = (0, BTreeSet::new());
    while reported < entries {
        // Eight replicas at a time, so that what one reports lies between what others do.
        let mut updates = Vec::new();
        for _ in 0..8 {
            let replica = rng.random_range(0..REPLICAS);
            let prompt = rng.random_range(0..PROMPTS);
            let mut chain = prompts[prompt].clone();
            if known.insert((replica, prompt)) {
                reported += chain.len() as u64;
            }
            for _ in 0..rng.random_range(1..4) {
                let more = rng.random_range(1..=TURN_BLOCKS);
                chain.extend(blocks(&mut rng, more));
                reported += more as u64;
                updates.push(update(replica, prompt, chain.clone()));
            }
        }
        client.report_cache_state(tokio_stream::iter(updates)).await?;
    }
    Ok(())
}

fn update(replica: u64, prompt: usize, chain: Blocks) -> CacheStateUpdate {
    let entry =
        PrefixEntry { block_token_counts: vec![BLOCK_TOKENS; chain.len()], block_hashes: chain, ..Default::default() };
    CacheStateUpdate {
        replica_id: format!("engine-{replica}.llm.svc"),
        model_id: "llama-3-70b".into(),
        tenant_id: format!("tenant-{}", prompt % 8),
        hash_scheme: "vllm".into(),
        prefixes: vec![entry],
        ..Default::default()
    }
}

/// Runs one command to its end and gives what it printed as JSON, and how long it took.
fn timed(arguments: &[&str]) -> Result<(Value, Duration), Fault> {
    let began = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_prefixd")).args(arguments).arg("--json").output()?;
    let took = began.elapsed();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok((serde_json::from_slice(&output.stdout)?, took))
}

async fn bench(entries: u64) -> Result<(), Fault> {
    let dir = tempfile::tempdir()?;
    let text = |name: &str| dir.path().join(name).display().to_string();
    println!("environment: {}", served::environment());
    let served = Served::start(dir.path(), &["--max-index-entries=0".into(), "--default-ttl=24h".into()])?;
    let mut client = served.client().await?;
    let began = Instant::now();
    fill(&mut client, entries).await?;
    say("filled by reports", began.elapsed().as_secs_f64(), "s");
    let (file, admin) = (text("bench.pfbk"), served.addr("node")?.to_owned());
    let before = peak_mib(&served)?;
    let (taken, took) = timed(&["ctl", "--admin", &admin, "backup", &file])?;
    let there = taken["entries"].as_u64().unwrap_or_default();
    let bytes_an_entry = taken["bytes_an_entry"].as_f64().unwrap_or(f64::MAX);
    say("entries", there as f64, "");
    say("size of an entry in the backup", bytes_an_entry, "B");
    say("ctl backup", took.as_secs_f64(), "s");
    say("the node's peak of memory before", before, "MiB");
    say("the node's peak of memory during the backup", peak_mib(&served)?, "MiB");
    drop(served);
    say("backup verify", timed(&["backup", "verify", &file])?.1.as_secs_f64(), "s");
    let mut best = Duration::MAX;
    for round in 0..RESTORES {
        let (restored, took) = timed(&["restore", &file, "--data-dir", &text(&format!("restored-{round}"))])?;
        if restored["digest"] != taken["digest"] {
            return Err("the restored digest is another".into());
        }
        best = best.min(took);
    }
    say(&format!("restore, best of {RESTORES}"), best.as_secs_f64(), "s");
    if bytes_an_entry >= MAX_BYTES_AN_ENTRY {
        return Err(format!("{bytes_an_entry:.2} bytes an entry, at most {MAX_BYTES_AN_ENTRY}").into());
    }
    let allowed = MAX_RESTORE.mul_f64((there as f64 / ENTRIES as f64).max(1.0));
    if best >= allowed { Err(format!("{best:?} to restore, at most {allowed:?}").into()) } else { Ok(()) }
}

fn main() -> Result<(), Fault> {
    let entries = std::env::var("PREFIXD_BENCH_ENTRIES").ok().map(|text| text.parse()).transpose()?.unwrap_or(ENTRIES);
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(bench(entries))
}
