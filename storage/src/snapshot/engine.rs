//! sled, at arm's length: every call is guarded against its panics, and its word is never taken.
//!
//! One value is at most a chunk, so that no blob files come to be. Closing waits until the lock is free:
//! sled's own threads may hold the file a little longer than the last handle.
//!
//! sled looks at the limit of its cache only where pages are asked for again and again, and a snapshot asks
//! for each once: its cache would hold all of it. So the database is closed and opened anew whenever some
//! MiB have gone through it, and no iterator outlives the call that made it. What sled has replaced it keeps
//! until its epochs have moved on, which they do seldom unless asked: every call that writes or reads asks.

use std::any::Any;
use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::error::SnapshotError;
use super::frames::CHUNK_BYTES;
use crate::failure::{FailureKind, kind_of, panic_text};

const CACHE_BYTES: u64 = 8 << 20;
/// What may go through an open database before it is opened anew: this much at least, or this share of its
/// file if that is more. Opening takes longer the longer the file is; with a share, reading all of a file
/// takes a bounded number of openings.
const REOPEN_AFTER_BYTES: u64 = 4 << 20;
const REOPEN_AFTER_SHARE: u64 = 64;
/// A chunk that is written is in memory twice: in the cache, and in a buffer until the disk has it.
const COPIES_WRITTEN: u64 = 2;
/// Chunks that are read at a time.
const CHUNKS_AHEAD: usize = 64;
/// What is replaced in one epoch goes when the second one after it begins.
const EPOCHS_UNTIL_FREED: usize = 2;
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(2);
/// The file in which sled keeps its log, and on which it holds its lock.
const LOCKED_FILE_NAME: &str = "db";
/// The directory for values that are too large.
const BLOBS_DIR_NAME: &str = "blobs";

/// A database, for any number of readers or one writer.
pub(super) struct Engine {
    path: PathBuf,
    /// None once it was closed, or could not be opened anew.
    opened: Mutex<Option<Opened>>,
}

struct Opened {
    db: sled::Db,
    /// What has gone through its cache.
    cached_bytes: u64,
    /// What may, before it is opened anew.
    cache_limit_bytes: u64,
}

impl Engine {
    /// Creates a database in `path`, which must not exist.
    pub fn create(path: &Path) -> Result<Engine, SnapshotError> {
        std::fs::create_dir(path).map_err(SnapshotError::io(path))?;
        Ok(Engine { path: path.to_owned(), opened: Mutex::new(Some(Opened::open_or_create(path, 0)?)) })
    }

    /// Opens the database in `path`. sled would make one where there is none.
    pub fn open(path: &Path) -> Result<Engine, SnapshotError> {
        Ok(Engine { path: path.to_owned(), opened: Mutex::new(Some(Opened::open(path)?)) })
    }

    /// Stores a chunk under its number.
    pub fn put(&self, number: u64, chunk: &[u8]) -> Result<(), SnapshotError> {
        assert!(chunk.len() <= CHUNK_BYTES, "a chunk of {} bytes would become a blob file", chunk.len());
        let mut opened = self.lock();
        let opened = self.with_cache_room(&mut opened)?;
        opened.cached_bytes += chunk.len() as u64 * COPIES_WRITTEN;
        guarded(&self.path, "write", || {
            opened.db.insert(number.to_be_bytes(), chunk)?;
            free_replaced();
            Ok(())
        })
    }

    /// All chunks in order of their numbers.
    pub fn chunks(self: &Arc<Self>) -> Chunks {
        Chunks { engine: self.clone(), ahead: VecDeque::new(), next: 0 }
    }

    /// Appends the pairs that follow the key of chunk `next` - 1 to `out`, a batch of them.
    fn read_ahead(&self, next: u64, out: &mut VecDeque<Pair>) -> Result<(), SnapshotError> {
        let mut opened = self.lock();
        let opened = self.with_cache_room(&mut opened)?;
        let after = next.checked_sub(1).map_or(Bound::Unbounded, |last| Bound::Excluded(last.to_be_bytes()));
        guarded(&self.path, "read", || {
            for pair in opened.db.range((after, Bound::Unbounded)).take(CHUNKS_AHEAD) {
                let (key, value) = pair?;
                opened.cached_bytes += value.len() as u64;
                out.push_back((key, value));
            }
            free_replaced();
            Ok(())
        })
    }

