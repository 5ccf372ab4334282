//! A member that nobody's `--peers` lists comes back at another address: the membership takes it, so that leaders and those
//! who forward to it find it there.

use crate::cluster::{Cluster, PATIENCE};
use crate::figures::rounds_of;
use crate::members::{is_voter, led_by, obeyed};
use crate::oracle::Producer;
use std::time::{Duration, Instant};

const MOVER: usize = 3;

async fn report(cluster: &Cluster, producer: &Producer, node: usize, chains: std::ops::Range<u64>) {
    let mut client = cluster.nodes[node].client();
    for chain in chains {
        let began = Instant::now();
        while let Err(status) = producer.report(&mut client, chain).await {
            assert!(began.elapsed() < PATIENCE, "{status}\n{}", cluster.logs());
        }
    }
}

/// Gives the mover another address, of which only its own peer list knows.
fn move_to(cluster: &mut Cluster, host: u32) {
    let host = cluster.place.host(host);
    let node = &mut cluster.nodes[MOVER];
    node.peers[MOVER] = format!("n{MOVER}={host}:9091");
    node.host = host;
}

/// The address that the others have of the mover.
async fn known_at(cluster: &mut Cluster, addr: &str) {
    for i in 0..MOVER {
        let known = |s: &prefixd_proto::admin::StatusResponse| {
            s.members.iter().any(|m| m.name == format!("n{MOVER}") && m.node_addr == addr && m.voter)
        };
        cluster.wait_for(i, "the mover's address", known).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_nobody_lists_is_found_at_its_new_address() {
    let three = vec![0, 1, 2];
    let mut cluster = Cluster::with_lists(&[three.clone(), three.clone(), three, vec![0, 1, 2, 3]], &[]);
    cluster.nodes[MOVER].flags.push("--bootstrap=never".into());
    cluster.nodes[..MOVER].iter_mut().for_each(|node| node.start());
    cluster.settle().await;
    cluster.nodes[MOVER].start();
    let first = format!("{}:9091", cluster.nodes[MOVER].host);
    cluster.wait_for(MOVER, "an answer", |s| !s.ready && s.cluster_id.is_empty()).await;
    obeyed(&cluster, 0, &["member", "add", "n3", &first]).await;
    is_voter(&mut cluster, MOVER).await;
    known_at(&mut cluster, &first).await;
    let producer = Producer::new(0);
    let (total, mut slowest) = (rounds_of(2, 20), Duration::ZERO);
    for round in 0..total {
        let chains = u64::from(round) * 100;
        // It leads in every second round: others forward to it, and know its address from the membership alone.
        if round % 2 == 1 {
            obeyed(&cluster, 0, &["transfer-leader", "--to", "n3"]).await;
        }
        report(&cluster, &producer, 0, chains..chains + 20).await;
        cluster.nodes[MOVER].kill();
        move_to(&mut cluster, 5 + round % 4);
        let began = Instant::now();
        cluster.nodes[MOVER].start();
        let addr = format!("{}:9091", cluster.nodes[MOVER].host);
        known_at(&mut cluster, &addr).await;
        is_voter(&mut cluster, MOVER).await;
        slowest = slowest.max(began.elapsed());
        report(&cluster, &producer, MOVER, chains + 20..chains + 40).await;
        cluster.settle().await;
        obeyed(&cluster, 0, &["transfer-leader", "--to", "n3"]).await;
        assert_eq!(led_by(&cluster).await, MOVER);
        report(&cluster, &producer, 0, chains + 40..chains + 60).await;
        cluster.assert_digests_equal().await;
        producer.assert_holds(&cluster).await;
    }
    // A restart where it was changes nothing.
    let changes = |cluster: &Cluster| {
        let said = |log: String| log.matches("a member has another address now").count();
        cluster.nodes.iter().map(|node| said(node.log())).sum::<usize>()
    };
    let before = changes(&cluster);
    cluster.nodes[MOVER].kill();
    cluster.nodes[MOVER].start();
    cluster.settle().await;
    report(&cluster, &producer, MOVER, 5_000..5_010).await;
    assert_eq!(changes(&cluster), before, "{}", cluster.logs());
    cluster.assert_no_panic();
    println!(
        "CHAOS 11 | a member that no peer list has comes back elsewhere | {total} rounds | from its start to a voter that all \
         find there at most {:.1} s; {} chains held",
        slowest.as_secs_f64(),
        producer.known()
    );
}
