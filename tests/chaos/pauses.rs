//! SIGSTOP to the leader: it comes back into a cluster that may have gone on without it, and must neither acknowledge
//! what the others don't have nor lead in a term of somebody else.

use crate::cluster::Cluster;
use crate::figures::{Figures, T, chances, is_long, judge, rounds_of};
use crate::load::Load;
use rand::RngExt;
use rustix::process::Signal;
use std::time::{Duration, Instant};

const NODES: usize = 3;
const MEDIAN_BACK: Duration = Duration::from_millis(1_000);
/// Shortest and longest pauses of the default rounds; a long run draws between 0.5 and 20 s.
const DEFAULT_MS: [(u64, u64); 3] = [(500, 900), (2_500, 4_000), (7_000, 10_000)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_leader_comes_back_as_one_of_many() {
    let (seed, mut chances) = chances("6 leader SIGSTOP");
    let mut cluster = Cluster::new(NODES as u32, &[]);
    cluster.start_all();
    cluster.settle().await;
    let load = Load::start(&cluster);
    let (mut back, mut gaps, mut deposed) = (Figures::default(), Figures::default(), 0);
    let total = rounds_of(3, 50);
    for n in 0..total {
        load.flows(&[0, 1, 2], 10, &cluster).await;
        let leader = cluster.leader().await;
        let term = cluster.nodes[leader].status().await.unwrap().term;
        let survivors: Vec<usize> = (0..NODES).filter(|node| *node != leader).collect();
        let (least, most) = if is_long() { (500, 20_000) } else { DEFAULT_MS[n as usize % DEFAULT_MS.len()] };
        let pause = Duration::from_millis(chances.random_range(least..most));
        // Lookups wait with the process; its producer has a call under way all the while.
        load.may_not_answer(leader);
        cluster.nodes[leader].freeze().await;
        let stopped = Instant::now();
        tokio::time::sleep(pause).await;
        let continued = Instant::now();
        cluster.nodes[leader].signal(Signal::CONT);
        assert_eq!(load.producers[leader].acked_within(stopped, continued), 0, "a stopped process answered");
        let took = load.writes_since(&[0, 1, 2], continued, &cluster).await;
        let statuses = cluster.settle().await;
        load.must_answer(leader);
        back.push(took);
        if pause > T * 2 {
            gaps.push(load.longest_gap(&survivors, stopped));
        }
        deposed += u32::from(statuses.iter().all(|status| status.term > term));
        load.watcher.assert_sound();
    }
    let summary = load.finish(&mut cluster).await;
    println!(
        "CHAOS 6 | leader SIGSTOP 0.5 to 20 s | {total} rounds, seed {seed} | {deposed} times another one led after; \
         from SIGCONT to a write on every node {}; write gap on the others of pauses over 2T {} | {summary}",
        back.line(),
        gaps.line()
    );
    assert!(deposed > 0, "no pause was long enough to matter");
    judge("writes after SIGCONT", &back, &[(100.0, T * 3)], MEDIAN_BACK);
}
