//! What a disk holds of its cluster, over the storage crate's identity and promise files.

use crate::membership::{Disk, DiskFailure, DiskState, Promise};
use prefixd_storage::{DataDir, Identity};

/// The data directory of this node; it stays locked to this process as long as this lives.
pub(crate) struct StoredDisk(DataDir);

impl StoredDisk {
    pub(crate) fn new(dir: DataDir) -> Self {
        Self(dir)
    }

    fn identity(&self) -> Result<Identity, DiskFailure> {
        let path = self.0.identity_path();
        let identity = Identity::read(&path).map_err(DiskFailure::new)?;
        identity.ok_or_else(|| DiskFailure::new(format!("{} is gone", path.display())))
    }
}

impl Disk for StoredDisk {
    fn read(&self) -> Result<DiskState, DiskFailure> {
        let identity = self.identity()?;
        let promise = self.0.promise().map_err(DiskFailure::new)?;
        let promise = promise.map(|held| Promise::new(held.cluster_id, held.members)).transpose();
        Ok(DiskState {
            node_id: identity.node_id,
            cluster_id: identity.cluster_id,
            promise: promise.map_err(DiskFailure::new)?,
        })
    }

    fn make_promise(&self, promise: &Promise) -> Result<(), DiskFailure> {
        let stored = prefixd_storage::Promise { cluster_id: promise.cluster_id(), members: promise.members().to_vec() };
        stored.make(&self.0.promise_path()).map_err(DiskFailure::new)
    }

    fn clear_promise(&self) -> Result<(), DiskFailure> {
        prefixd_storage::Promise::clear(&self.0.promise_path()).map_err(DiskFailure::new)
    }

    fn adopt(&self, cluster_id: u128) -> Result<(), DiskFailure> {
        let identity = Identity { cluster_id: Some(cluster_id), ..self.identity()? };
        identity.write(&self.0.identity_path()).map_err(DiskFailure::new)
    }
}
