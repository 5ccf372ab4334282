//! A follower that was away until the log it needs was purged: it comes back by a snapshot, under load, and the leader
//! hardly notices.

use crate::cluster::Cluster;
use crate::figures::{Figures, chances, is_long, rounds_of};
use crate::load::Load;
use prefixd_proto::inferencecache::{CacheStateUpdate, PrefixEntry};
use std::time::{Duration, Instant};

const NODES: usize = 3;
/// Entries of one update, and updates of one call, of the filling.
const FILL_BLOCKS: u64 = 500;
const FILL_UPDATES: u64 = 10;
/// By how much the leader's memory may grow meanwhile.
const MEMORY_LIMIT_BYTES: u64 = 64 << 20;

/// Puts so many entries into the index that a snapshot is worth its name.
async fn fill(cluster: &Cluster, entries: u64) {
    let mut client = cluster.nodes[0].client();
    for first in (0..entries / FILL_BLOCKS).step_by(FILL_UPDATES as usize) {
        let updates = (first..first + FILL_UPDATES).map(|chain| CacheStateUpdate {
            replica_id: "replica".into(),
            model_id: "model".into(),
            tenant_id: "fill".into(),
            hash_scheme: "vllm".into(),
            prefixes: vec![PrefixEntry {
                block_hashes: (0..FILL_BLOCKS).map(|block| format!("fill/{chain}/{block}").into()).collect(),
                block_token_counts: vec![16; FILL_BLOCKS as usize],
                ..Default::default()
            }],
            ..Default::default()
        });
        let (updates, began) = (updates.collect::<Vec<_>>(), Instant::now());
        // A busy machine may cost the cluster its leader for a moment; repeating a report is harmless.
        while let Err(status) = client.report_cache_state(tokio_stream::iter(updates.clone())).await {
            assert!(began.elapsed() < crate::cluster::PATIENCE, "{status}\n{}", cluster.logs());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_behind_the_purge_point_comes_back_by_snapshot() {
    let (seed, _) = chances("8 behind the purge point");
    let mut cluster = Cluster::new(NODES as u32, &["--snapshot-log-entries=100", "--keep-log-entries=20"]);
    cluster.start_all();
    cluster.settle().await;
    fill(&cluster, if is_long() { 200_000 } else { 20_000 }).await;
    let load = Load::start(&cluster);
    let (mut calm, mut busy, mut back, mut grown) = (Figures::default(), Figures::default(), Figures::default(), 0);
    let total = rounds_of(2, 20);
    for _ in 0..total {
        load.flows(&[0, 1, 2], 20, &cluster).await;
        let leader = cluster.leader().await;
        let victim = (leader + 1) % NODES;
        load.down(victim);
        let last = cluster.nodes[victim].status().await.unwrap().last_log_index;
        let quiet_since = Instant::now();
        cluster.nodes[victim].kill();
        cluster.wait_for(leader, "a log purged beyond the follower", |s| s.purged_index > last + 20).await;
        let started = Instant::now();
        calm.extend(load.producers[leader].latencies(quiet_since, started).all());
        let before = cluster.nodes[leader].resident_bytes();
        let mut most = before;
        cluster.nodes[victim].start();
        let returned = loop {
            most = most.max(cluster.nodes[leader].resident_bytes());
            let status = cluster.nodes[victim].status().await;
            if let Some(status) = status.filter(|status| status.ready && status.applied_index > last) {
                break status;
            }
            assert!(started.elapsed() < crate::cluster::PATIENCE, "it does not come back\n{}", cluster.logs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(returned.snapshot_index > last, "it did not come by a snapshot: {returned:?}");
        back.push(started.elapsed());
        load.up(victim);
        load.flows(&[leader], 10, &cluster).await;
        busy.extend(load.producers[leader].latencies(started, Instant::now()).all());
        grown = grown.max(most - before);
        cluster.assert_digests_equal().await;
    }
    let summary = load.finish(&mut cluster).await;
    println!(
        "CHAOS 8 | follower behind the purge point rejoins under load | {total} rounds, seed {seed} | back {}; the \
         leader's writes: calm {}; meanwhile {}; its memory grew by {:.1} MiB at most | {summary}",
        back.line(),
        calm.line(),
        busy.line(),
        grown as f64 / f64::from(1 << 20)
    );
    assert!(grown <= MEMORY_LIMIT_BYTES, "the leader grew by {grown} bytes");
    if is_long() {
        let (calm, busy) = (calm.percentile(99.0), busy.percentile(99.0));
        assert!(busy <= calm * 2, "p99 of the leader's writes went from {calm:?} to {busy:?}");
    }
}
