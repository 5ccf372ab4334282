//! The log of records, the vote, and what a store of them must promise.
//!
//! This module owns the [`LogStore`] contract and the types that cross it; [`RedbLog`] is the one
//! implementation. Records are opaque. Nothing here may acknowledge before it is synced, retry a failed
//! sync, or show an older state than was acknowledged. `tables` and `state_row` and `mark` hold the
//! formats, `device` is the only place that touches the two files, `writer` the only one that changes them.

mod device;
mod error;
mod mark;
mod open;
mod options;
mod read;
mod redb_log;
mod shared;
mod state_row;
mod stats;
mod tables;
mod tail;
mod writer;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use device::{FaultHook, LogFile};
pub use error::{LogError, OpenError, Refusal};
pub use mark::MARK_FILE_NAME;
pub(crate) use mark::is_unborn as is_unborn_mark;
pub use options::LogOptions;
pub use redb_log::RedbLog;
pub use stats::{LATENCY_BOUNDS_US, LogStats, SyncLatency};
pub use tables::STORE_FILE_NAME;

/// The largest record body that a log takes.
pub const MAX_RECORD_BYTES: usize = 64 << 20;

/// Position of a record. One leader a term, so (term, index) is unique.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogPos {
    /// The term of the leader that proposed it.
    pub term: u64,
    /// Its place in the log.
    pub index: u64,
}

/// The vote of this node.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// The term that the vote is for.
    pub term: u64,
    /// The node id that got it.
    pub voted_for: Option<u64>,
    /// Whether a quorum granted it.
    pub committed: bool,
}

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Where it lies.
    pub pos: LogPos,
    /// What it says; opaque here.
    pub body: Arc<[u8]>,
}

/// What a log holds, in five words.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    /// The last record that was purged.
    pub purged: Option<LogPos>,
    /// The last record, pending appends included; equals `purged` when there is none.
    pub last: Option<LogPos>,
    /// The vote, as it is on disk.
    pub vote: Option<Vote>,
    /// The position handed to the latest `save_committed`, or found at open.
    pub committed: Option<LogPos>,
}

/// Called once when what it belongs to is durable, or has failed. It runs on the store's own thread and
/// must not block or call back into the store.
pub type Done = Box<dyn FnOnce(Result<(), LogError>) + Send>;

/// A durable log with a vote.
///
/// Calls take effect in the order in which they are made. Callers may read from any thread; those that
/// change the log (`append`, `truncate_after`, `purge`) must be called by one thread at a time for their
/// order to mean something. After the first [`LogError::Failed`] every later call fails the same way:
/// the store never tries again.
pub trait LogStore: Send + Sync + 'static {
    /// What the log holds; a copy from memory, cheap.
    fn state(&self) -> LogState;

    /// False while so much waits for the disk that [`LogStore::append`] would wait as well.
    fn has_room(&self) -> bool {
        true
    }

    /// Appends records that follow the last one without a gap (an empty log without a purge point may
    /// begin anywhere). Returns at once and they can be read at once; only when as many bytes are
    /// pending as the store allows does it wait for room. `done` is called after they are durable.
    /// On `Err` nothing was appended and `done` was dropped uncalled.
    fn append(&self, records: Vec<LogRecord>, done: Done) -> Result<(), LogError>;

    /// Records in `range`, in order and without a gap, from the first that exists; stops after the one
    /// with which the bodies reach `max_bytes`, so at least one is returned if there is any.
    fn read(&self, range: Range<u64>, max_bytes: usize) -> Result<Vec<LogRecord>, LogError>;

    /// What [`LogStore::read`] gives, when all of it lies in memory; never touches the disk. None: ask there.
    fn read_from_memory(&self, _range: Range<u64>, _max_bytes: usize) -> Option<Vec<LogRecord>> {
        None
    }

    /// Saves the vote; blocks until it and all earlier appends are durable.
    fn save_vote(&self, vote: Vote) -> Result<(), LogError>;

    /// Notes what is known to be committed. Costs nothing: it becomes durable with the next change that leaves the log
    /// reaching that far, or at `close`, and may be lost in a crash. What is found at open is in the log.
    fn save_committed(&self, pos: Option<LogPos>);

    /// Removes all records with a greater index, None: all records there are. Blocks until durable.
    /// At or beyond the end it does nothing. The purge point stays where it is.
    fn truncate_after(&self, index: Option<u64>) -> Result<(), LogError>;

    /// Removes all records with an index up to `upto.index`; blocks until durable. May lie beyond the
    /// last record (after a snapshot was installed): then the log is empty and `last` is `upto`. At or
    /// before an earlier purge point it does nothing.
    fn purge(&self, upto: LogPos) -> Result<(), LogError>;

    /// The records that were appended and never reported durable, in order; also of a store that has failed. Some of
    /// them may be on disk all the same. For who opens the store anew after a full disk and must not fall behind what
    /// was applied already.
    fn unsaved(&self) -> Vec<LogRecord> {
        Vec::new()
    }

    /// Writes out everything pending, syncs and closes; later calls fail. Closing twice is fine.
    fn close(&self) -> Result<(), LogError>;

    /// Figures for monitoring.
    fn stats(&self) -> LogStats;
}
