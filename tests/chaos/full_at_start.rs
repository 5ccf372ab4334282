//! Nodes that are started on a full disk: they answer from their newest snapshot, say what they wait for, and go on by
//! themselves when there is room. A fresh one, which has nothing to answer from, ends and says what to do.

use crate::cluster::{Cluster, PATIENCE};
use crate::controller::series;
use crate::oracle::Producer;
use crate::small_disks::SmallDisks;
use std::time::Instant;
use tonic::Code;

const NODES: usize = 3;
/// Log entries between two snapshots.
const SNAPSHOT_ENTRIES: u64 = 60;

async fn report(cluster: &Cluster, producer: &Producer, node: usize, chains: std::ops::Range<u64>) {
    let mut client = cluster.nodes[node].client();
    for chain in chains {
        let began = Instant::now();
        while let Err(status) = producer.report(&mut client, chain).await {
            assert!(began.elapsed() < PATIENCE, "{status}\n{}", cluster.logs());
        }
    }
}

/// What a node that waits for room must do meanwhile.
async fn waits_for_room(cluster: &mut Cluster, victim: usize, producer: &Producer) {
    let waits =
        |s: &prefixd_proto::admin::StatusResponse| !s.ready && s.unready_reason.contains("started on a full disk");
    let status = cluster.wait_for(victim, "waiting for room", waits).await;
    assert!(status.entries > 0, "nothing to answer from: {status:?}\n{}", cluster.logs());
    let node = &cluster.nodes[victim];
    // The oldest chains are in every snapshot.
    let answer = node.client().lookup_route(producer.lookup(0)).await.unwrap().into_inner();
    assert!(!answer.replica_scores.is_empty(), "{answer:?}\n{}", cluster.logs());
    let refused = Producer::new(10 + victim).report(&mut node.client(), 1).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert_eq!(series(&node.host, "prefixd_storage_disk_condition{condition=\"reopening\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_started_on_full_disks_answer_and_go_on_by_themselves() {
    let snapshots = format!("--snapshot-log-entries={SNAPSHOT_ENTRIES}");
    let flags = ["--disk-reserve-bytes=0", &snapshots, "--keep-log-entries=10"];
    let mut cluster = Cluster::new(NODES as u32, &flags);
    let Some(disks) = SmallDisks::mount(&mut cluster, 64) else { return };
    cluster.start_all();
    cluster.settle().await;
    let producer = Producer::new(0);
    report(&cluster, &producer, 0, 0..100).await;
    for i in 0..NODES {
        cluster.wait_for(i, "a snapshot", |s| s.snapshot_index > 0).await;
    }
    let follower = (cluster.leader().await + 1) % NODES;
    let mut next = 100;
    for victims in [vec![follower], (0..NODES).collect()] {
        for victim in &victims {
            // Half a snapshot is removed at the start, which makes room.
            cluster.wait_for(*victim, "rest", |s| s.applied_index - s.snapshot_index < SNAPSHOT_ENTRIES).await;
        }
        victims.iter().for_each(|victim| cluster.nodes[*victim].kill());
        for victim in &victims {
            disks.fill(*victim, 0);
            disks.fill_further(*victim);
            cluster.nodes[*victim].start();
        }
        for victim in &victims {
            waits_for_room(&mut cluster, *victim, &producer).await;
        }
        if let Some(other) = (0..NODES).find(|i| !victims.contains(i)) {
            report(&cluster, &producer, other, next..next + 20).await;
            next += 20;
        }
        let starts: Vec<u32> = cluster.nodes.iter().map(|node| node.starts()).collect();
        victims.iter().for_each(|victim| disks.make_room(*victim));
        let freed = Instant::now();
        cluster.settle().await;
        let took = freed.elapsed().as_secs_f64();
        println!("{} of {NODES} started on full disks: all ready {took:.1} s after there is room", victims.len());
        assert_eq!(starts, cluster.nodes.iter().map(|node| node.starts()).collect::<Vec<_>>(), "one was started again");
        report(&cluster, &producer, victims[0], next..next + 20).await;
        next += 20;
        cluster.assert_digests_equal().await;
        assert!(producer.assert_holds(&cluster).await > 0);
    }
    // An empty disk that is full: there is nothing to wait with.
    cluster.nodes[follower].kill();
    let dir = disks.dir(follower);
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
    }
    disks.fill(follower, 0);
    disks.fill_further(follower);
    cluster.nodes[follower].start();
    cluster.nodes[follower].ends_by_itself().await;
    let log = cluster.nodes[follower].log();
    assert!(log.contains("there is no room for a node here") && log.contains("`df -h"), "{}", cluster.logs());
    disks.make_room(follower);
    cluster.nodes[follower].flags.push("--bootstrap=never".into());
    cluster.nodes[follower].start();
    cluster.settle().await;
    cluster.assert_digests_equal().await;
    cluster.assert_no_panic();
    println!(
        "CHAOS 7 | nodes started on full disks: one, then all; an empty one | 1 round | {} chains held",
        producer.known()
    );
}
