//! What can go wrong with a snapshot, and what becomes of one that is no good.

use std::io;
use std::path::{Path, PathBuf};

use crate::codec::CodecError;
use crate::failure::{FailureKind, kind_of};

/// Why a snapshot could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A file or directory could not be read, written or synced.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The storage engine failed or panicked.
    #[error("{}: the snapshot engine failed to {operation}: {detail}", path.display())]
    Engine {
        /// The database.
        path: PathBuf,
        /// What it was to do.
        operation: &'static str,
        /// What it said.
        detail: String,
        /// Whether there was no room.
        disk_full: bool,
    },
    /// The manifest is missing, torn, foreign or from a later release.
    #[error("{}: {source}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        source: CodecError,
    },
    /// The content is not what was written.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A record is larger than a snapshot takes.
    #[error("a record of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The manifest tells another number of records than were written.
    #[error("the manifest tells of {manifest} records, but {written} were written")]
    WrongCount {
        /// What the manifest says.
        manifest: u64,
        /// How many there are.
        written: u64,
    },
}

impl SnapshotError {
    /// Whether there was no room: the snapshot was not taken, but nothing is broken.
    pub fn is_disk_full(&self) -> bool {
        match self {
            SnapshotError::Io { source, .. } => kind_of(source) == FailureKind::DiskFull,
            SnapshotError::Engine { disk_full, .. } => *disk_full,
            _ => false,
        }
    }

    /// Whether what is on disk is to blame. Else the system did not let us look, and trying again may help.
    pub fn blames_the_disk(&self) -> bool {
        match self {
            SnapshotError::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
                    || source.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
            }
            SnapshotError::Engine { disk_full, .. } => !disk_full,
            _ => true,
        }
    }

    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> SnapshotError {
        let path = path.to_owned();
        move |source| SnapshotError::Io { path, source }
    }

    pub(super) fn damaged(path: &Path, what: impl Into<String>) -> SnapshotError {
        SnapshotError::Damaged { path: path.to_owned(), what: what.into() }
    }
}

/// A generation that was no good and is out of the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// Where it lies now; the two latest are kept for whoever wants to look.
    pub path: PathBuf,
    /// What was wrong with it.
    pub reason: String,
}
