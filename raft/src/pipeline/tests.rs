#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use super::*;
use crate::Node;
use crate::dial::Dialer;
use crate::network::{self, Network, PeerIdentity};
use crate::suite::{config, ready};
use crate::types::{Entry, MemberNode, Payload, RaftVote, log_id};
use openraft::{RaftNetworkFactory, RaftNetworkV2};
use prefixd_storage::{LogPos, SnapshotStore};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU32};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(30);

fn me(cluster_id: u128) -> Arc<PeerIdentity> {
    let feature_level = AtomicU32::new(1);
    Arc::new(PeerIdentity { cluster_id, node_id: 1, feature_level, feature_max: 1, is_deaf: AtomicBool::new(false) })
}

async fn link(me: Arc<PeerIdentity>, target: u64, addr: String, dir: &TempDir) -> Link {
    let mut network = Network {
        me,
        dialer: Arc::new(Dialer::new(&[], None)),
        append_timeout: LIMIT,
        silent: Arc::default(),
        refusals: Arc::default(),
        snapshots: Arc::new(SnapshotStore::open(&dir.path().join("s")).unwrap().0),
    };
    network.new_client(target, &MemberNode { name: "peer".into(), addr }).await
}

fn rpc(term: u64, index: u64) -> AppendEntriesRequest<TypeConfig> {
    let entry = Entry { log_id: log_id(LogPos { term, index }), payload: Payload::Blank };
    let prev_log_id = index.checked_sub(1).map(|index| log_id(LogPos { term, index }));
    let vote = RaftVote::new_committed(term, 1);
    AppendEntriesRequest { vote, prev_log_id, entries: vec![entry], leader_commit: None }
}

async fn answers(link: &mut Link, sent: Vec<AppendEntriesRequest<TypeConfig>>) -> Vec<Answer> {
    match link.stream_append(stream::iter(sent), RPCOption::new(LIMIT)).await {
        Ok(answers) => answers.collect().await,
        Err(error) => vec![Err(error)],
    }
}

async fn alone(dir: &TempDir) -> (Node, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let node = Node::start(config(dir.path()), listener).await.unwrap();
    ready(&node).await;
    (node, addr)
}

/// A release before streams: a node port without that call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_peer_is_asked_once_and_then_called() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let old = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
    let serving = tokio::spawn(old.serve_with_incoming(incoming));
    let dir = tempfile::tempdir().unwrap();
    let mut link = link(me(7), 2, addr, &dir).await;
    let first = answers(&mut link, vec![rpc(3, 0), rpc(3, 1)]).await;
    assert!(matches!(&first[..], [Err(RPCError::Network(_))]), "{first:?}");
    assert!(link.knows_no_stream);
    // From here on by calls, which this one doesn't know either; a failed call asks for the stream anew.
    let second = answers(&mut link, vec![rpc(3, 0)]).await;
    assert!(matches!(&second[..], [Err(RPCError::Unreachable(_))]), "{second:?}");
    assert!(!link.knows_no_stream);
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_of_a_stream_is_admitted_by_its_own_header() {
    let (disk, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (node, addr) = alone(&disk).await;
    let (own, _) = node.inner.member().unwrap();
    let term = node.status().term;
    let stale = rpc(term.saturating_sub(1), 0);
    for (cluster_id, to, said) in [(7, own.node_id, "cluster mismatch"), (own.cluster_id, 5, "node mismatch")] {
        let mut link = link(me(cluster_id), to, addr.clone(), &dir).await;
        let refused = answers(&mut link, vec![stale.clone()]).await;
        assert!(matches!(&refused[..], [Err(error)] if error.to_string().contains(said)), "{refused:?}");
    }
    // The second of two in one stream is meant for another disk: the first is answered all the same.
    let stranger = PeerIdentity { cluster_id: own.cluster_id, ..Arc::into_inner(me(0)).unwrap() };
    let good = append_to_wire(&stranger, own.node_id, &stale).unwrap();
    let bad = append_to_wire(&stranger, own.node_id + 1, &stale).unwrap();
    let channel = Dialer::new(&[], None).channel(&addr, Purpose::Raft).unwrap();
    let mut client = network::client(channel);
    let sent = stream::iter([good, bad]).chain(stream::pending());
    let mut received = client.stream_append(sent).await.unwrap().into_inner();
    let first = received.message().await.unwrap().unwrap();
    assert_eq!(first.outcome(), wire::append_entries_response::Outcome::HigherVote);
    // A higher vote ends the stream by itself; what was refused behind it may be told or not.
    if let Err(status) = received.message().await {
        assert_eq!(status.code(), Code::FailedPrecondition);
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hears_no_quorum_sends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let me = me(7);
    me.is_deaf.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut link = link(me, 2, "127.0.0.1:1".into(), &dir).await;
    let heartbeat = AppendEntriesRequest { entries: Vec::new(), ..rpc(3, 1) };
    for sent in [heartbeat, rpc(3, 1)] {
        let refused = answers(&mut link, vec![sent]).await;
        assert!(matches!(&refused[..], [Err(error)] if error.to_string().contains("is silent")), "{refused:?}");
    }
}
