//! Three nodes under `prefixd bench`: lookups of 64 blocks in a million entries, reports in the sizes that sidecars send,
//! one report at a time on an idle cluster. Clients share the machine with the nodes, so a rate is that of both; CPU
//! time a lookup is the asked node's alone.

use super::cluster::Cluster;
use super::figures::{Fault, Figures};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const PART: &str = "nodes";
const CONNECTIONS: [u16; 3] = [1, 8, 64];
/// Blocks of an update.
const UPDATES: [u16; 3] = [64, 256, 512];
/// Of each file that the disk is timed by.
const SYNCS: usize = 501;
/// Between two looks at a node under lookups.
const LOOK: Duration = Duration::from_millis(250);
const CALLS: &str = "inferencecache_lookup_route_calls_total";

/// One round.
pub fn measure(figures: &mut Figures) -> Result<(), Fault> {
    let cluster = Cluster::start()?;
    for connections in CONNECTIONS {
        lookups(&cluster, figures, connections)?;
    }
    drop(cluster);
    // Reports begin on empty disks, so that the log is theirs alone.
    for blocks in UPDATES {
        ingest(&Cluster::start()?, figures, blocks)?;
    }
    idle(&Cluster::start()?, figures)
}

fn lookups(cluster: &Cluster, figures: &mut Figures, connections: u16) -> Result<(), Fault> {
    let mut bench = bench(cluster, &["lookup", "--chains=16384", &format!("--connections={connections}")])?;
    let mut looks = Vec::new();
    while bench.try_wait()?.is_none() {
        looks.push((cluster.metric(0, CALLS)?, cluster.cpu(0)?));
        std::thread::sleep(LOOK);
    }
    let spans: Vec<_> = looks.iter().zip(&looks[1..]).map(|(from, to)| (to.0 - from.0, to.1 - from.1)).collect();
    // Before and after the lookups the index is filled and cleared: a span counts if its neighbours had lookups too.
    let within = spans.windows(3).filter(|three| three.iter().all(|(calls, _)| *calls > 0.0)).map(|three| three[1]);
    let (calls, cpu) = within.fold((0.0, Duration::ZERO), |sum, span| (sum.0 + span.0, sum.1 + span.1));
    let shown = outcome(bench)?;
    let lookup = &shown["lookup"];
    let name = |what: &str| format!("lookup, {connections} connections, {what}");
    figures.add(PART, &name("rate"), number(&lookup["calls_per_s"])?, "/s");
    figures.add(PART, &name("by CPU time of the node"), calls / cpu.as_secs_f64(), "/CPU-s");
    latencies(figures, &name(""), &lookup["latency_us"])
}

fn ingest(cluster: &Cluster, figures: &mut Figures, blocks: u16) -> Result<(), Fault> {
    let kind = ["ingest".to_owned(), format!("--blocks={blocks}")];
    let mut rate = 0.0;
    for updates in [1, 8] {
        let shown = outcome(bench(cluster, &[&kind[..], &[format!("--updates={updates}")]].concat())?)?;
        let name = |what: &str| format!("8 streams, {updates} updates of {blocks} blocks each, {what}");
        rate = number(&shown["report"]["blocks_per_s"])?.max(rate);
        figures.add(PART, &name("acknowledged"), number(&shown["report"]["blocks_per_s"])?, "blocks/s");
        latencies(figures, &name(""), &shown["report"]["latency_us"])?;
    }
    let half = format!("--block-rate={:.0}", rate / 2.0);
    let shown = outcome(bench(cluster, &[&kind[..], &[half]].concat())?)?;
    latencies(figures, &format!("updates of {blocks} blocks at half of that, "), &shown["report"]["latency_us"])
}

/// One stream with one update at a time, beside what the same disk takes for an fdatasync: alone, and as it is when three
/// nodes share it, each with a sync of its own for every update.
fn idle(cluster: &Cluster, figures: &mut Figures) -> Result<(), Fault> {
    let shown = outcome(bench(cluster, &["ingest", "--streams=1", "--blocks=64"])?)?;
    let acknowledged = number(&shown["report"]["latency_us"]["p50"])?;
    figures.add(PART, "one update at a time on an idle cluster, p50", acknowledged, "us");
    for (files, of) in [(1, "4 KiB on the same disk"), (3, "4 KiB of three files at a time on the same disk")] {
        let sync = fdatasync_us(cluster, files)?;
        figures.add(PART, &format!("fdatasync of {of}, p50"), sync, "us");
        figures.add(PART, &format!("one update at a time, in fdatasyncs of {of}"), acknowledged / sync, "");
    }
    Ok(())
}

/// The median of so many files' syncs, begun at the same moment.
fn fdatasync_us(cluster: &Cluster, files: usize) -> Result<f64, Fault> {
    let start = Barrier::new(files);
    let synced = |n: usize| -> Result<Vec<f64>, std::io::Error> {
        let opened = File::create(cluster.dir().join(format!("sync{n}")));
        (0..SYNCS)
            .map(|_| {
                // Who can't go on still takes its turn, for the others wait for it.
                start.wait();
                let mut file = opened.as_ref().map_err(|error| std::io::Error::from(error.kind()))?;
                file.write_all(&[7; 4_096])?;
                let began = Instant::now();
                file.sync_data()?;
                Ok(began.elapsed().as_secs_f64() * 1e6)
            })
            .collect::<Vec<_>>()
            .into_iter()
            .collect()
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let synced = &synced;
        let threads: Vec<_> = (0..files).map(|n| scope.spawn(move || synced(n))).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut took = Vec::new();
    for one in all {
        took.extend(one.map_err(|_| "a thread that syncs panicked")??);
    }
    took.sort_by(f64::total_cmp);
    Ok(took[took.len() / 2])
}

fn bench<A: AsRef<std::ffi::OsStr>>(cluster: &Cluster, arguments: &[A]) -> Result<Child, Fault> {
    let bench = Command::new(env!("CARGO_BIN_EXE_prefixd"))
        .arg("bench")
        .args(arguments)
        .args(["--json", "--seconds=6"])
        .arg(format!("--server={}", cluster.grpc(0)))
        .stdout(Stdio::piped())
        .spawn()?;
    Ok(bench)
}

fn outcome(bench: Child) -> Result<Value, Fault> {
    let output = bench.wait_with_output()?;
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout)?),
        false => Err(format!("prefixd bench ended with {}", output.status).into()),
    }
}

fn latencies(figures: &mut Figures, name: &str, latency_us: &Value) -> Result<(), Fault> {
    for quantile in ["p50", "p99", "p99.9"] {
        figures.add(PART, &format!("{name}{quantile}"), number(&latency_us[quantile])?, "us");
    }
    Ok(())
}

fn number(value: &Value) -> Result<f64, Fault> {
    value.as_f64().ok_or_else(|| format!("no number: {value}").into())
}
