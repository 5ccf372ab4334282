//! Peer lists that overlap without being equal make at most one cluster.

use crate::cluster::Cluster;
use crate::figures::rounds_of;
use std::collections::BTreeSet;
use std::time::Duration;

/// One founding of nodes that contradict each other; returns how many of them belong to the one cluster at most.
async fn overlapping() -> usize {
    // n0 and n1 mean {n0,n1,n2}; n2 and n3 mean {n1,n2,n3}.
    let lists = [vec![0, 1, 2], vec![0, 1, 2], vec![1, 2, 3], vec![1, 2, 3]];
    let mut cluster = Cluster::with_lists(&lists, &[]);
    cluster.start_all();
    let mut seen = BTreeSet::new();
    // Long past every timeout of founding; nothing to await, since the expectation is that nothing happens.
    for _ in 0..60 {
        for node in &cluster.nodes {
            if let Some(status) = node.status().await
                && !status.cluster_id.is_empty()
            {
                seen.insert(status.cluster_id);
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(seen.len() <= 1, "two clusters: {seen:02x?}\n{}", cluster.logs());
    let mut waiting = 0;
    for node in &cluster.nodes {
        // A node that sees contradicting lists may also stop and say so.
        waiting += usize::from(node.status().await.is_none_or(|status| !status.ready));
    }
    assert!(waiting > 0, "lists that contradict each other can't all be satisfied");
    cluster.nodes.len() - waiting
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_peer_lists_make_at_most_one_cluster() {
    let (total, mut founded) = (rounds_of(1, 10), 0);
    for _ in 0..total {
        founded += u32::from(overlapping().await > 0);
    }
    println!(
        "CHAOS 10 | peer lists that contradict each other | {total} rounds | one cluster {founded} times, none else"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_founders_make_one_cluster_and_keep_it() {
    let mut cluster = Cluster::new(3, &[]);
    cluster.nodes[2].start();
    cluster.nodes[0].start();
    let alone = cluster.wait_for(0, "waiting for its peers", |s| !s.ready && s.cluster_id.is_empty()).await;
    assert!(!alone.unready_reason.is_empty());
    cluster.start_all();
    let first = cluster.settle().await;
    assert!(first.iter().all(|s| s.cluster_id == first[0].cluster_id && s.members.len() == 3));
    for i in 0..3 {
        cluster.nodes[i].kill();
    }
    cluster.start_all();
    let second = cluster.settle().await;
    assert!(second.iter().all(|s| s.cluster_id == first[0].cluster_id));
    let ids =
        |statuses: &[prefixd_proto::admin::StatusResponse]| statuses.iter().map(|s| s.node_id).collect::<BTreeSet<_>>();
    assert_eq!(ids(&first), ids(&second));
    assert!(second.iter().all(|s| s.incarnation == 2));
}
