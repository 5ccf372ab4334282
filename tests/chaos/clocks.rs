//! Wrong wall clocks: of a follower, of the leader, an hour ahead and an hour behind, while things expire; and a cluster
//! that was off for an hour. Nothing expires early, what should expire does, digests stay equal, and the skew metric
//! says whose clock is wrong.

use crate::cluster::{Cluster, PATIENCE};
use crate::controller::{push, series};
use crate::figures::{Figures, chances, is_long, rounds_of};
use crate::load::Load;
use crate::oracle::{Producer, TOLD};
use crate::shim::{Clock, library};
use prefixd_proto::admin::SweepRequest;
use prefixd_proto::admin::admin_client::AdminClient;
use serde_json::json;
use std::time::{Duration, Instant};

const NODES: usize = 3;
const HOUR_S: i64 = 3_600;
/// The lifetime of entries in the tenant of [`SHORT`]; a leader may let time pass 1% too fast or too slowly.
const SHORT_TTL: Duration = Duration::from_secs(3);
/// A producer, and so a tenant, beyond those of the load.
const SHORT: usize = 7;

async fn skew_s(cluster: &Cluster, node: usize) -> f64 {
    series(&cluster.nodes[node].host, "prefixd_clock_skew_seconds").await
}

/// Waits until every node's metric says how far its clock is off.
async fn skews_show(cluster: &Cluster, offsets_s: &[i64]) {
    let began = Instant::now();
    loop {
        let mut found = Vec::new();
        for node in 0..NODES {
            found.push(skew_s(cluster, node).await);
        }
        // Off by no more than what this machine stalls.
        if found.iter().zip(offsets_s).all(|(found, offset)| (found - *offset as f64).abs() < 5.0) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "skews {found:?}, clocks are off by {offsets_s:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Reports to one node a chain that lives three seconds, and measures for how long all nodes have it: not shorter, and
/// not much longer.
async fn short_life(cluster: &Cluster, first_chain: u64) -> Duration {
    for chain in first_chain..first_chain + 20 {
        let producer = Producer::new(SHORT);
        let reported = Instant::now();
        if producer.report(&mut cluster.nodes[0].client(), chain).await.is_err() {
            continue;
        }
        // The others apply it a moment later; on a machine that stalls, after its life.
        let mut was_everywhere = false;
        loop {
            let asked = Instant::now();
            let missing = producer.lost(cluster).await;
            was_everywhere |= missing.is_empty();
            if was_everywhere && !missing.is_empty() {
                // A leader may let time pass 1% faster than it does.
                let least = SHORT_TTL.mul_f64(0.98);
                assert!(reported.elapsed() >= least, "expired after {:?}: {missing:?}", reported.elapsed());
            }
            if missing.len() == NODES && was_everywhere {
                return asked - reported;
            }
            if missing.len() == NODES && reported.elapsed() > SHORT_TTL * 2 {
                break;
            }
            assert!(reported.elapsed() < PATIENCE, "it never expires on all nodes: {missing:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    panic!("no chain was seen on all nodes\n{}", cluster.logs());
}

/// Sets one node's clock wrong, holds the cluster to its rules meanwhile, and sets it right again.
async fn jump(
    cluster: &mut Cluster,
    load: &Load,
    clocks: &[Clock],
    node: usize,
    offset_s: i64,
    chain: u64,
) -> Duration {
    let before = cluster.nodes[node].status().await.unwrap().cluster_time_us;
    let began = Instant::now();
    clocks[node].set(offset_s);
    let mut offsets = [0; NODES];
    offsets[node] = offset_s;
    skews_show(cluster, &offsets).await;
    load.flows(&[0, 1, 2], 10, cluster).await;
    let life = short_life(cluster, chain).await;
    let passed = cluster.nodes[node].status().await.unwrap().cluster_time_us - before;
    let limit = began.elapsed().mul_f64(1.02) + Duration::from_secs(2);
    assert!(Duration::from_micros(passed) < limit, "cluster time moved {passed} us in {:?}", began.elapsed());
    clocks[node].set(0);
    skews_show(cluster, &[0; NODES]).await;
    life
}

/// All are off for an hour; what lived half an hour is gone when they are back.
async fn an_hour_off(cluster: &mut Cluster, producers: &[Producer], clocks: &[Clock]) {
    cluster.kill_all();
    clocks.iter().for_each(|clock| clock.set(HOUR_S));
    cluster.start_all();
    cluster.settle().await;
    let began = Instant::now();
    for producer in producers {
        // It expires with the first stamp of a new leader, which needs no traffic: it audits and sweeps.
        loop {
            let wrong = producer.lost(cluster).await;
            let gone = wrong.iter().filter(|what| what.contains("is Present, but")).count();
            if gone == NODES * producer.present().min(TOLD) {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{gone} have expired an hour later\n{}", cluster.logs());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let leader = cluster.leader().await;
    let mut admin = AdminClient::new(crate::cluster::channel(&cluster.nodes[leader].host, 9091));
    admin.sweep(SweepRequest {}).await.unwrap();
    cluster.wait_for(leader, "an empty index", |status| status.entries == 0).await;
    skews_show(cluster, &[0; NODES]).await;
    cluster.assert_digests_equal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_clocks_expire_nothing_early_and_an_hour_off_does() {
    let Some(library) = library() else { return };
    let (seed, _) = chances("13 wrong clocks");
    let mut cluster = Cluster::new(NODES as u32, &["--sweep-interval=1s"]);
    let clocks: Vec<Clock> = cluster.nodes.iter_mut().map(|node| Clock::under(node, library)).collect();
    cluster.start_all();
    cluster.settle().await;
    let policies = json!({"version": 7, "policies": [
        {"namespace": format!("tenant-{SHORT}"), "evictionTTL": SHORT_TTL.as_nanos() as u64}
    ]});
    push(&cluster.nodes[0].host, &policies).await.unwrap();
    let (mut lives, total, mut summary, mut chain) = (Figures::default(), rounds_of(2, 10), String::new(), 0);
    for n in 0..total {
        let load = Load::start(&cluster);
        load.flows(&[0, 1, 2], 20, &cluster).await;
        let leader = cluster.leader().await;
        let follower = (leader + 1) % NODES;
        // Once around in a long run, half of it by default.
        let jumps = [(follower, HOUR_S), (leader, -HOUR_S), (leader, HOUR_S), (follower, -HOUR_S)];
        let (first, count) = if is_long() { (0, 4) } else { (2 * (n as usize % 2), 2) };
        for (node, offset_s) in jumps.into_iter().skip(first).take(count) {
            chain += 20;
            lives.push(jump(&mut cluster, &load, &clocks, node, offset_s, chain).await);
        }
        // The leader dies while a survivor's clock is an hour ahead: the new one must not carry all along.
        let leader = cluster.leader().await;
        clocks[(leader + 1) % NODES].set(HOUR_S);
        load.down(leader);
        let killed = Instant::now();
        cluster.nodes[leader].kill();
        load.writes_since(&[(leader + 1) % NODES, (leader + 2) % NODES], killed, &cluster).await;
        cluster.nodes[leader].start();
        cluster.settle().await;
        load.up(leader);
        clocks[(leader + 1) % NODES].set(0);
        skews_show(&cluster, &[0; NODES]).await;
        let producers = load.producers.clone();
        summary = load.finish(&mut cluster).await;
        an_hour_off(&mut cluster, &producers, &clocks).await;
        cluster.kill_all();
        // Back to an index that is empty and a clock that is right: a new cluster, since time never runs back.
        cluster.nodes.iter_mut().for_each(crate::cluster::Node::empty_disk);
        clocks.iter().for_each(|clock| clock.set(0));
        cluster.start_all();
        cluster.settle().await;
        push(&cluster.nodes[0].host, &policies).await.unwrap();
    }
    println!(
        "CHAOS 13 | clocks of followers and leaders off by +-1 h; all off for an hour | {total} rounds, seed {seed} | \
         entries of 3 s lived {}; after an hour off all had expired | {summary}",
        lives.line()
    );
}