    /// Writes everything out and closes; the files are at rest on return. Later calls fail.
    pub fn close(&self) -> Result<(), SnapshotError> {
        let opened = self.lock().take().ok_or_else(|| self.closed())?;
        opened.close(&self.path)?;
        no_blobs(&self.path)
    }

    /// The open database, opened anew when enough has gone through its cache.
    fn with_cache_room<'a>(&self, slot: &'a mut Option<Opened>) -> Result<&'a mut Opened, SnapshotError> {
        if let Some(full) = slot.take_if(|opened| opened.cached_bytes >= opened.cache_limit_bytes) {
            full.close(&self.path)?;
            *slot = Some(Opened::open(&self.path)?);
        }
        slot.as_mut().ok_or_else(|| self.closed())
    }

    fn closed(&self) -> SnapshotError {
        // not a word about what is on disk: another reader may have closed it, over an error of its own
        SnapshotError::io(&self.path)(io::Error::other("the database is closed"))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let opened = self.lock().take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(opened)));
    }
}

impl Opened {
    /// Opens what is there; a generation that was set aside meanwhile isn't.
    fn open(path: &Path) -> Result<Opened, SnapshotError> {
        let file_path = path.join(LOCKED_FILE_NAME);
        let file_bytes = std::fs::metadata(&file_path).map_err(SnapshotError::io(&file_path))?.len();
        Opened::open_or_create(path, file_bytes)
    }

    fn open_or_create(path: &Path, file_bytes: u64) -> Result<Opened, SnapshotError> {
        let cache_limit_bytes = REOPEN_AFTER_BYTES.max(file_bytes / REOPEN_AFTER_SHARE);
        let config =
            sled::Config::new().path(path).cache_capacity(CACHE_BYTES).mode(sled::Mode::LowSpace).flush_every_ms(None);
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match guarded(path, "open", || config.open()) {
                Ok(db) => return Ok(Opened { db, cached_bytes: 0, cache_limit_bytes }),
                Err(SnapshotError::Engine { detail, .. })
                    if detail.contains("could not acquire lock") && Instant::now() < deadline =>
                {
                    thread::sleep(LOCK_POLL);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes everything out and closes; nobody holds the files on return.
    fn close(self, path: &Path) -> Result<(), SnapshotError> {
        guarded(path, "flush", || self.db.flush().map(drop))?;
        guarded(path, "close", || {
            drop(self.db);
            free_replaced();
            Ok(())
        })?;
        wait_until_unlocked(path)
    }
}

type Pair = (sled::IVec, sled::IVec);

/// The chunks of a database, in order and without a gap.
pub(super) struct Chunks {
    engine: Arc<Engine>,
    ahead: VecDeque<Pair>,
    next: u64,
}

impl Chunks {
    /// The next chunk, None at the end.
    pub fn next_chunk(&mut self) -> Result<Option<sled::IVec>, SnapshotError> {
        if self.ahead.is_empty() {
            self.engine.read_ahead(self.next, &mut self.ahead)?;
        }
        let Some((key, value)) = self.ahead.pop_front() else { return Ok(None) };
        if *key != self.next.to_be_bytes() || value.len() > CHUNK_BYTES {
            let what = format!("chunk {} is missing or is not a chunk", self.next);
            return Err(SnapshotError::damaged(&self.engine.path, what));
        }
        self.next += 1;
        Ok(Some(value))
    }

    /// [`Engine::close`].
    pub fn close(self) -> Result<(), SnapshotError> {
        self.engine.close()
    }
}

/// Has sled free what it no longer needs: write buffers of 512 KiB and nodes that made way for others. No more
/// than a request: a thread of sled that is at work holds its epoch, and the next call asks again.
fn free_replaced() {
    for _ in 0..EPOCHS_UNTIL_FREED {
        sled::pin().flush();
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
