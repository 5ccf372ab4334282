//! Networks that come apart: the leader alone, a follower alone, one direction only, and on and off. Whoever has no
//! quorum acknowledges nothing; lookups are answered everywhere; when it heals, all is as before.

use crate::cluster::Cluster;
use crate::figures::{Figures, T, chances, judge, rounds_of};
use crate::load::Load;
use crate::network::Network;
use rand::RngExt;
use rand::rngs::StdRng;
use std::time::{Duration, Instant};

const NODES: usize = 3;
const MEDIAN_HEALED: Duration = Duration::from_millis(1_500);

#[derive(Copy, Clone, Debug, PartialEq)]
enum Kind {
    /// The leader hears nobody, and nobody hears it.
    LeaderAlone,
    /// The same for a follower.
    FollowerAlone,
    /// Nobody hears the leader.
    LeaderMute,
    /// The leader hears nobody, and all hear it.
    LeaderDeaf,
    /// One node after the other is cut off, for a moment each.
    Flapping,
}

const KINDS: [Kind; 5] = [Kind::LeaderAlone, Kind::FollowerAlone, Kind::LeaderMute, Kind::LeaderDeaf, Kind::Flapping];

fn others(node: usize) -> Vec<usize> {
    (0..NODES).filter(|other| *other != node).collect()
}

/// Cuts node after node off, for 0.2 to 1.5 s each, now both ways, now one.
async fn flap(network: &impl Network, chances: &mut StdRng) {
    for _ in 0..chances.random_range(4..8) {
        let node = chances.random_range(0..NODES);
        match chances.random_range(0..3) {
            0 => others(node).into_iter().for_each(|other| network.cut(node, other)),
            1 => others(node).into_iter().for_each(|other| network.cut(other, node)),
            _ => network.part(&[node]),
        }
        tokio::time::sleep(Duration::from_millis(chances.random_range(200..1_500))).await;
        network.heal();
        tokio::time::sleep(Duration::from_millis(chances.random_range(50..500))).await;
    }
}

/// One fault from its beginning to its end; returns when it was healed, and how long there were no writes on the others.
async fn round(
    kind: Kind,
    cluster: &mut Cluster,
    network: &impl Network,
    load: &Load,
    chances: &mut StdRng,
) -> (Instant, Option<Duration>) {
    let leader = cluster.leader().await;
    let lone = if kind == Kind::FollowerAlone { (leader + 1) % NODES } else { leader };
    let faults = network.faults();
    match kind {
        Kind::LeaderAlone | Kind::FollowerAlone => network.part(&[lone]),
        Kind::LeaderMute => others(lone).into_iter().for_each(|other| network.cut(lone, other)),
        Kind::LeaderDeaf => others(lone).into_iter().for_each(|other| network.cut(other, lone)),
        Kind::Flapping => {
            flap(network, chances).await;
            assert!(network.faults() > faults, "the network never came apart");
            return (Instant::now(), None);
        }
    }
    // What was on its way when the last way was cut may still be acknowledged, so count from a moment later.
    let settled = Instant::now() + Duration::from_millis(100);
    let without_writes = load.writes_since(&others(lone), settled, cluster).await;
    load.flows(&others(lone), 10, cluster).await;
    tokio::time::sleep(Duration::from_millis(chances.random_range(0..3_000))).await;
    let healed = Instant::now();
    let acked = load.producers[lone].acked_within(settled, healed);
    assert_eq!(acked, 0, "{kind:?}: n{lone} acknowledged without a quorum\n{}", cluster.logs());
    assert!(network.faults() > faults, "{kind:?}: nothing was held back");
    network.heal();
    (healed, Some(without_writes))
}

/// The scenario, on any network.
pub async fn come_apart(how: &str, mut cluster: Cluster, network: &impl Network, seed: u64, mut chances: StdRng) {
    cluster.start_all();
    cluster.settle().await;
    let load = Load::start(&cluster);
    let (mut healing, mut ready, total) = (Figures::default(), Figures::default(), rounds_of(5, 100));
    let mut apart = Figures::default();
    for n in 0..total {
        let kind = KINDS[n as usize % KINDS.len()];
        let carried = network.carried_bytes();
        load.flows(&[0, 1, 2], 10, &cluster).await;
        assert!(network.carried_bytes() > carried, "the nodes don't talk through this network");
        let (healed, without_writes) = round(kind, &mut cluster, network, &load, &mut chances).await;
        without_writes.into_iter().for_each(|took| apart.push(took));
        let took = load.writes_since(&[0, 1, 2], healed, &cluster).await;
        cluster.settle().await;
        println!("{kind:?}: without writes {without_writes:?}, writes on all nodes {took:?} after it healed");
        healing.push(took);
        ready.push(healed.elapsed());
        load.watcher.assert_sound();
    }
    let faults = network.faults();
    let summary = load.finish(&mut cluster).await;
    println!(
        "CHAOS 5 | {how}: leader alone, follower alone, leader mute, leader deaf, flapping | {total} rounds, seed \
         {seed} | minority acknowledged 0; from healing to a write on every node {}; to all ready {}; without writes while apart {} | \
         {faults} faults; {summary}",
        healing.line(),
        ready.line(),
        apart.line()
    );
    judge("healed", &healing, &[(100.0, T * 3)], MEDIAN_HEALED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_acknowledges_nothing_and_what_comes_apart_heals() {
    let (seed, chances) = chances("5 partitions");
    let (cluster, proxy) = Cluster::proxied(NODES as u32, &[], seed);
    come_apart("partitions", cluster, &proxy, seed, chances).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_and_lossy_links_cost_time_and_nothing_else() {
    let (seed, mut chances) = chances("5 slow and lossy links");
    let (mut cluster, proxy) = Cluster::proxied(NODES as u32, &[], seed);
    cluster.start_all();
    cluster.settle().await;
    let load = Load::start(&cluster);
    let (total, mut delayed) = (rounds_of(2, 20), Figures::default());
    for _ in 0..total {
        load.flows(&[0, 1, 2], 10, &cluster).await;
        let delay = Duration::from_millis(chances.random_range(5..60));
        proxy.set_all(|way| way.delay = delay);
        let began = Instant::now();
        load.flows(&[0, 1, 2], 10, &cluster).await;
        let latencies = load.producers[0].latencies(began, Instant::now());
        assert!(latencies.max() >= delay, "a delay of {delay:?} was not felt: {latencies:?}");
        delayed.push(latencies.percentile(50.0));
        let slow = chances.random_range(0..NODES);
        for other in others(slow) {
            proxy.set(slow, other, |way| way.rate = 64 << 10);
            proxy.set(other, slow, |way| way.rate = 64 << 10);
        }
        load.flows(&[0, 1, 2], 10, &cluster).await;
        let faults = proxy.faults();
        proxy.heal();
        proxy.set_all(|way| (way.loss, way.reset) = (0.02, 0.002));
        load.flows(&[0, 1, 2], 20, &cluster).await;
        while proxy.faults() == faults {
            load.flows(&[0, 1, 2], 5, &cluster).await;
        }
        proxy.heal();
        cluster.settle().await;
    }
    let summary = load.finish(&mut cluster).await;
    println!(
        "CHAOS 5b | delay, slow link, loss and resets | {total} rounds, seed {seed} | median write under delay {} | \
         {summary}",
        delayed.line()
    );
}
