//! Reading a backup, one chunk in memory at a time. Each chunk is checked before any of it is handed out; only when the
//! last call has returned `None` was everything there.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::chunk::{
    self, CHECKSUM_BYTES, ChunkHead, END_BYTES, HEAD_BYTES, LENGTH_BYTES, MAGIC_BYTES, Next, chunk_checksum,
};
use super::error::BackupError;
use super::header::fill;
use super::{BackupEnd, BackupHeader};
use xxhash_rust::xxh3::Xxh3;
use zstd::bulk::Decompressor;

const READ_BYTES: usize = 256 << 10;

/// A backup being read.
pub struct BackupReader<R> {
    input: R,
    path: PathBuf,
    header: BackupHeader,
    whole: Xxh3,
    decompressor: Decompressor<'static>,
    /// The open chunk, and where its next record begins.
    raw: Vec<u8>,
    next: usize,
    /// Records that the open chunk has beyond those handed out.
    waiting: u32,
    /// What was read so far.
    sums: BackupEnd,
    end: Option<BackupEnd>,
}

impl BackupReader<BufReader<File>> {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<Self, BackupError> {
        let file = File::open(path).map_err(BackupError::io(path))?;
        Self::new(BufReader::with_capacity(READ_BYTES, file), path)
    }
}

impl<R: Read> BackupReader<R> {
    /// Reads the header. `path` is for messages.
    pub fn new(mut input: R, path: &Path) -> Result<Self, BackupError> {
        let (header, bytes) = BackupHeader::read(&mut input, path)?;
        let mut whole = Xxh3::new();
        whole.update(&bytes);
        let file_bytes = bytes.len() as u64;
        let decompressor = Decompressor::new().map_err(BackupError::io(path))?;
        let sums = BackupEnd { chunks: 0, records: 0, raw_bytes: 0, file_bytes, checksum: 0 };
        let path = path.to_owned();
        Ok(Self { input, path, header, whole, decompressor, raw: Vec::new(), next: 0, waiting: 0, sums, end: None })
    }

    /// What the backup is of.
    pub fn header(&self) -> &BackupHeader {
        &self.header
    }

    /// What the end says, once it was reached.
    pub fn end(&self) -> Option<BackupEnd> {
        self.end
    }

    /// The next record, `None` when the end was reached and agrees with all that was read.
    pub fn next_record(&mut self) -> Result<Option<&[u8]>, BackupError> {
        while self.waiting == 0 {
            if self.end.is_some() || !self.next_chunk()? {
                return Ok(None);
            }
        }
        let begin = self.next + LENGTH_BYTES;
        let length = chunk::u32_at(&self.raw, self.next) as usize;
        let (at, number) = (self.sums.file_bytes, self.sums.chunks);
        let Some(record) = self.raw.get(begin..begin.saturating_add(length)) else {
            return Err(BackupError::damaged(&self.path, at, format!("a record runs over the end of chunk {number}")));
        };
        self.next = begin + length;
        self.waiting -= 1;
        if self.waiting == 0 && self.next != self.raw.len() {
            return Err(BackupError::damaged(&self.path, at, format!("chunk {number} holds more than its records")));
        }
        Ok(Some(record))
    }

    /// Opens the next chunk; false when it is the end that comes next.
    fn next_chunk(&mut self) -> Result<bool, BackupError> {
        let at = self.sums.file_bytes;
        let mut magic = [0; MAGIC_BYTES];
        self.fill(&mut magic, at)?;
        match chunk::next(magic) {
            Some(Next::Chunk) => self.chunk(at, magic).map(|()| true),
            Some(Next::End) => self.check_end(at, magic).map(|()| false),
            None => Err(BackupError::damaged(&self.path, at, "neither a chunk nor the end begins here")),
        }
    }

    fn chunk(&mut self, at: u64, magic: [u8; MAGIC_BYTES]) -> Result<(), BackupError> {
        let path = self.path.clone();
        let damaged = |what: String| BackupError::damaged(&path, at, what);
        let mut head_bytes = [0; HEAD_BYTES];
        head_bytes[..MAGIC_BYTES].copy_from_slice(&magic);
        self.fill(&mut head_bytes[MAGIC_BYTES..], at + MAGIC_BYTES as u64)?;
        let head = ChunkHead::decode(&head_bytes).map_err(damaged)?;
        let damaged = |what: String| BackupError::damaged(&path, at, format!("chunk {}: {what}", head.number));
        if head.number != self.sums.chunks {
            return Err(damaged(format!("chunk {} should be here", self.sums.chunks)));
        }
        let mut stored = vec![0; head.stored_bytes as usize + CHECKSUM_BYTES];
        self.fill(&mut stored, at + HEAD_BYTES as u64)?;
        self.whole.update(&head_bytes);
        self.whole.update(&stored);
        self.sums.file_bytes += (HEAD_BYTES + stored.len()) as u64;
        let (body, checksum) = stored.split_last_chunk::<CHECKSUM_BYTES>().unwrap_or((&[], &[0; CHECKSUM_BYTES]));
        let (computed, expected) = (chunk_checksum(&head_bytes, body), u64::from_le_bytes(*checksum));
        if computed != expected {
            return Err(damaged(format!("checksum mismatch: computed {computed:016x}, stored {expected:016x}")));
        }
        let unpacked = self.decompressor.decompress(body, head.raw_bytes as usize);
        self.raw = unpacked.map_err(|error| damaged(format!("can't be decompressed: {error}")))?;
        if self.raw.len() != head.raw_bytes as usize || (head.records == 0) != self.raw.is_empty() {
            return Err(damaged(format!("{} bytes, expected {}", self.raw.len(), head.raw_bytes)));
        }
        (self.next, self.waiting) = (0, head.records);
        self.sums.chunks += 1;
        self.sums.records += u64::from(head.records);
        self.sums.raw_bytes += self.raw.len() as u64;
        Ok(())
    }

    fn check_end(&mut self, at: u64, magic: [u8; MAGIC_BYTES]) -> Result<(), BackupError> {
        let mut bytes = [0; END_BYTES];
        bytes[..MAGIC_BYTES].copy_from_slice(&magic);
        self.fill(&mut bytes[MAGIC_BYTES..], at + MAGIC_BYTES as u64)?;
        let end = BackupEnd::decode(&bytes).map_err(|what| BackupError::damaged(&self.path, at, what))?;
        self.sums.file_bytes += END_BYTES as u64;
        self.sums.checksum = self.whole.digest128();
        if end != self.sums {
            let what = format!("the end tells of {end:?}, but there are {:?}", self.sums);
            return Err(BackupError::damaged(&self.path, at, what));
        }
        if self.has_more()? {
            let what = "bytes follow the end of the backup";
            return Err(BackupError::damaged(&self.path, self.sums.file_bytes, what));
        }
        self.end = Some(end);
        Ok(())
    }

    fn has_more(&mut self) -> Result<bool, BackupError> {
        let mut one = [0];
        loop {
            match self.input.read(&mut one) {
                Ok(read) => return Ok(read > 0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(BackupError::io(&self.path)(error)),
            }
        }
    }

    fn fill(&mut self, buffer: &mut [u8], at: u64) -> Result<(), BackupError> {
        fill(&mut self.input, buffer, &self.path, at)
    }
}
