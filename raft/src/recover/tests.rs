//! A recovery that is cut short after each of its steps, and done again, or started over.

use super::*;
use crate::Node;
use crate::suite::{PATIENCE, started};
use prefixd_index::command::Command;
use prefixd_index::delta::{Delta, Exact, PrefixEntry, Update};
use std::path::PathBuf;
use std::time::Instant;
use tempfile::TempDir;

const OLD: u128 = 7;
const NEW: u128 = 8;

async fn ready(node: &Node) {
    let began = Instant::now();
    while !(node.readiness().0 && node.leads()) {
        assert!(began.elapsed() < PATIENCE, "{:?}", node.readiness());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn surveyed(dir: &Path) -> Survey {
    let began = Instant::now();
    loop {
        match Survey::open(dir) {
            Ok(survey) => return survey,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A disk that served as one of three voters: what a cluster of one wrote, and a membership with two more behind it.
async fn one_of_three() -> (TempDir, u128) {
    let dir = tempfile::tempdir().unwrap();
    let node = started(dir.path()).await;
    ready(&node).await;
    let exact = Some(Exact { hash: b"h".to_vec(), token_count: 64 });
    let update = Update {
        replica: "r".into(),
        tenant: "t".into(),
        model: "m".into(),
        scheme: "s".into(),
        timestamp_us: 0,
        entries: vec![PrefixEntry { adapter: String::new(), tier: 1, chain: None, exact }],
        stats: None,
    };
    node.submit(vec![Delta::Update(update)]).await.unwrap();
    node.propose(Command::Sweep).await.unwrap();
    node.stop().await;
    drop(node);
    let survey = surveyed(dir.path());
    let digest = survey.state.index.digest();
    let last = survey.last().unwrap();
    let names = ["n0", "n1", "n2"].into_iter().zip([survey.identity.node_id, 5, 6]);
    let nodes: BTreeMap<u64, MemberNode> =
        names.map(|(name, id)| (id, MemberNode { name: name.into(), addr: String::new() })).collect();
    let three = Membership::new(vec![nodes.keys().copied().collect()], nodes).unwrap();
    let pos = LogPos { term: last.term, index: last.index + 1 };
    let body = record::body(&Payload::Membership(three)).unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    survey
        .log
        .append(vec![prefixd_storage::LogRecord { pos, body }], Box::new(move |done| send.send(done).unwrap()))
        .unwrap();
    receive.recv().unwrap().unwrap();
    let identity = Identity { cluster_id: Some(OLD), ..survey.identity.clone() };
    identity.write(&survey.dir.identity_path()).unwrap();
    survey.log.close().unwrap();
    (dir, digest)
}

/// The disk starts as the new cluster's only member, with the digest that it had.
async fn serves(dir: &Path, digest: u128) {
    let node = started(dir).await;
    ready(&node).await;
    assert_eq!(node.cluster_id(), Some(NEW));
    let status = node.status();
    assert_eq!(status.members.len(), 1, "{:?}", status.members);
    assert_eq!(node.totals().entries, 1);
    let before = node.applied_index();
    assert_eq!(node.status().digest, digest);
    assert!(node.propose(Command::Sweep).await.unwrap() > before);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_of_three_becomes_a_cluster_of_one() {
    let (dir, digest) = one_of_three().await;
    let survey = surveyed(dir.path());
    let held = survey.holdings();
    assert_eq!((held.cluster_id, held.members.len(), held.entries, held.digest), (Some(OLD), 3, 1, digest));
    assert!(matches!(survey.outlook(&BTreeMap::new()), Outlook::Lost(_)));
    let error = Survey::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("in use by another process: stop the node"), "{error}");
    let done = survey.recover(NEW).unwrap();
    assert_eq!((done.cluster_id, done.entries, done.digest), (NEW, 1, digest));
    serves(dir.path(), digest).await;
    // Once is enough.
    let again = surveyed(dir.path());
    assert!(matches!(again.outlook(&BTreeMap::new()), Outlook::Refuse(why) if why.contains("nothing is lost")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_that_was_cut_short_is_done_again_or_goes_on() {
    // Cut after the snapshot: the disk is the old cluster's, and the next run begins anew.
    let (dir, digest) = one_of_three().await;
    let mut survey = surveyed(dir.path());
    survey.write_snapshot(9).unwrap();
    drop(survey);
    let survey = surveyed(dir.path());
    assert_eq!((survey.holdings().cluster_id, survey.holdings().digest), (Some(OLD), digest));
    assert_eq!(survey.holdings().members.len(), 3);
    survey.recover(NEW).unwrap();
    serves(dir.path(), digest).await;
    // Cut after the identity: it is the new cluster's and starts as that.
    let (dir, digest) = one_of_three().await;
    let mut survey = surveyed(dir.path());
    survey.write_snapshot(NEW).unwrap();
    survey.change_identity(NEW).unwrap();
    drop(survey);
    serves(dir.path(), digest).await;
}

#[test]
fn a_directory_that_is_no_nodes_is_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let nothing: PathBuf = dir.path().join("nothing");
    for path in [dir.path(), &nothing] {
        let error = Survey::open(path).err().unwrap().to_string();
        assert!(error.contains("no node's disk") && error.contains(&path.display().to_string()), "{error}");
    }
    assert!(!nothing.exists() && std::fs::read_dir(dir.path()).unwrap().next().is_none());
}
