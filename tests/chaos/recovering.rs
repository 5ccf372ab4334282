//! A quorum that is lost for good: one disk is made a cluster of its own, fresh nodes join it, a disk of the old cluster
//! is let in nowhere, and an empty node that sees both clusters goes to neither.

use crate::cluster::{Cluster, PATIENCE};
use crate::members::{Said, prefixd};
use crate::oracle::Producer;
use std::time::Instant;

/// `prefixd recover` on the disk of one node.
async fn recover(cluster: &Cluster, node: usize, flags: &[&str]) -> Said {
    let dir = cluster.nodes[node].dir.to_str().unwrap().to_owned();
    let peers = cluster.nodes[node].peers.join(",");
    prefixd(&[&["recover", "--data-dir", &dir, "--peers", &peers], flags].concat()).await
}

async fn refused(cluster: &Cluster, node: usize, flags: &[&str], part: &str) {
    let said = recover(cluster, node, flags).await;
    assert!(!said.is_ok && said.err.contains(part), "{part:?} is not in: {}\n{}", said.out, said.err);
}

async fn report(cluster: &Cluster, producer: &Producer, node: usize, chains: std::ops::Range<u64>) {
    let mut client = cluster.nodes[node].client();
    for chain in chains {
        let began = Instant::now();
        while let Err(status) = producer.report(&mut client, chain).await {
            assert!(began.elapsed() < PATIENCE, "{status}\n{}", cluster.logs());
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_quorum_is_recovered_and_old_disks_stay_out() {
    let three = vec![0, 1, 2];
    let mut cluster = Cluster::with_lists(&[three.clone(), three.clone(), three, vec![0, 1, 2, 3]], &[]);
    cluster.nodes[..3].iter_mut().for_each(|node| node.start());
    let before = cluster.settle().await;
    let old = hex(&before[0].cluster_id);
    let producer = Producer::new(0);
    report(&cluster, &producer, 0, 0..40).await;
    cluster.assert_digests_equal().await;

    // What must not be: a node that runs, a cluster that lives.
    refused(&cluster, 0, &["--yes"], "in use by another process: stop the node that runs on it first").await;
    assert!(cluster.nodes[0].stop().await.success());
    refused(&cluster, 0, &[], "has a quorum with this node (n1 answers, n2 answers; 2 of 3 voters decide)").await;
    refused(&cluster, 0, &["--yes"], "start this node with `prefixd serve` instead").await;

    // Two nodes are gone: n1 with its disk, n2's disk turns up later.
    cluster.nodes[1].kill();
    cluster.nodes[1].empty_disk();
    cluster.nodes[2].kill();
    let said = recover(&cluster, 0, &[]).await;
    assert!(!said.is_ok && said.err.contains("nothing was changed; run this again with --yes"), "{}", said.err);
    assert!(said.out.contains(&old) && said.out.contains("n1 is silent, n2 is silent"), "{}", said.out);
    let said = recover(&cluster, 0, &["--yes", "--json"]).await;
    assert!(said.is_ok, "{}", said.err);
    let done: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(done["old_cluster_id"], old);
    let new = done["cluster_id"].as_str().unwrap().to_owned();
    assert_ne!(new, old);
    refused(&cluster, 0, &["--yes"], "this disk alone is the quorum").await;

    cluster.nodes[0].start();
    let began = Instant::now();
    let alone = cluster.wait_for(0, "a cluster of one", |s| s.ready && s.role == "leader").await;
    println!("serving {:.1} s after the start", began.elapsed().as_secs_f64());
    assert_eq!((hex(&alone.cluster_id), alone.members.len()), (new.clone(), 1));
    assert_eq!(
        (alone.entries, hex(&alone.digest)),
        (done["entries"].as_u64().unwrap(), done["digest"].as_str().unwrap().into())
    );
    assert!(producer.assert_holds(&cluster).await >= 40);
    report(&cluster, &producer, 0, 40..60).await;

    // The old disk is let in nowhere, and says what to do.
    cluster.nodes[2].start();
    let stays_out = |s: &prefixd_proto::admin::StatusResponse| {
        !s.ready && s.unready_reason.contains(&old) && s.unready_reason.contains(&format!("n0 belongs to {new}"))
    };
    let out = cluster.wait_for(2, "a refusal", stays_out).await;
    assert_eq!(hex(&out.cluster_id), old);
    assert!(out.unready_reason.contains("start it empty with --bootstrap=never"), "{out:?}");
    // Whom an empty node sees in two clusters it names, and it goes to neither.
    cluster.nodes[3].start();
    let began = Instant::now();
    let status = loop {
        if let Some(status) = cluster.nodes[3].ended() {
            break status;
        }
        assert!(began.elapsed() < PATIENCE, "n3 goes on\n{}", cluster.logs());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    let log = cluster.nodes[3].log();
    assert!(!status.success(), "{status}");
    let said = log.contains(&format!("{new} at n0")) && log.contains(&format!("{old} at n2"));
    assert!(said && log.contains("take the nodes of the wrong one out of --peers"), "{log}");

    // Fresh nodes join: n1, whose disk was lost, and n2, whose disk is emptied now.
    cluster.nodes[2].kill();
    cluster.nodes[2].empty_disk();
    for i in [1, 2] {
        cluster.nodes[i].flags.push("--bootstrap=never".into());
        cluster.nodes[i].start();
        cluster
            .wait_for(i, "a voter", |s| s.ready && s.members.iter().any(|m| m.node_id == s.node_id && m.voter))
            .await;
    }
    report(&cluster, &producer, 1, 60..80).await;
    let after = cluster.settle().await;
    assert!(after.iter().all(|s| hex(&s.cluster_id) == new && s.members.iter().filter(|m| m.voter).count() == 3));
    cluster.assert_digests_equal().await;
    assert!(producer.assert_holds(&cluster).await >= 80);
    cluster.assert_no_panic();
    println!(
        "CHAOS recover | two of three disks lost, one recovered, two fresh nodes | {} chains held",
        producer.known()
    );
}
