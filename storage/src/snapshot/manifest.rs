//! The manifest: what a generation is, and the checksum of every file that makes it up.
//!
//! It is written last. The checksums of the files come first at open: a damaged database is never shown
//! to the engine, which might panic, hang, or break its process-wide thread pool over it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::error::SnapshotError;
use crate::codec::{self, Magic};
use crate::durable::{settle, write_atomically};
use crate::log::LogPos;

pub(super) const MANIFEST_FILE_NAME: &str = "manifest";
/// The directory of the database inside that of a generation.
pub(super) const ENGINE_DIR_NAME: &str = "sled";
const MAGIC: Magic = *b"PFSM";
const VERSION: u16 = 1;
const READ_BYTES: usize = 256 << 10;

/// What a snapshot is a snapshot of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotManifest {
    /// The cluster that it belongs to.
    pub cluster_id: u128,
    /// The last log position that is in it.
    pub last: Option<LogPos>,
    /// The membership at that position; opaque here.
    pub membership: Vec<u8>,
    /// Whatever else its maker wants back; opaque here.
    pub header: Vec<u8>,
    /// How many records it has.
    pub records: u64,
    /// The digest of the state that it holds; opaque here.
    pub digest: u128,
    /// When it was taken, in microseconds of cluster time.
    pub taken_at_us: u64,
}

/// The manifest as it lies on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredManifest {
    pub manifest: SnapshotManifest,
    /// Bytes of the stream of frames.
    pub stream_bytes: u64,
    /// Its xxh3_128.
    pub stream_checksum: u128,
    /// Every file of the database, sorted by name.
    pub files: Vec<StoredFile>,
}

/// One file of the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredFile {
    /// Its path below the database's directory.
    pub name: String,
    pub bytes: u64,
    /// Its xxh3_128.
    pub checksum: u128,
}

impl StoredManifest {
    pub fn write(&self, generation: &Path) -> Result<(), SnapshotError> {
        let path = generation.join(MANIFEST_FILE_NAME);
        let bytes = codec::encode(MAGIC, VERSION, self)
            .map_err(|source| SnapshotError::Manifest { path: path.clone(), source })?;
        write_atomically(&path, &bytes).map_err(SnapshotError::io(&path))
    }

    pub fn read(generation: &Path) -> Result<StoredManifest, SnapshotError> {
        let path = generation.join(MANIFEST_FILE_NAME);
        let file = File::open(&path).map_err(SnapshotError::io(&path))?;
        settle(&file).map_err(SnapshotError::io(&path))?;
        let mut bytes = Vec::new();
        let limit = codec::SMALL_BODY_LIMIT_BYTES + codec::OVERHEAD_BYTES;
        file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(SnapshotError::io(&path))?;
        codec::decode(MAGIC, VERSION..=VERSION, &bytes).map_err(|source| SnapshotError::Manifest { path, source })
    }

    /// Bytes of the database's files.
    pub fn disk_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Compares every file of the database with its checksum, and removes files that don't belong.
    pub fn verify_files(&self, generation: &Path) -> Result<(), SnapshotError> {
        let dir = generation.join(ENGINE_DIR_NAME);
        let found = checksum_files(&dir)?;
        for file in &found {
            if !self.files.iter().any(|known| known.name == file.name) {
                let stray = dir.join(&file.name);
                fs::remove_file(&stray).map_err(SnapshotError::io(&stray))?;
            }
        }
        for file in &self.files {
            let path = dir.join(&file.name);
            match found.iter().find(|found| found.name == file.name) {
                None => return Err(SnapshotError::damaged(&path, "the file is missing")),
                Some(found) if found.bytes != file.bytes => {
                    let what = format!("the file has {} bytes, expected {}", found.bytes, file.bytes);
                    return Err(SnapshotError::damaged(&path, what));
                }
                Some(found) if found.checksum != file.checksum => {
                    let (computed, stored) = (found.checksum, file.checksum);
                    let what = format!("checksum mismatch: computed {computed:032x}, stored {stored:032x}");
                    return Err(SnapshotError::damaged(&path, what));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Checksums of every file below `dir`, sorted by name, as the disk holds them.
pub(super) fn checksum_files(dir: &Path) -> Result<Vec<StoredFile>, SnapshotError> {
    let (files, _) = walk(dir)?;
    let mut buffer = vec![0; READ_BYTES];
    files
        .into_iter()
        .map(|path| {
            let (bytes, checksum) = checksum_file(&path, &mut buffer).map_err(SnapshotError::io(&path))?;
            let name = path.strip_prefix(dir).unwrap_or(&path).to_string_lossy().into_owned();
            Ok(StoredFile { name, bytes, checksum })
        })
        .collect()
}

fn checksum_file(path: &Path, buffer: &mut [u8]) -> io::Result<(u64, u128)> {
    let mut file = File::open(path)?;
    settle(&file)?;
    let mut hasher = Xxh3::new();
    let mut bytes = 0;
    loop {
        let read = file.read(buffer)?;
        if read == 0 {
            return Ok((bytes, hasher.digest128()));
        }
        hasher.update(&buffer[..read]);
        bytes += read as u64;
    }
}

/// Syncs every file and every directory from `dir` down.
pub(super) fn sync_tree(dir: &Path) -> Result<(), SnapshotError> {
    let (files, dirs) = walk(dir)?;
    for path in files.iter().chain(dirs.iter().rev()) {
        File::open(path).and_then(|file| file.sync_all()).map_err(SnapshotError::io(path))?;
    }
    Ok(())
}

/// Files, sorted, and directories, parents first, from `dir` down.
fn walk(dir: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), SnapshotError> {
    let (mut files, mut dirs) = (Vec::new(), vec![dir.to_owned()]);
    let mut at = 0;
    while let Some(dir) = dirs.get(at).cloned() {
        for entry in fs::read_dir(&dir).map_err(SnapshotError::io(&dir))? {
            let entry = entry.map_err(SnapshotError::io(&dir))?;
            let path = entry.path();
            if entry.file_type().map_err(SnapshotError::io(&path))?.is_dir() {
                dirs.push(path);
            } else {
                files.push(path);
            }
        }
        at += 1;
    }
    files.sort();
    Ok((files, dirs))
}
