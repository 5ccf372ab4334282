//! Disks that stand still: no error, no end, as of a network volume whose server is away. Under the leader alone it costs
//! nobody anything; under a deposed leader it costs that node alone; under a quorum nothing is acknowledged until one of
//! them goes on. Lookups are answered by all nodes throughout, and each node says what it waits for.

use crate::cluster::{Cluster, PATIENCE};
use crate::controller::series;
use crate::figures::{Figures, T, chances, is_long, judge, rounds_of};
use crate::load::Load;
use crate::members::ctl;
use crate::shim::{StillDisk, library};
use rand::RngExt;
use std::time::{Duration, Instant};

const NODES: usize = 3;
/// On a machine at a load of ten.
const MEDIAN: Duration = Duration::from_millis(500);
const STANDS: &str = "the disk stands still";
const GOES_ON: &str = "the disk goes on";

/// Waits until this node says that its disk has stood for so long.
async fn stands_for(cluster: &Cluster, node: usize, long: Duration) {
    let began = Instant::now();
    while series(&cluster.nodes[node].host, "prefixd_storage_log_write_pending_seconds").await < long.as_secs_f64() {
        assert!(began.elapsed() < PATIENCE, "n{node} says nothing of its disk\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn said(cluster: &Cluster, node: usize, words: &str) -> usize {
    cluster.nodes[node].log().matches(words).count()
}

/// Waits until this node's log says that its disk goes on, as often as it said that it stood still.
async fn stands_no_more(cluster: &Cluster, node: usize) {
    let began = Instant::now();
    while said(cluster, node, STANDS) != said(cluster, node, GOES_ON) {
        assert!(began.elapsed() < PATIENCE, "n{node}'s disk never goes on\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until this node's log has said so more often than before.
async fn says_again(cluster: &Cluster, node: usize, words: &str, before: usize) {
    let began = Instant::now();
    while said(cluster, node, words) <= before {
        assert!(began.elapsed() < PATIENCE, "n{node} never says {words:?}\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Has this node take leadership over, again and again until it is done: the machine's own disk may stand for a while, too, and
/// then the others don't answer and it is refused.
async fn hands_over(cluster: &Cluster, to: usize) {
    let began = Instant::now();
    loop {
        let said = ctl(cluster, to, &["transfer-leader", "--to", &format!("n{to}")]).await;
        if said.is_ok {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "n{to} never takes over: {}\n{}", said.err, cluster.logs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_stands_still_costs_its_node_alone() {
    let Some(library) = library() else { return };
    let (seed, mut chances) = chances("15 disks that stand still");
    let mut cluster = Cluster::new(NODES as u32, &[]);
    let disks: Vec<StillDisk> =
        cluster.nodes.iter_mut().map(|node| StillDisk::under(node, library, "log.redb")).collect();
    cluster.start_all();
    cluster.settle().await;
    let load = Load::start(&cluster);
    let (mut gaps, mut back, mut quiet) = (Figures::default(), Figures::default(), Figures::default());
    let mut kept = 0;
    let total = rounds_of(1, 20);
    for _ in 0..total {
        load.flows(&[0, 1, 2], 10, &cluster).await;
        let leader = cluster.leader().await;
        let (told, over) = (said(&cluster, leader, STANDS), said(&cluster, leader, GOES_ON));
        let stood = Instant::now();
        disks[leader].stop();
        stands_for(&cluster, leader, T).await;
        // The others are a quorum, and the leader's heartbeats need no disk.
        gaps.push(load.longest_gap(&[0, 1, 2], stood));
        let next = (leader + 1 + chances.random_range(0..NODES - 1)) % NODES;
        let (id, heard) = (cluster.nodes[leader].status().await.unwrap().node_id, cluster.nodes[next].status().await);
        kept += u32::from(heard.unwrap().leader == Some(id));

        // Now it has a vote to save, and can say nothing to anybody until it has.
        let others: Vec<usize> = (0..NODES).filter(|node| *node != leader).collect();
        let deposed = Instant::now();
        hands_over(&cluster, next).await;
        load.writes_since(&others, deposed, &cluster).await;
        cluster.wait_for(next, "leadership", |status| status.role == "leader").await;
        let released = Instant::now();
        disks[leader].go_on();
        back.push(load.writes_since(&[0, 1, 2], released, &cluster).await);
        cluster.settle().await;
        says_again(&cluster, leader, STANDS, told).await;
        says_again(&cluster, leader, GOES_ON, over).await;

        // Of a quorum. What was under way is through once both have stood for T.
        let one = chances.random_range(0..NODES);
        for node in (0..NODES).filter(|node| *node != one) {
            disks[node].stop();
        }
        for node in (0..NODES).filter(|node| *node != one) {
            stands_for(&cluster, node, T).await;
        }
        let still = Instant::now();
        tokio::time::sleep(T).await;
        let released = Instant::now();
        let acked: usize = load.producers.iter().map(|producer| producer.acked_within(still, released)).sum();
        assert_eq!(acked, 0, "acknowledged without a quorum of disks\n{}", cluster.logs());
        disks.iter().for_each(StillDisk::go_on);
        quiet.push(load.writes_since(&[0, 1, 2], released, &cluster).await);
        for node in (0..NODES).filter(|node| *node != one) {
            stands_no_more(&cluster, node).await;
        }
        cluster.settle().await;
        load.watcher.assert_sound();
    }
    let summary = load.finish(&mut cluster).await;
    println!(
        "CHAOS 15 | disks that stand still under the leader, a deposed leader, a quorum | {total} rounds, seed {seed} | \
         {kept} leaders kept their place; longest time without a write on any node while the leader's stood {}; a deposed \
         leader writes again after its disk goes on {}; without a quorum of disks 0 acknowledged, writes on every node \
         after {} | {summary}",
        gaps.line(),
        back.line(),
        quiet.line()
    );
    assert!(!is_long() || kept * 10 >= total * 9, "{kept} of {total} leaders kept their place");
    judge("writes while the leader's disk stands", &gaps, &[(100.0, T)], MEDIAN);
    judge("a deposed leader's disk goes on", &back, &[(100.0, T * 3)], MEDIAN);
    judge("a quorum of disks goes on", &quiet, &[(100.0, T * 3)], MEDIAN);
}
