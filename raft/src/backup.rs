//! Backups: the state of a node as one file, and a fresh cluster from such a file.
//!
//! `take` walks the index of a running node into a file, `check` reads a file and compares it with what it says of
//! itself, `restore` makes a data directory of it. The layout of the file is the storage crate's; its records are those
//! of snapshots, one envelope each. It must never hold a whole state in memory but the one that a restore proves, and
//! never call a file good whose digest it has not computed from the records.

mod check;
mod restore;
pub(crate) mod take;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
pub(crate) mod tests;

pub use check::{Contents, TenantContents, verify};
pub use restore::{Ids, Restored, restore};

use crate::record::FEATURE_MAX;
use prefixd_storage::BackupError;
use std::path::{Path, PathBuf};

/// Why a backup is no good, or could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupFault {
    /// The file is cut, damaged, foreign or from a later release.
    #[error(transparent)]
    File(#[from] BackupError),
    /// A record, or all of them together, are not what they should be.
    #[error("{}: {what}; use another backup", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The cluster had a higher feature level than this release reads.
    #[error(
        "{}: taken at feature level {found}, this release reads up to {known}: restore it with the release that took it \
         ({release}), or a later one",
        path.display()
    )]
    FeatureLevel {
        /// The file.
        path: PathBuf,
        /// The level of the cluster.
        found: u32,
        /// The level of this release.
        known: u32,
        /// The release that took it.
        release: String,
    },
    /// The data directory can't be used or written.
    #[error("{0}")]
    Disk(String),
}

impl BackupFault {
    fn content(path: &Path, what: impl std::fmt::Display) -> Self {
        Self::Content { path: path.to_owned(), what: what.to_string() }
    }

    fn disk(error: impl std::fmt::Display) -> Self {
        Self::Disk(error.to_string())
    }

    /// Refuses what only a later release can apply.
    fn check_level(path: &Path, found: u32, release: &str) -> Result<(), Self> {
        if found <= FEATURE_MAX {
            return Ok(());
        }
        Err(Self::FeatureLevel { path: path.to_owned(), found, known: FEATURE_MAX, release: release.to_owned() })
    }
}
