//! How a log is opened: whose it is, its limits, and who is told what.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::device::{FaultHook, LogFile};
use crate::failure::Failure;

/// Told once when a store fails for good. The node ends its process from here, or, on a full disk, opens
/// the store anew.
pub type FatalCallback = Arc<dyn Fn(&Failure) + Send + Sync>;

/// Told how long each sync of a file took.
pub type SyncObserver = Arc<dyn Fn(LogFile, Duration) + Send + Sync>;

/// How to open a log.
#[derive(Clone)]
pub struct LogOptions {
    /// The store uuid of the node's identity; files of another store are refused.
    pub store_uuid: u128,
    /// Most bytes of record bodies that go into one commit.
    pub group_max_bytes: usize,
    /// Most records that go into one commit.
    pub group_max_records: usize,
    /// Bytes of appended bodies that may wait for the disk before `append` waits as well.
    pub pending_max_bytes: usize,
    /// Bytes of the latest bodies that are kept in memory beyond what is pending.
    pub tail_max_bytes: usize,
    /// Memory for the engine's page cache.
    pub cache_bytes: usize,
    /// Told once when the store fails for good.
    pub on_fatal: Option<FatalCallback>,
    /// Told how long each sync took.
    pub on_sync: Option<SyncObserver>,
    /// Tests put faults in here.
    pub fault_hook: Option<Arc<dyn FaultHook>>,
}

impl LogOptions {
    /// The defaults for the store with this uuid.
    pub fn new(store_uuid: u128) -> LogOptions {
        LogOptions {
            store_uuid,
            group_max_bytes: 8 << 20,
            group_max_records: 8192,
            pending_max_bytes: 128 << 20,
            tail_max_bytes: 32 << 20,
            cache_bytes: 32 << 20,
            on_fatal: None,
            on_sync: None,
            fault_hook: None,
        }
    }
}

impl fmt::Debug for LogOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogOptions")
            .field("store_uuid", &format_args!("{:032x}", self.store_uuid))
            .field("group_max_bytes", &self.group_max_bytes)
            .field("group_max_records", &self.group_max_records)
            .field("pending_max_bytes", &self.pending_max_bytes)
            .field("tail_max_bytes", &self.tail_max_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .finish_non_exhaustive()
    }
}
