//! The data directory: what lies where, whose it is, and which combinations of files can be.
//!
//! | name | what | module |
//! |---|---|---|
//! | `lock` | flock of the process that has it | here |
//! | `identity` | who this node is | [`crate::identity`] |
//! | `promise` | the promise to found one cluster | [`crate::identity`] |
//! | `log.mark`, `log.redb` | log, vote | [`crate::log`] |
//! | `snapshots/` | generations | [`crate::snapshot`] |
//! | `restoring` | a restore that is not done | `restoring` |
//!
//! It must never start anew over the remains of a node that has served: a lost file is refused by name.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, statvfs};

use crate::durable::{parent, remove_durably, sync_dir};
use crate::failure::{Failure, FailureKind};
use crate::identity::{Identity, IdentityError, Promise};
use crate::log::{LogOptions, MARK_FILE_NAME, OpenError, RedbLog, STORE_FILE_NAME, is_unborn_mark};
use crate::rejoin::Rejoin;

mod restoring;

const LOCK_FILE_NAME: &str = "lock";
const IDENTITY_FILE_NAME: &str = "identity";
const PROMISE_FILE_NAME: &str = "promise";
const SNAPSHOTS_DIR_NAME: &str = "snapshots";

/// A data directory, held by this process alone until dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    presence: Presence,
    /// Holds the flock.
    _lock: File,
}

/// Which of the files of a node were there when the directory was opened.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// The mark of the log.
    pub mark: bool,
    /// The store of the log.
    pub store: bool,
    /// The identity.
    pub identity: bool,
    /// Anything under `snapshots/`.
    pub snapshots: bool,
}

impl Presence {
    /// Whether this is a disk on which no node has ever served.
    pub fn is_fresh(&self) -> bool {
        !self.identity
    }
}

/// Why a data directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// The system did not let us.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{}: the data directory is in use by another process", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// Files of a node are gone while others are there.
    #[error("{}: {missing} is missing although {present} is there. {}", path.display(), Rejoin(path))]
    Incomplete {
        /// The directory.
        path: PathBuf,
        /// The name of what should be there.
        missing: &'static str,
        /// The name of what is there.
        present: &'static str,
    },
    /// A restore was cut short here.
    #[error(
        "{}: a restore into this directory was cut short, so nothing in it may be served: run `prefixd restore FILE \
         --data-dir {}` again, which starts over, or empty the directory",
        path.display(), path.display()
    )]
    HalfRestored {
        /// The directory.
        path: PathBuf,
    },
    /// A restore would mix with what is there.
    #[error(
        "{}: not empty ({found} is there): a backup is restored into an empty or absent directory only; move it away, \
         or name another --data-dir",
        path.display()
    )]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// One of the names in it.
        found: String,
    },
    /// The directory is not in the state that the call asks for.
    #[error("{}: {problem}", path.display())]
    WrongState {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        problem: &'static str,
    },
    /// The identity is unreadable or was not written.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The log was refused or failed.
    #[error(transparent)]
    Log(#[from] OpenError),
}

impl DataDirError {
    /// True when all that is wrong is that there is no room.
    pub fn is_disk_full(&self) -> bool {
        match self {
            DataDirError::Io { source, .. } | DataDirError::Identity(IdentityError::Io { source, .. }) => {
                Failure::io("", source).kind == FailureKind::DiskFull
            }
            DataDirError::Log(OpenError::Failed(failure)) => failure.kind == FailureKind::DiskFull,
            _ => false,
        }
    }
}

impl DataDir {
    /// Opens the directory, creating it if need be, and takes it for this process.
    pub fn open(path: &Path) -> Result<DataDir, DataDirError> {
        let at = |at: &Path| {
            let at = at.to_owned();
            move |source| DataDirError::Io { path: at, source }
        };
        restoring::refuse(path)?;
        let snapshots = path.join(SNAPSHOTS_DIR_NAME);
        fs::create_dir_all(&snapshots).map_err(at(&snapshots))?;
        let lock = take_lock(path)?;
        // A restore may have begun and ended its work between the look and the lock.
        restoring::refuse(path)?;
        sync_dir(path).and_then(|()| sync_dir(parent(path))).map_err(at(path))?;
        let exists = |name: &str| path.join(name).try_exists().map_err(at(&path.join(name)));
        let presence = Presence {
            mark: exists(MARK_FILE_NAME)?,
            store: exists(STORE_FILE_NAME)?,
            identity: exists(IDENTITY_FILE_NAME)?,
            snapshots: fs::read_dir(&snapshots).map_err(at(&snapshots))?.next().is_some(),
        };
        let dir = DataDir { path: path.to_owned(), presence, _lock: lock };
        dir.check_presence()?;
        Ok(dir)
    }

