#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use super::Stages;
use crate::suite::{config, ready};
use crate::{BootstrapMode, Node, NodeConfig, Peer};
use prefixd_index::command::Command;
use std::net::TcpListener;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest wait for what takes a few election timeouts; CI machines stall.
const PATIENCE: Duration = Duration::from_secs(60);

async fn three() -> Vec<(Node, TempDir)> {
    let listeners: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let peer =
        |(i, port): (usize, &TcpListener)| Peer { name: format!("n{i}"), addr: port.local_addr().unwrap().to_string() };
    let peers: Vec<Peer> = listeners.iter().enumerate().map(peer).collect();
    let mut nodes = Vec::new();
    for (i, listener) in listeners.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let (node_name, peers) = (format!("n{i}"), peers.clone());
        let config = NodeConfig { node_name, peers, bootstrap: BootstrapMode::Peers, ..config(dir.path()) };
        nodes.push((Node::start(config, listener).await.unwrap(), dir));
    }
    for (node, _) in &nodes {
        ready(node).await;
    }
    nodes
}

/// A successor that falls silent just when leadership is handed to it must not end the writes: the leader that named it
/// proposes nothing any more in that term, so an election has to find another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_successor_does_not_end_the_writes() {
    let nodes = three().await;
    let began = Instant::now();
    let leader = loop {
        if let Some(leader) = nodes.iter().position(|(node, _)| node.leads()) {
            break leader;
        }
        assert!(began.elapsed() < PATIENCE, "nobody leads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let (successor, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let (me, raft) = nodes[leader].0.inner.member().unwrap();
    let (silent, _) = nodes[successor].0.inner.member().unwrap();
    nodes[successor].0.stop().await;
    let refused = nodes[leader].0.inner.hand_over(me.node_id, &raft, silent.node_id).await;
    assert!(refused.is_err(), "a stopped node took over: {refused:?}");
    let began = Instant::now();
    while let Err(error) = nodes[other].0.propose(Command::Sweep).await {
        assert!(began.elapsed() < PATIENCE, "nobody takes writes: {error}");
    }
    println!("writes flow {:.1} s after the successor was given up", began.elapsed().as_secs_f64());
    for (node, _) in &nodes {
        node.stop().await;
    }
}

#[test]
fn every_step_of_a_stop_ends_before_the_whole_must() {
    for budget in [Duration::ZERO, Duration::from_millis(7), Duration::from_secs(10), Duration::from_secs(3_600)] {
        let stages = Stages::of(budget);
        assert!(stages.resigned <= stages.drained && stages.drained <= stages.ended && stages.ended <= budget);
    }
    let stages = Stages::of(Duration::from_secs(10));
    assert_eq!((stages.resigned, stages.ended), (Duration::from_secs(4), Duration::from_secs(8)));
}

/// Without a quorum nothing that is in flight will ever be answered: the stop doesn't wait for it, however long a proposal
/// may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_in_its_time_although_nothing_can_be_committed() {
    let nodes = three().await;
    for (node, _) in &nodes[1..] {
        node.stop().await;
    }
    let update = prefixd_index::delta::Update {
        replica: "r".into(),
        tenant: "t".into(),
        model: "m".into(),
        scheme: "s".into(),
        timestamp_us: 0,
        entries: Vec::new(),
        stats: None,
    };
    let in_flight = nodes[0].0.submit(vec![prefixd_index::delta::Delta::Update(update)]);
    let budget = Duration::from_secs(3);
    let began = Instant::now();
    tokio::time::timeout(PATIENCE, nodes[0].0.stop_within(budget)).await.unwrap();
    let took = began.elapsed();
    assert!(in_flight.await.is_err(), "nobody could have committed it");
    assert!(took < nodes[0].0.inner.config.timing.propose_timeout, "it waited for the proposal: {took:?}");
    println!("a stop without a quorum took {:.1} s of {budget:?}", took.as_secs_f64());
}
