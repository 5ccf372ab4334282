//! Bytes on disk: the log, the vote, the identity of a node, and its snapshots.
//!
//! This crate owns every file under a data directory and the promise that what was acknowledged is
//! there after a crash, or that the node refuses to start and says why. Records and snapshot contents
//! are opaque to it: it must never know the wire, the index or the consensus library.
//! Start reading at [`data_dir`] (what lies where), then [`log`] and [`snapshot`]; `docs/STORAGE.md`
//! describes every file byte by byte.

#![cfg_attr(test, expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so by panicking"))]

pub mod backup;
pub mod codec;
pub mod data_dir;
pub mod durable;
pub mod failure;
pub mod identity;
pub mod log;
pub mod rejoin;
pub mod snapshot;

#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
mod measure_tests;
#[cfg(test)]
mod small_disk;

pub use backup::{BackupEnd, BackupError, BackupHeader, BackupReader, BackupWriter};
pub use codec::CodecError;
pub use data_dir::{DataDir, DataDirError, Presence, disk_free_bytes};
pub use failure::{Failure, FailureKind};
pub use identity::{Identity, IdentityError, Promise};
pub use log::{
    Done, FaultHook, LogError, LogFile, LogOptions, LogPos, LogRecord, LogState, LogStats, LogStore, OpenError,
    RedbLog, SyncLatency, Vote,
};
pub use rejoin::Rejoin;
pub use snapshot::{Generation, SetAside, SnapshotError, SnapshotManifest, SnapshotStore, SnapshotWriter};
