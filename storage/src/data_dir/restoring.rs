//! A data directory that is filled from a backup. While the file `restoring` lies in it, it belongs to no node: whoever
//! opens it to serve is refused, and the next restore starts over. The marker is durable before anything but the lock is
//! made, and goes last; so a restore that was cut short anywhere is never served.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::{DataDir, DataDirError, LOCK_FILE_NAME, Presence, SNAPSHOTS_DIR_NAME, take_lock};
use crate::durable::{parent, remove_durably, sync_dir};

const MARKER_FILE_NAME: &str = "restoring";
/// What file systems put into a directory of their own.
const NOT_OURS: &str = "lost+found";

/// Refuses a directory in which a restore was cut short.
pub(super) fn refuse(path: &Path) -> Result<(), DataDirError> {
    let marker = path.join(MARKER_FILE_NAME);
    match marker.try_exists() {
        Ok(false) => Ok(()),
        Ok(true) => Err(DataDirError::HalfRestored { path: path.to_owned() }),
        Err(source) => Err(DataDirError::Io { path: marker, source }),
    }
}

impl DataDir {
    /// Takes a directory that is empty or absent, or in which an earlier restore was cut short, for a restore. To be
    /// ended by [`DataDir::restored`] or [`DataDir::give_up_restore`].
    pub fn open_for_restore(path: &Path) -> Result<DataDir, DataDirError> {
        let at = |at: &Path| {
            let at = at.to_owned();
            move |source| DataDirError::Io { path: at, source }
        };
        let marker = path.join(MARKER_FILE_NAME);
        let check = || match marker.try_exists().map_err(at(&marker))? {
            true => Ok(()),
            false => match first_entry(path).map_err(at(path))? {
                Some(found) => Err(DataDirError::NotEmpty { path: path.to_owned(), found }),
                None => Ok(()),
            },
        };
        fs::create_dir_all(path).map_err(at(path))?;
        // Before the lock, so that a directory of somebody else's gets no lock file; behind it, so that it stays true.
        check()?;
        let lock = take_lock(path)?;
        check()?;
        File::create(&marker).and_then(|file| file.sync_all()).map_err(at(&marker))?;
        sync_dir(path).and_then(|()| sync_dir(parent(path))).map_err(at(path))?;
        let dir = DataDir { path: path.to_owned(), presence: Presence::default(), _lock: lock };
        dir.remove_all_but_marker().map_err(at(path))?;
        let snapshots = path.join(SNAPSHOTS_DIR_NAME);
        fs::create_dir(&snapshots).map_err(at(&snapshots))?;
        Ok(dir)
    }

    /// Makes what was restored a node's directory, durable on return.
    pub fn restored(self) -> Result<(), DataDirError> {
        let sync = |path: &Path| {
            let synced = File::open(path).and_then(|dir| dir.sync_all());
            synced.map_err(|source| DataDirError::Io { path: path.to_owned(), source })
        };
        sync(&self.snapshots_path())?;
        sync(&self.path)?;
        self.remove_marker()
    }

    /// Empties the directory again.
    pub fn give_up_restore(self) -> Result<(), DataDirError> {
        let emptied = self.remove_all_but_marker().and_then(|()| sync_dir(&self.path));
        emptied.map_err(|source| DataDirError::Io { path: self.path.clone(), source })?;
        self.remove_marker()?;
        let lock = self.path.join(LOCK_FILE_NAME);
        remove_durably(&lock).map_err(|source| DataDirError::Io { path: lock, source })
    }

    fn remove_marker(&self) -> Result<(), DataDirError> {
        let marker = self.path.join(MARKER_FILE_NAME);
        remove_durably(&marker).map_err(|source| DataDirError::Io { path: marker, source })
    }

    /// Removes what a restore made; the marker outlives it, and the lock is held.
    fn remove_all_but_marker(&self) -> io::Result<()> {
        for path in entries(&self.path)? {
            let name = path.file_name().unwrap_or_default();
            if name == MARKER_FILE_NAME {
                continue;
            }
            if path.is_dir() { fs::remove_dir_all(&path)? } else { fs::remove_file(&path)? }
        }
        Ok(())
    }
}

/// What lies in a directory, sorted, but for what the file system put there and the lock, which is no content.
fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    found.retain(|path| path.file_name().is_none_or(|name| name != NOT_OURS && name != LOCK_FILE_NAME));
    found.sort();
    Ok(found)
}

fn first_entry(dir: &Path) -> io::Result<Option<String>> {
    let first = entries(dir)?.into_iter().next();
    Ok(first.map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned()))
}
