//! Small files that must be whole after any crash, and directories whose entries must last.
//!
//! A file is replaced by writing a neighbour, syncing it, renaming it and syncing the directory; it is
//! never changed in place. Files that are changed in place (log, mark) are in [`crate::log`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

/// Syncs a directory, so that entries created, renamed or removed in it last.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Replaces `path` by `bytes`, whole and durable on return; a crash leaves the old or the new content.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary_name(path);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&temporary, path)?;
    sync_dir(parent(path))
}

/// Reads a file of at most `limit` bytes that [`write_atomically`] wrote, None if there is none. It and
/// its directory are synced first: what is read must not vanish in a power loss after it was acted upon.
pub fn read_settled(path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    settle(&file)?;
    sync_dir(parent(path))?;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("larger than {limit} bytes")));
    }
    Ok(Some(bytes))
}

/// Removes a file if it is there, durable on return.
pub fn remove_durably(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_dir(parent(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes what will be read from `file` what the disk holds: syncs it, then drops its cached pages.
///
/// After a failed fsync the kernel may keep the unwritten pages in its cache as if they were clean; a
/// restarted process would read what a power loss takes away again.
pub(crate) fn settle(file: &File) -> io::Result<()> {
    file.sync_all()?;
    fadvise(file, 0, None, Advice::DontNeed)?;
    Ok(())
}

/// The directory that holds `path`.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("unit");
        assert_eq!(read_settled(&path, 10).unwrap(), None);
        write_atomically(&path, b"first").unwrap();
        write_atomically(&path, b"second").unwrap();
        assert_eq!(read_settled(&path, 10).unwrap().unwrap(), b"second");
        assert!(read_settled(&path, 3).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        remove_durably(&path).unwrap();
        remove_durably(&path).unwrap();
        assert_eq!(read_settled(&path, 10).unwrap(), None);
    }
}
