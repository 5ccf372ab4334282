//! A node that lost its disk comes back under its old name: a new id, a snapshot from the leader, the same membership.

use crate::cluster::Cluster;
use crate::oracle::{Alive, Producer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_node_rejoins_by_snapshot_under_load() {
    let mut cluster = Cluster::new(3, &["--snapshot-log-entries=100", "--keep-log-entries=10"]);
    cluster.start_all();
    cluster.settle().await;
    let leader = cluster.leader().await;
    let (victim, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let alive = Alive::new(3);
    let stop = Arc::new(AtomicBool::new(false));
    let producers = [Producer::new(leader), Producer::new(other)];
    let tasks: Vec<_> = producers
        .iter()
        .zip([leader, other])
        .map(|(producer, i)| {
            tokio::spawn(producer.clone().run(cluster.nodes[i].client(), i, alive.clone(), stop.clone()))
        })
        .collect();
    let before = cluster.wait_for(leader, "a purged log", |s| s.purged_index > 0 && s.snapshot_index > 0).await;
    let old = cluster.nodes[victim].status().await.unwrap();
    cluster.nodes[victim].kill();
    cluster.nodes[victim].empty_disk();
    cluster.nodes[victim].start();
    let cluster_id = before.cluster_id.clone();
    let back = cluster
        .wait_for(victim, "a voter again", |s| {
            s.ready && s.members.len() == 3 && s.members.iter().any(|m| m.node_id == s.node_id && m.voter)
        })
        .await;
    assert_ne!(back.node_id, old.node_id, "an emptied disk has a new id");
    assert_eq!(back.cluster_id, cluster_id);
    assert!(back.purged_index > 0 || back.snapshot_index > 0, "it came by a snapshot: {back:?}");
    assert!(back.members.iter().all(|m| m.node_id != old.node_id && m.voter), "{:?}", back.members);
    let names: Vec<&str> = back.members.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["n0", "n1", "n2"]);
    for producer in &producers {
        producer.flows(20, &cluster).await;
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    cluster.assert_digests_equal().await;
    for producer in &producers {
        assert!(producer.assert_holds(&cluster).await > 0);
    }
    cluster.assert_no_panic();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_emptied_nodes_of_three_found_nothing() {
    let mut cluster = Cluster::new(3, &[]);
    cluster.start_all();
    let statuses = cluster.settle().await;
    let cluster_id = statuses[0].cluster_id.clone();
    for i in 0..3 {
        cluster.nodes[i].kill();
    }
    for i in 1..3 {
        cluster.nodes[i].empty_disk();
    }
    cluster.start_all();
    for i in 1..3 {
        let lost = cluster
            .wait_for(i, "a refusal that names recover", |s| !s.ready && s.unready_reason.contains("prefixd recover"))
            .await;
        assert!(lost.cluster_id.is_empty(), "{lost:?}");
    }
    let survivor = cluster.wait_for(0, "an answer", |_| true).await;
    assert_eq!(survivor.cluster_id, cluster_id);
    let mut client = cluster.nodes[0].client();
    let refused = Producer::new(0).report(&mut client, 1).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
    cluster.assert_no_panic();
}
