//! A published generation, and reading its records.
//!
//! The database is opened for the first reader and closed behind the last. A generation that was
//! replaced is deleted, as a whole directory, when nobody holds it any more.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::engine::{Chunks, Engine};
use super::error::SnapshotError;
use super::frames::FrameReader;
use super::manifest::{ENGINE_DIR_NAME, SnapshotManifest, StoredManifest};
use crate::durable::{parent, sync_dir};
use crate::log::LogPos;

/// A snapshot that is whole on disk. It is not deleted while somebody holds it.
pub struct Generation {
    number: u64,
    path: PathBuf,
    stored: StoredManifest,
    /// The open database, as long as somebody reads.
    engine: Mutex<Weak<Engine>>,
    /// To be deleted when dropped.
    replaced: AtomicBool,
}

impl Generation {
    pub(super) fn new(number: u64, path: PathBuf, stored: StoredManifest) -> Generation {
        Generation { number, path, stored, engine: Mutex::new(Weak::new()), replaced: AtomicBool::new(false) }
    }

    /// What it is a snapshot of.
    pub fn manifest(&self) -> &SnapshotManifest {
        &self.stored.manifest
    }

    /// Bytes that it takes on disk.
    pub fn bytes(&self) -> u64 {
        self.stored.disk_bytes()
    }

    /// Bytes of its records with their frames: about what it takes to send it.
    pub fn record_bytes(&self) -> u64 {
        self.stored.stream_bytes
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its records in the order in which they were put. Each is verified by itself, count and sum at the
    /// end: only when the iterator has returned None without an error was everything there.
    pub fn records(self: &Arc<Self>) -> Result<Records, SnapshotError> {
        let engine = {
            let mut open = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
            match open.upgrade() {
                Some(engine) => engine,
                None => {
                    let engine = Arc::new(Engine::open(&self.path.join(ENGINE_DIR_NAME))?);
                    *open = Arc::downgrade(&engine);
                    engine
                }
            }
        };
        let frames = FrameReader::default();
        Ok(Records { chunks: engine.chunks(), frames, ended: false, generation: self.clone() })
    }

    /// Generations are ordered by what is in them, then by age: one that was begun earlier and ended
    /// later than another must not hide it.
    pub(super) fn rank(&self) -> (Option<LogPos>, u64) {
        (self.stored.manifest.last, self.number)
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn stored(&self) -> &StoredManifest {
        &self.stored
    }

    pub(super) fn verify_files(&self) -> Result<(), SnapshotError> {
        self.stored.verify_files(&self.path)
    }

    /// Has the directory deleted when the last holder is gone.
    pub(super) fn replace(&self) {
        self.replaced.store(true, Ordering::Release);
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.replaced.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path).and_then(|()| sync_dir(parent(&self.path))) {
            tracing::warn!(path = %self.path.display(), %error, "could not delete a replaced snapshot; the next start will");
        }
    }
}

/// The records of a generation, see [`Generation::records`].
pub struct Records {
    // dropped in this order: the database before the directory
    chunks: Chunks,
    frames: FrameReader,
    ended: bool,
    generation: Arc<Generation>,
}

impl Records {
    /// Closes the database for all who read it; its files are at rest on return.
    pub(super) fn close(self) -> Result<(), SnapshotError> {
        self.chunks.close()
    }

    fn advance(&mut self) -> Result<Option<Vec<u8>>, SnapshotError> {
        loop {
            let damaged = |what| SnapshotError::damaged(&self.generation.path, what);
            if let Some(record) = self.frames.next_record().map_err(damaged)? {
                return Ok(Some(record));
            }
            match self.chunks.next_chunk()? {
                Some(chunk) => self.frames.feed(&chunk),
                None => return self.check_end().map(|()| None),
            }
        }
    }

    fn check_end(&self) -> Result<(), SnapshotError> {
        let stored = &self.generation.stored;
        let found = (self.frames.records, self.frames.bytes, self.frames.checksum());
        let expected = (stored.manifest.records, stored.stream_bytes, stored.stream_checksum);
        if found == expected && self.frames.rest_bytes() == 0 {
            return Ok(());
        }
        let what = format!(
            "{} records in {} bytes with checksum {:032x}, expected {} in {} with {:032x}",
            found.0, found.1, found.2, expected.0, expected.1, expected.2
        );
        Err(SnapshotError::damaged(&self.generation.path, what))
    }
}

impl Iterator for Records {
    type Item = Result<Vec<u8>, SnapshotError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.advance().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
