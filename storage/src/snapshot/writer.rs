//! Writing a generation: put, seal, publish.
//!
//! Nothing is visible before `publish` has synced every file and renamed the directory; dropping what is
//! not published removes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::engine::Engine;
use super::error::SnapshotError;
use super::frames::{FrameWriter, MAX_RECORD_BYTES};
use super::generation::{Generation, Records};
use super::manifest::{ENGINE_DIR_NAME, SnapshotManifest, StoredFile, StoredManifest, checksum_files, sync_tree};
use super::store::StoreInner;

/// How often a closed database may differ from what it was before it was opened for reading. Measured:
/// from the second opening on, now and then the third, its files don't change any more.
const MAX_REST_ROUNDS: usize = 8;

/// A snapshot being written. Dropping it gives it up.
pub struct SnapshotWriter {
    dir: TemporaryDir,
    engine: Engine,
    frames: FrameWriter,
    chunks: u64,
    store: Arc<StoreInner>,
}

impl SnapshotWriter {
    pub(super) fn new(store: Arc<StoreInner>, path: PathBuf) -> Result<SnapshotWriter, SnapshotError> {
        fs::create_dir(&path).map_err(SnapshotError::io(&path))?;
        let dir = TemporaryDir { path };
        let engine = Engine::create(&dir.path.join(ENGINE_DIR_NAME))?;
        Ok(SnapshotWriter { dir, engine, frames: FrameWriter::default(), chunks: 0, store })
    }

    /// Adds a record of at most [`MAX_RECORD_BYTES`].
    pub fn put(&mut self, record: &[u8]) -> Result<(), SnapshotError> {
        if record.len() > MAX_RECORD_BYTES {
            return Err(SnapshotError::TooLarge { bytes: record.len(), limit: MAX_RECORD_BYTES });
        }
        let SnapshotWriter { engine, frames, chunks, .. } = self;
        frames.put(record, |chunk| {
            engine.put(*chunks, chunk)?;
            *chunks += 1;
            Ok(())
        })
    }

    /// How many records were put.
    pub fn records(&self) -> u64 {
        self.frames.records
    }

    /// Bytes of the records that were put, with their frames.
    pub fn record_bytes(&self) -> u64 {
        self.frames.bytes
    }

    /// Closes the database, reads every record back, and writes the manifest. What is left is to publish
    /// it; until then its records can be looked at, as they are on disk.
    pub fn seal(mut self, manifest: SnapshotManifest) -> Result<SealedSnapshot, SnapshotError> {
        if manifest.records != self.frames.records {
            return Err(SnapshotError::WrongCount { manifest: manifest.records, written: self.frames.records });
        }
        let (engine, number) = (&self.engine, self.chunks);
        let stream_checksum = self.frames.finish(|chunk| engine.put(number, chunk))?;
        self.engine.close()?;
        let engine_dir = self.dir.path.join(ENGINE_DIR_NAME);
        let mut stored =
            StoredManifest { manifest, stream_bytes: self.frames.bytes, stream_checksum, files: Vec::new() };
        read_back(&self.dir.path, &stored)?;
        stored.files = bring_to_rest(&engine_dir)?;
        stored.write(&self.dir.path)?;
        let sealed = Arc::new(Generation::new(0, self.dir.path.clone(), stored));
        Ok(SealedSnapshot { sealed, dir: self.dir, store: self.store })
    }

    /// [`SnapshotWriter::seal`] and [`SealedSnapshot::publish`] in one.
    pub fn finish(self, manifest: SnapshotManifest) -> Result<Arc<Generation>, SnapshotError> {
        self.seal(manifest)?.publish()
    }
}

/// A snapshot that is complete, but not yet one of the generations. Dropping it gives it up.
pub struct SealedSnapshot {
    sealed: Arc<Generation>,
    dir: TemporaryDir,
    store: Arc<StoreInner>,
}

impl SealedSnapshot {
    /// The records as they are on disk, so that the state that they make up can be compared with the
    /// digest before anybody relies on it.
    pub fn records(&self) -> Result<Records, SnapshotError> {
        self.sealed.records()
    }

    /// Makes it durable and the latest generation; older ones than the last two go.
    pub fn publish(self) -> Result<Arc<Generation>, SnapshotError> {
        sync_tree(&self.dir.path)?;
        self.store.publish(self.dir, self.sealed.stored().clone())
    }
}

/// A directory under a temporary name; removed unless it was renamed.
pub(super) struct TemporaryDir {
    pub path: PathBuf,
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "could not delete an unfinished snapshot; the next start will");
        }
    }
}

/// Reads everything back through a fresh handle, and closes it.
fn read_back(path: &Path, stored: &StoredManifest) -> Result<(), SnapshotError> {
    let generation = Arc::new(Generation::new(0, path.to_owned(), stored.clone()));
    let mut records = generation.records()?;
    records.try_for_each(|record| record.map(drop))?;
    records.close()
}

/// Opens and closes the database until that changes none of its files, and returns their checksums. It was
/// read before, and is closed.
fn bring_to_rest(engine_dir: &Path) -> Result<Vec<StoredFile>, SnapshotError> {
    let mut before = checksum_files(engine_dir)?;
    for _ in 0..MAX_REST_ROUNDS {
        let engine = Arc::new(Engine::open(engine_dir)?);
        let mut chunks = engine.chunks();
        while chunks.next_chunk()?.is_some() {}
        engine.close()?;
        let after = checksum_files(engine_dir)?;
        if after == before {
            return Ok(after);
        }
        before = after;
    }
    Err(SnapshotError::damaged(engine_dir, "the database changes each time it is opened"))
}
