//! Three whole nodes of which one plays an older release: the level waits for it, rises without it being asked twice, and
//! never lets such a one in again.

use crate::operate::Ask;
use crate::suite::config;
use crate::{BootstrapMode, Node, NodeConfig, Peer};
use prefixd_proto::node as wire;
use std::net::TcpListener;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(90);

struct Place {
    dir: TempDir,
    peers: Vec<Peer>,
    at: usize,
}

impl Place {
    async fn start(&self, listener: Option<TcpListener>, feature_max: u32) -> Node {
        let began = Instant::now();
        let mut listener = listener;
        loop {
            let config = NodeConfig {
                node_name: self.peers[self.at].name.clone(),
                peers: self.peers.clone(),
                bootstrap: BootstrapMode::Peers,
                feature_max,
                ..config(self.dir.path())
            };
            // The one before may be just letting go of port and disk.
            let bound = listener.take().map_or_else(|| TcpListener::bind(&self.peers[self.at].addr), Ok);
            let why = match bound {
                Ok(bound) => match Node::start(config, bound).await {
                    Ok(node) => return node,
                    Err(error) => error.to_string(),
                },
                Err(error) => error.to_string(),
            };
            assert!(began.elapsed() < PATIENCE, "{} does not start: {why}", self.peers[self.at].name);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn all_ready(nodes: &[Node]) -> bool {
    nodes.iter().all(|node| node.readiness().0) && nodes.iter().any(Node::leads)
}

fn level(node: &Node) -> u32 {
    node.status().feature_level
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_level_waits_for_the_oldest_member_and_then_never_falls() {
    let listeners: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let peers: Vec<Peer> = listeners
        .iter()
        .enumerate()
        .map(|(i, l)| Peer { name: format!("n{i}"), addr: l.local_addr().unwrap().to_string() })
        .collect();
    let places: Vec<Place> =
        (0..3).map(|at| Place { dir: tempfile::tempdir().unwrap(), peers: peers.clone(), at }).collect();
    let mut nodes = Vec::new();
    for ((place, listener), max) in places.iter().zip(listeners).zip([3, 3, 1]) {
        nodes.push(place.start(Some(listener), max).await);
    }
    eventually("a cluster", || all_ready(&nodes)).await;
    nodes[1].inner.give_order(Ask::HandOver(Some("n0".into())), false, None).await.unwrap();
    eventually("n0 leads", || nodes[0].leads()).await;

    // n2 reads the first form alone.
    let mut held = None;
    let began = Instant::now();
    while held.is_none() {
        nodes[0].inner.raise_feature_level(&mut held).await;
        assert!(began.elapsed() < PATIENCE);
    }
    assert!(held.unwrap().ends_with("n2 (reads up to 1)"));
    assert_eq!(nodes.iter().map(level).collect::<Vec<_>>(), [1, 1, 1]);

    // It comes back as a release that reads the second form too; nobody has to say anything.
    // It holds its disk until it is dropped.
    nodes.remove(2).stop().await;
    nodes.push(places[2].start(None, 2).await);
    eventually("the level that all read", || nodes.iter().all(|node| level(node) == 2)).await;

    // A release from before can't come in any more, nor can it come back.
    let member = wire::Member { node_id: 99, name: "n2".into(), ..Default::default() };
    let cluster_id = nodes[0].cluster_id().unwrap().to_be_bytes().to_vec().into();
    let leader = nodes.iter().find(|node| node.leads()).unwrap();
    let request =
        wire::JoinRequest { member: Some(member), feature_max: 1, cluster_id, promotion: false, moved: false };
    let answer = leader.inner.answer_join(request).await;
    assert!(answer.reason.contains("feature level 2, the joining release reads up to 1"), "{answer:?}");
    // It holds its disk until it is dropped.
    nodes.remove(2).stop().await;
    nodes.push(places[2].start(None, 1).await);
    let why = tokio::time::timeout(PATIENCE, nodes[2].failed()).await.unwrap();
    assert!(why.contains("feature level 2") && why.contains("reads up to 1"), "{why}");
    for node in &nodes {
        node.stop().await;
    }
}
