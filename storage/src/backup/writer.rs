//! Writing a backup, chunk by chunk. Syncing and naming the file is the caller's: what is written here may go to a
//! file, a pipe or the wire.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::chunk::{CHUNK_BYTES, ChunkHead, MAX_STORED_BYTES, chunk_checksum};
use super::error::BackupError;
use super::{BackupEnd, BackupHeader, MAX_RECORD_BYTES};
use xxhash_rust::xxh3::Xxh3;
use zstd::bulk::Compressor;

/// Fast, and most of what lies in a backup is hashes, which no level makes smaller.
const LEVEL: i32 = 3;

/// A backup being written; nothing says that it is whole before [`BackupWriter::finish`].
pub struct BackupWriter<W> {
    out: W,
    path: PathBuf,
    whole: Xxh3,
    compressor: Compressor<'static>,
    /// Records of the open chunk, each behind its length.
    raw: Vec<u8>,
    raw_records: u32,
    sums: BackupEnd,
}

impl<W: Write> BackupWriter<W> {
    /// Begins with the header. `path` is for messages.
    pub fn begin(out: W, path: &Path, header: &BackupHeader) -> Result<Self, BackupError> {
        let sums = BackupEnd { chunks: 0, records: 0, raw_bytes: 0, file_bytes: 0, checksum: 0 };
        let compressor = Compressor::new(LEVEL).map_err(BackupError::io(path))?;
        let (raw, whole) = (Vec::with_capacity(CHUNK_BYTES), Xxh3::new());
        let mut writer = Self { out, path: path.to_owned(), whole, compressor, raw, raw_records: 0, sums };
        let header = header.encode().map_err(|error| BackupError::io(path)(io::Error::other(error)))?;
        writer.write(&header)?;
        Ok(writer)
    }

    /// Adds a record of at most [`MAX_RECORD_BYTES`].
    pub fn put(&mut self, record: &[u8]) -> Result<(), BackupError> {
        if record.len() > MAX_RECORD_BYTES {
            return Err(BackupError::TooLarge { bytes: record.len(), limit: MAX_RECORD_BYTES });
        }
        self.raw.extend_from_slice(&(record.len() as u32).to_le_bytes());
        self.raw.extend_from_slice(record);
        self.raw_records += 1;
        if self.raw.len() >= CHUNK_BYTES { self.close_chunk() } else { Ok(()) }
    }

    /// Writes the end and hands the output back, flushed.
    pub fn finish(mut self) -> Result<(W, BackupEnd), BackupError> {
        if self.raw_records > 0 {
            self.close_chunk()?;
        }
        self.sums.checksum = self.whole.digest128();
        self.sums.file_bytes += super::chunk::END_BYTES as u64;
        let end = self.sums.encode();
        self.out.write_all(&end).and_then(|()| self.out.flush()).map_err(BackupError::io(&self.path))?;
        Ok((self.out, self.sums))
    }

    fn close_chunk(&mut self) -> Result<(), BackupError> {
        let stored = self.compressor.compress(&self.raw).map_err(BackupError::io(&self.path))?;
        if stored.len() > MAX_STORED_BYTES {
            return Err(BackupError::TooLarge { bytes: stored.len(), limit: MAX_STORED_BYTES });
        }
        let head = ChunkHead {
            number: self.sums.chunks,
            records: self.raw_records,
            raw_bytes: self.raw.len() as u32,
            stored_bytes: stored.len() as u32,
        }
        .encode();
        self.write(&head)?;
        self.write(&stored)?;
        self.write(&chunk_checksum(&head, &stored).to_le_bytes())?;
        self.sums.chunks += 1;
        self.sums.records += u64::from(self.raw_records);
        self.sums.raw_bytes += self.raw.len() as u64;
        self.raw.clear();
        self.raw_records = 0;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.out.write_all(bytes).map_err(BackupError::io(&self.path))?;
        self.whole.update(bytes);
        self.sums.file_bytes += bytes.len() as u64;
        Ok(())
    }
}
