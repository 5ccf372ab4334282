//! SIGKILL to the leader, and to all nodes, under traffic on every node.

use crate::cluster::Cluster;
use crate::figures::{Figures, T, chances, is_long, judge, rounds_of};
use crate::load::Load;
use rand::RngExt;
use std::time::{Duration, Instant};

const NODES: usize = 3;
/// Small, so that snapshots and purges happen in the midst of it.
const FLAGS: [&str; 2] = ["--snapshot-log-entries=400", "--keep-log-entries=100"];
/// Measured in docs/RELIABILITY.md.
const MEDIAN_WRITE_GAP: Duration = Duration::from_millis(2_000);
const MEDIAN_SERVING: Duration = Duration::from_millis(2_500);

async fn settled() -> Cluster {
    let mut cluster = Cluster::new(NODES as u32, &FLAGS);
    cluster.start_all();
    cluster.settle().await;
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leaders_cost_a_pause_in_writes_and_nothing_else() {
    let (seed, mut chances) = chances("1 leader SIGKILL");
    let mut cluster = settled().await;
    let load = Load::start(&cluster);
    let (mut gaps, mut calm, mut stormy) = (Figures::default(), Figures::default(), Figures::default());
    let total = rounds_of(5, 200);
    for _ in 0..total {
        let quiet_since = Instant::now();
        load.flows(&[0, 1, 2], 20, &cluster).await;
        tokio::time::sleep(Duration::from_millis(chances.random_range(500..1_500))).await;
        let leader = cluster.leader().await;
        let term = cluster.nodes[leader].status().await.unwrap().term;
        let survivors: Vec<usize> = (0..NODES).filter(|node| *node != leader).collect();
        load.down(leader);
        let killed = Instant::now();
        calm.extend(load.lookups(&survivors, quiet_since, killed));
        cluster.nodes[leader].kill();
        load.writes_since(&survivors, killed, &cluster).await;
        load.flows(&survivors, 5, &cluster).await;
        gaps.push(load.longest_gap(&survivors, killed));
        stormy.extend(load.lookups(&survivors, killed, Instant::now()));
        let next = cluster.settle().await;
        assert!(next.iter().all(|status| status.term > term), "no other leader was elected: {next:?}");
        cluster.nodes[leader].start();
        cluster.settle().await;
        load.up(leader);
    }
    let summary = load.finish(&mut cluster).await;
    println!(
        "CHAOS 1 | leader SIGKILL | {total} rounds, seed {seed} | write gap {}; lookups on survivors: calm {}; while \
         the leader was gone {} | {summary}",
        gaps.line(),
        calm.line(),
        stormy.line()
    );
    judge("write gap", &gaps, &[(50.0, T * 2 + Duration::from_millis(200)), (99.0, T * 4)], MEDIAN_WRITE_GAP);
    if is_long() {
        let (calm, stormy) = (calm.percentile(99.0), stormy.percentile(99.0));
        assert!(stormy <= calm * 2, "p99 of lookups on survivors went from {calm:?} to {stormy:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_all_nodes_are_killed() {
    let (seed, mut chances) = chances("2 all SIGKILL");
    let mut cluster = settled().await;
    let load = Load::start(&cluster);
    let (mut serving, mut ready) = (Figures::default(), Figures::default());
    let total = rounds_of(3, 50);
    for _ in 0..total {
        load.flows(&[0, 1, 2], 20, &cluster).await;
        // A follower first: it comes back behind the others, and is killed again with them.
        let follower = (cluster.leader().await + 1) % NODES;
        load.down(follower);
        cluster.nodes[follower].kill();
        load.flows(&[(follower + 1) % NODES], 5, &cluster).await;
        cluster.nodes[follower].start();
        cluster.settle().await;
        load.up(follower);
        tokio::time::sleep(Duration::from_millis(chances.random_range(0..500))).await;
        (0..NODES).for_each(|node| load.down(node));
        cluster.kill_all();
        let started = Instant::now();
        cluster.start_all();
        (0..NODES).for_each(|node| load.writes_again(node));
        serving.push(load.writes_since(&[0, 1, 2], started, &cluster).await);
        cluster.settle().await;
        ready.push(started.elapsed());
        (0..NODES).for_each(|node| load.must_answer(node));
    }
    let summary = load.finish(&mut cluster).await;
    println!(
        "CHAOS 2 | all nodes SIGKILL | {total} rounds, seed {seed} | from start to a write on every node {}; to all \
         ready {} | {summary}",
        serving.line(),
        ready.line()
    );
    judge("serving again", &serving, &[(100.0, Duration::from_secs(10))], MEDIAN_SERVING);
}
