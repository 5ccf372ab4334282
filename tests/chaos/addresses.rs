//! Every node's address changes at once, and a node of another cluster comes to an address of ours.

use crate::cluster::{Cluster, Node, PATIENCE};
use crate::figures::{Figures, T, chances, rounds_of};
use crate::oracle::Producer;
use rand::RngExt;
use std::time::{Duration, Instant};

const NODES: usize = 3;
/// Sets of addresses that a cluster moves between.
const SETS: u32 = 4;

/// Gives all nodes the addresses of one set, and tells all of them.
fn move_to(cluster: &mut Cluster, set: u32) {
    let hosts: Vec<String> = (0..NODES as u32).map(|i| cluster.place.host(set * NODES as u32 + i)).collect();
    let peers: Vec<String> = hosts.iter().enumerate().map(|(i, host)| format!("n{i}={host}:9091")).collect();
    for (node, host) in cluster.nodes.iter_mut().zip(hosts) {
        (node.host, node.peers) = (host, peers.clone());
    }
}

async fn report(cluster: &Cluster, producer: &Producer, chains: std::ops::Range<u64>) {
    for chain in chains {
        let node = &cluster.nodes[chain as usize % NODES];
        let began = Instant::now();
        // A busy machine may cost the cluster its leader for a moment; repeating a report is harmless.
        while let Err(status) = producer.report(&mut node.client(), chain).await {
            assert!(began.elapsed() < PATIENCE, "{status}\n{}", cluster.logs());
        }
    }
}

/// A node of `other` takes the place and address of n2 of `cluster` for a while. It must be let in nowhere.
async fn intrude(cluster: &mut Cluster, other: &mut Cluster) {
    let ids = (cluster.settle().await[0].cluster_id.clone(), other.settle().await[0].cluster_id.clone());
    assert_ne!(ids.0, ids.1);
    cluster.nodes[2].kill();
    other.nodes[2].kill();
    let at_home = (other.nodes[2].host.clone(), other.nodes[2].peers.clone());
    (other.nodes[2].host, other.nodes[2].peers) = (cluster.nodes[2].host.clone(), cluster.nodes[2].peers.clone());
    other.nodes[2].start();
    let began = Instant::now();
    let mismatch =
        |node: &Node| node.log().contains("cluster mismatch") || node.log().contains("can't talk to each other");
    loop {
        // It may answer lookups from what it has, as any node without a quorum; that is of its own cluster.
        let status = other.nodes[2].status().await;
        assert!(status.is_none_or(|status| status.cluster_id == ids.1), "a foreign node was let in\n{}", other.logs());
        let said = cluster.nodes[..2].iter().any(mismatch) && mismatch(&other.nodes[2]);
        // Long enough for elections on either side.
        if said && began.elapsed() > T * 2 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "nobody names a mismatch\n{}\n{}", cluster.logs(), other.logs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for node in [0, 1] {
        let status = cluster.wait_for(node, "its own cluster", |status| status.ready && status.leader.is_some()).await;
        assert!(status.cluster_id == ids.0 && status.members.len() == NODES, "{status:?}");
    }
    other.nodes[2].kill();
    (other.nodes[2].host, other.nodes[2].peers) = at_home;
    for cluster in [cluster, other] {
        cluster.start_all();
        cluster.settle().await;
        cluster.assert_digests_equal().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_addresses_change_and_foreign_nodes_are_refused() {
    let (seed, mut chances) = chances("11 addresses");
    let mut cluster = Cluster::new(NODES as u32, &[]);
    let mut other = Cluster::new(NODES as u32, &[]);
    for cluster in [&mut cluster, &mut other] {
        cluster.start_all();
        cluster.settle().await;
    }
    let (producer, stranger) = (Producer::new(0), Producer::new(0));
    report(&other, &stranger, 1_000..1_030).await;
    let (mut quorum, total) = (Figures::default(), rounds_of(1, 5));
    for n in 0..total {
        let first = u64::from(n) * 100;
        report(&cluster, &producer, first..first + 30).await;
        let before = cluster.settle().await;
        if chances.random_bool(0.5) {
            cluster.kill_all();
        } else {
            for node in &mut cluster.nodes {
                assert!(node.stop().await.success());
            }
        }
        move_to(&mut cluster, (n + 1) % SETS);
        let began = Instant::now();
        cluster.start_all();
        let after = cluster.settle().await;
        report(&cluster, &producer, first + 30..first + 31).await;
        quorum.push(began.elapsed());
        assert!(after.iter().all(|status| status.cluster_id == before[0].cluster_id && status.members.len() == NODES));
        report(&cluster, &producer, first + 31..first + 60).await;
        cluster.assert_digests_equal().await;
        producer.assert_holds(&cluster).await;
        intrude(&mut cluster, &mut other).await;
        producer.assert_holds(&cluster).await;
        stranger.assert_holds(&other).await;
    }
    cluster.assert_no_panic();
    other.assert_no_panic();
    let limit = Duration::from_secs(30);
    assert!(quorum.max() <= limit, "{quorum:?}");
    println!(
        "CHAOS 11 | every address changes; a foreign node at one of ours | {total} rounds, seed {seed} | from start to \
         all ready and a write {}; {} chains held; the foreign node was let in nowhere",
        quorum.line(),
        producer.known()
    );
}
