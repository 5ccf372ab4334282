//! Disks that are lost: one of three, under load: its node comes back under its old name with a new id, by a snapshot;
//! two of three: nobody founds anything, and the empty nodes name the way out; all three: a new cluster, said loudly.

use crate::cluster::Cluster;
use crate::figures::{Figures, chances, rounds_of};
use crate::load::Load;
use crate::oracle::Producer;
use rand::RngExt;
use std::time::Instant;

const NODES: usize = 3;

/// Loses the disk of one node under load; returns when it is a voter again.
async fn lose_one(cluster: &mut Cluster, load: &Load, victim: usize) {
    let others: Vec<usize> = (0..NODES).filter(|node| *node != victim).collect();
    let before =
        cluster.wait_for(others[0], "a purged log", |s| s.purged_index > 0 && s.snapshot_index > s.purged_index).await;
    let old = cluster.nodes[victim].status().await.unwrap();
    load.down(victim);
    cluster.nodes[victim].kill();
    cluster.nodes[victim].empty_disk();
    cluster.nodes[victim].start();
    let back = cluster
        .wait_for(victim, "a voter again", |s| {
            s.ready && s.members.len() == NODES && s.members.iter().any(|m| m.node_id == s.node_id && m.voter)
        })
        .await;
    assert_ne!(back.node_id, old.node_id, "an emptied disk has a new id");
    assert_eq!(back.cluster_id, before.cluster_id);
    assert!(back.purged_index > 0 || back.snapshot_index > 0, "it came by a snapshot: {back:?}");
    assert!(back.members.iter().all(|m| m.node_id != old.node_id && m.voter), "{:?}", back.members);
    let names: Vec<&str> = back.members.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["n0", "n1", "n2"]);
    cluster.settle().await;
    load.up(victim);
    load.flows(&[0, 1, 2], 20, cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_node_rejoins_by_snapshot_under_load() {
    let (seed, mut chances) = chances("10 one disk lost");
    let mut cluster = Cluster::new(NODES as u32, &["--snapshot-log-entries=100", "--keep-log-entries=10"]);
    cluster.start_all();
    cluster.settle().await;
    let load = Load::start(&cluster);
    let (mut back, total) = (Figures::default(), rounds_of(2, 10));
    for n in 0..total {
        load.flows(&[0, 1, 2], 20, &cluster).await;
        // Node 0 first, then any, the leader too.
        let victim = if n == 0 { 0 } else { chances.random_range(0..NODES) };
        let began = Instant::now();
        lose_one(&mut cluster, &load, victim).await;
        back.push(began.elapsed());
    }
    let summary = load.finish(&mut cluster).await;
    println!(
        "CHAOS 10 | the disk of one node lost under load | {total} rounds, seed {seed} | same cluster id; full strength \
         again {} | {summary}",
        back.line()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_emptied_nodes_of_three_found_nothing() {
    let (seed, mut chances) = chances("10 two disks lost, then all");
    let mut cluster = Cluster::new(NODES as u32, &[]);
    let total = rounds_of(1, 10);
    for _ in 0..total {
        cluster.start_all();
        let statuses = cluster.settle().await;
        let cluster_id = statuses[0].cluster_id.clone();
        let kept = chances.random_range(0..NODES);
        // Whom nobody hears any more is no leader to name, by a follower or by himself.
        (0..NODES).filter(|i| *i != kept).for_each(|i| cluster.nodes[i].kill());
        cluster.wait_for(kept, "no leader that it names", |s| s.leader.is_none()).await;
        cluster.nodes[kept].kill();
        for i in (0..NODES).filter(|i| *i != kept) {
            cluster.nodes[i].empty_disk();
        }
        cluster.start_all();
        for i in (0..NODES).filter(|i| *i != kept) {
            let lost = cluster
                .wait_for(i, "a refusal that names recover", |s| {
                    !s.ready && s.unready_reason.contains("prefixd recover")
                })
                .await;
            assert!(lost.cluster_id.is_empty(), "{lost:?}");
        }
        let survivor = cluster.wait_for(kept, "an answer", |_| true).await;
        assert_eq!(survivor.cluster_id, cluster_id);
        let mut client = cluster.nodes[kept].client();
        let refused = Producer::new(0).report(&mut client, 1).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
        // Now the last one too: nobody holds anything that a new cluster could contradict.
        cluster.kill_all();
        cluster.nodes[kept].empty_disk();
        for i in (0..NODES).filter(|i| *i != kept) {
            cluster.nodes[i].empty_disk();
        }
        cluster.start_all();
        let fresh = cluster.settle().await;
        assert!(fresh.iter().all(|s| s.cluster_id == fresh[0].cluster_id && s.cluster_id != cluster_id), "{fresh:?}");
        let loud = cluster.nodes.iter().any(|node| node.log().contains("founding a new cluster"));
        assert!(loud, "a new cluster was founded in silence\n{}", cluster.logs());
        cluster.kill_all();
    }
    cluster.assert_no_panic();
    println!(
        "CHAOS 10 | two disks lost, then all | {total} rounds, seed {seed} | two lost: nothing founded, nothing \
         acknowledged, recover named; all lost: one new cluster, announced"
    );
}
