//! sled, at arm's length: every call is guarded against its panics, and its word is never taken.
//!
//! One value is at most a chunk, so that no blob files come to be. Closing waits until the lock is free:
//! sled's own threads may hold the file a little longer than the last handle.

use std::any::Any;
use std::fs::OpenOptions;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::error::SnapshotError;
use super::frames::CHUNK_BYTES;
use crate::failure::{FailureKind, kind_of, panic_text};

const CACHE_BYTES: u64 = 8 << 20;
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(2);
/// The file in which sled keeps its log, and on which it holds its lock.
const LOCKED_FILE_NAME: &str = "db";
/// The directory for values that are too large.
const BLOBS_DIR_NAME: &str = "blobs";

/// An open database.
pub(super) struct Engine {
    /// None once closed.
    db: Option<sled::Db>,
    path: PathBuf,
}

impl Engine {
    /// Creates a database in `path`, which must not exist.
    pub fn create(path: &Path) -> Result<Engine, SnapshotError> {
        std::fs::create_dir(path).map_err(SnapshotError::io(path))?;
        Engine::open_or_create(path)
    }

    /// Opens the database in `path`. sled would make one where there is none.
    pub fn open(path: &Path) -> Result<Engine, SnapshotError> {
        let file_path = path.join(LOCKED_FILE_NAME);
        std::fs::metadata(&file_path).map_err(SnapshotError::io(&file_path))?;
        Engine::open_or_create(path)
    }

    fn open_or_create(path: &Path) -> Result<Engine, SnapshotError> {
        let config =
            sled::Config::new().path(path).cache_capacity(CACHE_BYTES).mode(sled::Mode::LowSpace).flush_every_ms(None);
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match guarded(path, "open", || config.open()) {
                Ok(db) => return Ok(Engine { db: Some(db), path: path.to_owned() }),
                Err(SnapshotError::Engine { detail, .. })
                    if detail.contains("could not acquire lock") && Instant::now() < deadline =>
                {
                    thread::sleep(LOCK_POLL);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Stores a chunk under its number.
    pub fn put(&self, number: u64, chunk: &[u8]) -> Result<(), SnapshotError> {
        assert!(chunk.len() <= CHUNK_BYTES, "a chunk of {} bytes would become a blob file", chunk.len());
        self.call("write", |db| db.insert(number.to_be_bytes(), chunk).map(drop))
    }

    /// All chunks in order of their numbers.
    pub fn chunks(&self) -> Result<Chunks, SnapshotError> {
        let iter = self.call("read", |db| Ok(db.iter()))?;
        Ok(Chunks { iter, path: self.path.clone(), next: 0 })
    }

    /// Writes everything out and closes; the files are at rest on return.
    pub fn close(mut self) -> Result<(), SnapshotError> {
        self.call("flush", |db| db.flush().map(drop))?;
        let db = self.db.take();
        guarded(&self.path, "close", || {
            drop(db);
            Ok(())
        })?;
        wait_until_unlocked(&self.path)?;
        no_blobs(&self.path)
    }

    fn call<T>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&sled::Db) -> Result<T, sled::Error>,
    ) -> Result<T, SnapshotError> {
        match &self.db {
            Some(db) => guarded(&self.path, operation, || work(db)),
            None => Err(engine_error(&self.path, operation, "it is closed".into(), false)),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let db = self.db.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(db)));
    }
}

/// The chunks of a database, in order and without a gap.
pub(super) struct Chunks {
    iter: sled::Iter,
    path: PathBuf,
    next: u64,
}

impl Chunks {
    /// The next chunk, None at the end.
    pub fn next_chunk(&mut self) -> Result<Option<sled::IVec>, SnapshotError> {
        let iter = &mut self.iter;
        let Some((key, value)) = guarded(&self.path, "read", || iter.next().transpose())? else { return Ok(None) };
        if *key != self.next.to_be_bytes() || value.len() > CHUNK_BYTES {
            let what = format!("chunk {} is missing or is not a chunk", self.next);
            return Err(SnapshotError::damaged(&self.path, what));
        }
        self.next += 1;
        Ok(Some(value))
    }
}

fn guarded<T>(
    path: &Path,
    operation: &'static str,
    work: impl FnOnce() -> Result<T, sled::Error>,
) -> Result<T, SnapshotError> {
    let told = |payload: Box<dyn Any + Send>| format!("a panic: {}", panic_text(payload.as_ref()));
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            let disk_full = matches!(&error, sled::Error::Io(io) if kind_of(io) == FailureKind::DiskFull);
            Err(engine_error(path, operation, error.to_string(), disk_full))
        }
        Err(payload) => {
            let detail = told(payload);
            // sled panics over some I/O errors and keeps no more of them than their text
            let disk_full = detail.contains("StorageFull") || detail.contains("No space left");
            Err(engine_error(path, operation, detail, disk_full))
        }
    }
}

fn engine_error(path: &Path, operation: &'static str, detail: String, disk_full: bool) -> SnapshotError {
    SnapshotError::Engine { path: path.to_owned(), operation, detail, disk_full }
}

fn wait_until_unlocked(path: &Path) -> Result<(), SnapshotError> {
    let file_path = path.join(LOCKED_FILE_NAME);
    let file = OpenOptions::new().read(true).open(&file_path).map_err(SnapshotError::io(&file_path))?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(LOCK_POLL),
            Err(errno) => return Err(SnapshotError::Io { path: file_path, source: errno.into() }),
        }
    }
}

/// sled never syncs its blob files, so there must be none.
fn no_blobs(path: &Path) -> Result<(), SnapshotError> {
    let blobs = path.join(BLOBS_DIR_NAME);
    let blob_count = match std::fs::read_dir(&blobs) {
        Ok(entries) => entries.count(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(SnapshotError::io(&blobs)(error)),
    };
    match blob_count {
        0 => Ok(()),
        _ => Err(SnapshotError::damaged(&blobs, "there are blob files, which must not be")),
    }
}
