//! Snapshots: the state at one log index as logical records, given out in slices while commands go on being applied,
//! and back. Writing records anywhere is the caller's. The records are in `record`, the walk over the state in `walk`,
//! the way back in `load`.

mod check;
mod load;
mod page;
mod record;
pub(crate) mod walk;

pub use check::RecordDigest;
pub use load::Loader;

pub use record::{
    EntryPage, EntryRun, HolderName, MAX_RECORD_BYTES, PartitionName, SNAPSHOT_VERSION, SessionRow, SnapshotHeader,
    SnapshotRecord, StatsRow,
};

use crate::applied::Totals;

/// What a snapshot in the making is of.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The digest of the state.
    pub digest: u128,
    /// Its sizes.
    pub totals: Totals,
    /// Its time in microseconds.
    pub time_us: u64,
}

/// Some records of a snapshot in the making.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct SnapshotSlice {
    /// The records, possibly none.
    pub records: Vec<SnapshotRecord>,
    /// True when these were the last.
    pub done: bool,
}

/// The state changed too much while it was being walked; the snapshot is given up.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotOverflow {
    /// More pre-images than the limit given at the beginning.
    #[error("more than {limit} entries changed before the snapshot reached them; take it again")]
    TooManyChanges {
        /// The limit.
        limit: usize,
    },
    /// No snapshot is in the making.
    #[error("no snapshot is in the making")]
    NotBegun,
}

/// Why records don't make a state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The first record isn't a header, or there is a second one.
    #[error("a snapshot starts with its one header")]
    Header,
    /// Written by a later version.
    #[error("snapshot version {found}, this build reads up to {known}")]
    Version {
        /// The version found.
        found: u16,
        /// The newest version known here.
        known: u16,
    },
    /// A record contradicts itself.
    #[error("bad record: {0}")]
    Record(&'static str),
    /// The digest isn't the expected one.
    #[error("the records make digest {found:032x}, expected {expected:032x}")]
    Digest {
        /// The digest of what was loaded.
        found: u128,
        /// The digest that it should have.
        expected: u128,
    },
    /// The sizes aren't those of the header.
    #[error("the records make other sizes than the header says: {0}")]
    Totals(String),
}