    /// Creation order is mark, store, identity: what is left of a creation that was cut short has no
    /// identity and a mark that marks nothing. All else lost a file.
    fn check_presence(&self) -> Result<(), DataDirError> {
        let Presence { mark, store, identity, snapshots } = self.presence;
        let incomplete = |missing, present| Err(DataDirError::Incomplete { path: self.path.clone(), missing, present });
        if identity && !mark {
            return incomplete(MARK_FILE_NAME, IDENTITY_FILE_NAME);
        }
        if identity && !store {
            return incomplete(STORE_FILE_NAME, IDENTITY_FILE_NAME);
        }
        if store && !mark {
            return incomplete(MARK_FILE_NAME, STORE_FILE_NAME);
        }
        if !identity && snapshots {
            return incomplete(IDENTITY_FILE_NAME, SNAPSHOTS_DIR_NAME);
        }
        if !identity && mark {
            let mark_path = self.path.join(MARK_FILE_NAME);
            let bytes = fs::read(&mark_path).map_err(|source| DataDirError::Io { path: mark_path, source })?;
            if !is_unborn_mark(&bytes) {
                return incomplete(IDENTITY_FILE_NAME, MARK_FILE_NAME);
            }
        }
        Ok(())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was there when the directory was opened.
    pub fn presence(&self) -> Presence {
        self.presence
    }

    /// Where snapshots lie.
    pub fn snapshots_path(&self) -> PathBuf {
        self.path.join(SNAPSHOTS_DIR_NAME)
    }

    /// Where the identity lies.
    pub fn identity_path(&self) -> PathBuf {
        self.path.join(IDENTITY_FILE_NAME)
    }

    /// Where the promise lies.
    pub fn promise_path(&self) -> PathBuf {
        self.path.join(PROMISE_FILE_NAME)
    }

    /// Makes a fresh directory the home of a node: an empty log, then this identity. `options` carries
    /// the same store uuid. The log is then opened by [`DataDir::load`].
    pub fn create(&mut self, identity: &Identity, options: &LogOptions) -> Result<(), DataDirError> {
        if self.presence.identity {
            return Err(self.wrong_state("a node lives here already"));
        }
        if identity.store_uuid != options.store_uuid {
            return Err(self.wrong_state("identity and log options name different store uuids"));
        }
        // Remains of a creation that was cut short, newest first, so that a cut here leaves remains too.
        for name in [STORE_FILE_NAME, MARK_FILE_NAME] {
            let path = self.path.join(name);
            remove_durably(&path).map_err(|source| DataDirError::Io { path, source })?;
        }
        RedbLog::create(&self.path, options)?;
        identity.write(&self.identity_path())?;
        self.presence = Presence { mark: true, store: true, identity: true, ..self.presence };
        Ok(())
    }

    /// Reads the identity and counts its incarnation up, durable on return.
    pub fn load_identity(&self) -> Result<Identity, DataDirError> {
        let mut identity = self.peek_identity()?;
        identity.incarnation += 1;
        identity.write(&self.identity_path())?;
        Ok(identity)
    }

    /// Reads the identity and changes nothing: for a disk that has no room for a change.
    pub fn peek_identity(&self) -> Result<Identity, DataDirError> {
        Identity::read(&self.identity_path())?.ok_or_else(|| self.wrong_state("no node lives here yet"))
    }

    /// [`DataDir::load_identity`], and the log that belongs to it; `options` makes the log's options of
    /// the store uuid.
    pub fn load(&self, options: impl FnOnce(u128) -> LogOptions) -> Result<(Identity, RedbLog), DataDirError> {
        let identity = self.load_identity()?;
        let log = RedbLog::open(&self.path, options(identity.store_uuid))?;
        Ok((identity, log))
    }

    /// The promise that this node has made, if any.
    pub fn promise(&self) -> Result<Option<Promise>, IdentityError> {
        Promise::read(&self.promise_path())
    }

    fn wrong_state(&self, problem: &'static str) -> DataDirError {
        DataDirError::WrongState { path: self.path.clone(), problem }
    }
}

/// Takes the directory for this process alone, for as long as the file is open.
fn take_lock(path: &Path) -> Result<File, DataDirError> {
    let lock_path = path.join(LOCK_FILE_NAME);
    let io = |source| DataDirError::Io { path: lock_path.clone(), source };
    let lock = OpenOptions::new().write(true).create(true).truncate(false).open(&lock_path).map_err(io)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
        rustix::io::Errno::WOULDBLOCK => DataDirError::InUse { path: path.to_owned() },
        errno => DataDirError::Io { path: lock_path.clone(), source: errno.into() },
    })?;
    Ok(lock)
}

/// Bytes that an ordinary process may still write to the file system of `path`.
pub fn disk_free_bytes(path: &Path) -> io::Result<u64> {
    let stat = statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests;
