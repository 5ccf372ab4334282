//! The writer's side of the index.

use crate::applied::{Applied, Totals};
use crate::command::{ClusterMeta, Stamped};
use crate::policy::PolicySet;
use crate::snapshot::{SnapshotInfo, SnapshotOverflow, SnapshotSlice};
use crate::view::View;

/// The single writer: owned by one thread, it applies the log in order.
#[derive(Default)]
pub struct Index {
    meta: ClusterMeta,
    policies: PolicySet,
}

impl Index {
    /// An empty index. `hash_seed` seeds internal tables against chosen hashes and influences no result.
    pub fn new(_hash_seed: u64) -> Self {
        Self::default()
    }

    /// Applies the log entry at `index`. Never panics, whatever the command holds.
    pub fn apply(&mut self, _index: u64, _command: &Stamped) -> Applied {
        Applied::default()
    }

    /// The readers' side.
    pub fn view(&self) -> View {
        View
    }

    /// The state's time in microseconds: the highest stamp applied.
    pub fn time_us(&self) -> u64 {
        0
    }

    /// The log index applied last.
    pub fn applied_index(&self) -> u64 {
        0
    }

    /// The parameters of apply.
    pub fn meta(&self) -> &ClusterMeta {
        &self.meta
    }

    /// The policy set.
    pub fn policies(&self) -> &PolicySet {
        &self.policies
    }

    /// The digest of the state.
    pub fn digest(&self) -> u128 {
        0
    }

    /// The digest after the log entry at `index`, if that was recently and here.
    pub fn digest_at(&self, _index: u64) -> Option<u128> {
        None
    }

    /// Sizes of the state.
    pub fn totals(&self) -> Totals {
        Totals::default()
    }

    /// True when another Sweep should follow at once.
    pub fn wants_sweep(&self) -> bool {
        false
    }

    /// Begins a snapshot of the state as it is now; one that was in the making is given up. At most `preimage_limit`
    /// entries may change ahead of the walk.
    pub fn begin_snapshot(&mut self, _preimage_limit: usize) -> SnapshotInfo {
        SnapshotInfo { digest: 0, totals: Totals::default(), time_us: 0 }
    }

    /// The next records, walking at most `max_entries` entries. Commands may be applied between slices.
    pub fn snapshot_slice(&mut self, _max_entries: usize) -> Result<SnapshotSlice, SnapshotOverflow> {
        Err(SnapshotOverflow::NotBegun)
    }

    /// Gives a snapshot in the making up.
    pub fn abort_snapshot(&mut self) {}
}
