//! Power loss: all nodes are killed at once, and whatever was written and not fsynced is gone, or in part, sector by
//! sector. That the same test fails when fsync does nothing is a test of its own.

use crate::cluster::{Cluster, PATIENCE};
use crate::figures::{Figures, chances, rounds_of};
use crate::load::Load;
use crate::oracle::Producer;
use crate::shim::{ForgetfulDisk, Loss, library};
use rand::RngExt;
use rand::rngs::StdRng;
use std::path::Path;
use std::time::{Duration, Instant};

const NODES: usize = 3;
const FLAGS: [&str; 2] = ["--snapshot-log-entries=300", "--keep-log-entries=50"];

/// A cluster on disks that forget. `fsync` is what the library is told of it.
fn cluster(library: &Path, fsync: &str) -> (Cluster, Vec<ForgetfulDisk>) {
    let mut cluster = Cluster::new(NODES as u32, &FLAGS);
    let disks = cluster.nodes.iter_mut().map(|node| {
        let disk = ForgetfulDisk::under(node, library);
        node.env.push(("PREFIXD_SHIM_FSYNC".into(), fsync.into()));
        disk
    });
    let disks = disks.collect();
    (cluster, disks)
}

/// Returns (writes, changed names) that were taken.
fn lose_power(cluster: &mut Cluster, disks: &[ForgetfulDisk], loss: Loss, chances: &mut StdRng) -> (usize, usize) {
    cluster.kill_all();
    let taken: Vec<_> = disks.iter().map(|disk| disk.lose(loss, chances)).collect();
    (taken.iter().map(|taken| taken.writes).sum(), taken.iter().map(|taken| taken.names).sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_loss_takes_nothing_that_was_acknowledged() {
    let Some(library) = library() else { return };
    let (seed, mut chances) = chances("3 power loss");
    let (mut cluster, disks) = cluster(library, "honest");
    cluster.start_all();
    cluster.settle().await;
    let load = Load::start(&cluster);
    let (mut serving, mut writes, mut names) = (Figures::default(), 0, 0);
    let total = rounds_of(3, 50);
    for n in 0..total {
        load.flows(&[0, 1, 2], 30, &cluster).await;
        tokio::time::sleep(Duration::from_millis(chances.random_range(0..700))).await;
        (0..NODES).for_each(|node| load.down(node));
        let loss = if n % 2 == 0 { Loss::Some } else { Loss::All };
        let (lost_writes, lost_names) = lose_power(&mut cluster, &disks, loss, &mut chances);
        (writes, names) = (writes + lost_writes, names + lost_names);
        let started = Instant::now();
        cluster.start_all();
        (0..NODES).for_each(|node| load.writes_again(node));
        serving.push(load.writes_since(&[0, 1, 2], started, &cluster).await);
        cluster.settle().await;
        (0..NODES).for_each(|node| load.must_answer(node));
        load.watcher.assert_sound();
    }
    assert!(writes > 0, "no write was taken: the power was never lost in the midst of one");
    let summary = load.finish(&mut cluster).await;
    println!(
        "CHAOS 3 | power loss on all nodes, unsynced writes dropped (whole, or by sector) | {total} rounds, seed {seed} \
         | 0 lost; {writes} writes and {names} changes of directories taken; from start to a write on every node {} | \
         {summary}",
        serving.line()
    );
}

/// One round of the same with an fsync that lies. Returns what the oracle finds lost, or that nodes refuse to start.
async fn round_without_fsync(library: &Path, fsync: &str) -> Vec<String> {
    let (_, mut chances) = chances("3 without fsync");
    let (mut cluster, disks) = cluster(library, fsync);
    cluster.start_all();
    cluster.settle().await;
    let producer = Producer::new(0);
    let mut client = cluster.nodes[0].client();
    let began = Instant::now();
    while producer.known() < 50 {
        let chain = producer.known() as u64;
        if let Err(status) = producer.report(&mut client, chain).await {
            // An election may come between.
            assert!(began.elapsed() < PATIENCE, "{status}\n{}", cluster.logs());
        }
    }
    lose_power(&mut cluster, &disks, Loss::All, &mut chances);
    cluster.start_all();
    let began = Instant::now();
    loop {
        let refusing = cluster.nodes.iter_mut().filter_map(|node| node.ended().map(|_| node.log()));
        let refusing: Vec<String> = refusing.collect();
        if !refusing.is_empty() {
            return refusing;
        }
        let mut ready = 0;
        for node in &cluster.nodes {
            ready += usize::from(node.status().await.is_some_and(|status| status.ready));
        }
        if ready == NODES {
            return producer.lost(&cluster).await;
        }
        assert!(began.elapsed() < PATIENCE, "neither served nor refused\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_fsync_the_loss_is_seen() {
    let Some(library) = library() else { return };
    let lost = round_without_fsync(library, "ignored").await;
    assert!(lost.iter().any(|what| what.contains("is Present, but")), "disks without any fsync lost nothing: {lost:?}");
    println!(
        "CHAOS 3 | the same without any fsync | 1 round | found: {} and more",
        lost[0].chars().take(60).collect::<String>()
    );
    let refused = round_without_fsync(library, "ignored:log.redb").await;
    let by_name = refused.iter().find_map(|log| log.lines().rfind(|line| line.contains("log.redb")));
    let by_name = by_name.unwrap_or_else(|| panic!("a log that was never synced was taken: {refused:?}"));
    println!("CHAOS 3 | the same without the log's fsync | 1 round | refused: {by_name}");
}
