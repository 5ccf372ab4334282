//! Why a backup file was not written or not read: each refusal names the file and what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::codec::Magic;

/// Why a backup file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Not a backup at all.
    #[error("{}: foreign: this is no prefixd backup; it begins with \"{}\", not \"PFBK\"", path.display(), found.escape_ascii())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its first four bytes.
        found: Magic,
    },
    /// Written in a form that this release does not know.
    #[error(
        "{}: from a later release: backup format version {found} is not readable by this release, which reads {oldest} \
         to {newest}; use the release that wrote it, or a later one",
        path.display()
    )]
    LaterRelease {
        /// The file.
        path: PathBuf,
        /// The version that was found.
        found: u16,
        /// The oldest version that can be read.
        oldest: u16,
        /// The newest version that can be read.
        newest: u16,
    },
    /// The end is missing.
    #[error(
        "{}: cut short: it ends after {bytes} bytes, without the end that a whole backup has; take the backup again, or \
         use another",
        path.display()
    )]
    Cut {
        /// The file.
        path: PathBuf,
        /// How long it is.
        bytes: u64,
    },
    /// The bytes are not those that were written.
    #[error("{}: damaged at byte {at}: {what}; use another backup", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where what is damaged begins.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// A record is larger than a backup takes.
    #[error("a record of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

impl BackupError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> BackupError {
        let path = path.to_owned();
        move |source| BackupError::Io { path, source }
    }

    pub(super) fn damaged(path: &Path, at: u64, what: impl Into<String>) -> BackupError {
        BackupError::Damaged { path: path.to_owned(), at, what: what.into() }
    }
}
