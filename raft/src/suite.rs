//! openraft's own suite over the real log, the real snapshots and the real index; and a whole node that ends and
//! starts again in one process.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use crate::core::{Core, Start};
use crate::log::RaftLog;
use crate::machine::Machine;
use crate::types::TypeConfig;
use crate::{BootstrapMode, Limits, Node, NodeConfig, Timing};
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use prefixd_index::Index;
use prefixd_index::command::ClusterMeta;
use prefixd_index::delta::{Delta, Exact, PrefixEntry, Update};
use prefixd_storage::{DataDir, LogOptions, LogPos, LogRecord, LogStore, RedbLog, SnapshotStore, codec};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest wait for what takes a moment; CI machines stall.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

struct OnDisk;

impl StoreBuilder<TypeConfig, RaftLog, Machine, TempDir> for OnDisk {
    async fn build(&self) -> Result<(TempDir, RaftLog, Machine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let options = LogOptions::new(7);
        RedbLog::create(dir.path(), &options).unwrap();
        let log = RedbLog::open(dir.path(), options).unwrap();
        let (snapshots, _) = SnapshotStore::open(&dir.path().join("snapshots")).unwrap();
        let start = Start { index: Index::new(1), applied: None, membership_at: None, membership: Default::default() };
        let core = Core::start(start, |why| panic!("{why}")).unwrap();
        let snapshots = Arc::new(snapshots);
        let machine = Machine { core, snapshots, cluster_id: 1, preimage_entries: 1_000, hash_seed: 1 };
        Ok((dir, RaftLog::new(Arc::new(log)), machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openrafts_storage_suite_passes() {
    Suite::test_all(OnDisk).await.unwrap();
}

pub(crate) fn config(dir: &Path) -> NodeConfig {
    NodeConfig {
        data_dir: dir.to_owned(),
        node_name: "n0".into(),
        peers: Vec::new(),
        bootstrap: BootstrapMode::Solo,
        advertise_addr: None,
        meta: ClusterMeta::default(),
        timing: Timing::default(),
        limits: Limits::default(),
        tls: None,
        feature_max: crate::FEATURE_MAX,
    }
}

/// Starts a node on a disk that an earlier one may be just letting go of.
pub(crate) async fn started(dir: &Path) -> Node {
    let began = Instant::now();
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        match Node::start(config(dir), listener).await {
            Ok(node) => return node,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn ready(node: &Node) {
    let began = Instant::now();
    while !node.readiness().0 {
        assert!(began.elapsed() < PATIENCE, "{:?}", node.readiness());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_node_lets_go_of_its_disk_and_comes_back_with_what_it_held() {
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
    let index = node.submit(vec![Delta::Update(update)]).await.unwrap();
    let before = node.digest(Some(index)).unwrap();
    assert_eq!(node.totals().entries, 1);
    node.stop().await;
    assert!(node.submit(Vec::new()).await.is_err(), "a stopped node takes nothing in");
    drop(node);
    let node = started(dir.path()).await;
    ready(&node).await;
    assert_eq!((node.totals().entries, node.status().incarnation), (1, 2));
    assert_eq!(node.digest(None).unwrap().1, before.1);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_committed_command_of_a_later_release_stops_the_node_with_both_versions() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(dir.path()).await;
    ready(&node).await;
    node.stop().await;
    drop(node);
    let data_dir = loop {
        match DataDir::open(dir.path()) {
            Ok(data_dir) => break data_dir,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let (_, log) = data_dir.load(LogOptions::new).unwrap();
    let last = log.state().last.unwrap();
    let pos = LogPos { index: last.index + 1, ..last };
    let body = codec::encode(*b"PXCM", 2, &"what this release knows nothing of").unwrap().into();
    log.append(vec![LogRecord { pos, body }], Box::new(|done| done.unwrap())).unwrap();
    log.save_committed(Some(pos));
    log.close().unwrap();
    drop((log, data_dir));
    // Again and again: a node never skips an entry.
    for _ in 0..2 {
        let node = started(dir.path()).await;
        let why = tokio::time::timeout(PATIENCE, node.failed()).await.expect("the node goes on");
        assert!(why.contains("format version 2 is not readable by this release, which reads 1 to 1"), "{why}");
        assert!(why.contains(&format!("log entry {} can't be read", pos.index)), "{why}");
        assert!(node.applied_index() < pos.index);
        node.stop().await;
        drop(node);
    }
}
