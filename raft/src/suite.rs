//! openraft's own suite over the real log, the real snapshots and the real index, and nodes that found, join and
//! restart over loopback.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use crate::core::{Core, Start};
use crate::log::RaftLog;
use crate::machine::Machine;
use crate::types::TypeConfig;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use prefixd_index::Index;
use prefixd_storage::{LogOptions, RedbLog, SnapshotStore};
use std::sync::Arc;
use tempfile::TempDir;

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
