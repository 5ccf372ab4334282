//! The two fixed layouts of a backup file: the head of a chunk and the end of the file. Each carries a checksum of its
//! own, so that no length is believed before it was checked. All numbers are little-endian.

use super::BackupEnd;
use crate::codec::Magic;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes of records, with their lengths, at which a chunk is closed.
pub(super) const CHUNK_BYTES: usize = 512 << 10;
/// A chunk holds one record more than fits, at most.
pub(super) const MAX_RAW_BYTES: usize = CHUNK_BYTES + super::MAX_RECORD_BYTES + LENGTH_BYTES;
/// Compressed, a chunk may be a little longer than before.
pub(super) const MAX_STORED_BYTES: usize = MAX_RAW_BYTES + MAX_RAW_BYTES / 64 + 1024;
/// Bytes of the length before each record.
pub(super) const LENGTH_BYTES: usize = 4;

const CHUNK_MAGIC: Magic = *b"PFBC";
const END_MAGIC: Magic = *b"PFBE";
pub(super) const MAGIC_BYTES: usize = 4;
pub(super) const HEAD_BYTES: usize = 32;
pub(super) const END_BYTES: usize = 60;
pub(super) const CHECKSUM_BYTES: usize = 8;

/// What follows in a file.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Chunk,
    End,
}

/// What the four bytes announce, if anything.
pub(super) fn next(magic: Magic) -> Option<Next> {
    match magic {
        CHUNK_MAGIC => Some(Next::Chunk),
        END_MAGIC => Some(Next::End),
        _ => None,
    }
}

/// The head of a chunk.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct ChunkHead {
    /// Its place among the chunks, from 0.
    pub number: u64,
    /// Records in it.
    pub records: u32,
    /// Bytes of the records with their lengths.
    pub raw_bytes: u32,
    /// Bytes as they lie in the file.
    pub stored_bytes: u32,
}

impl ChunkHead {
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut out = [0; HEAD_BYTES];
        out[..4].copy_from_slice(&CHUNK_MAGIC);
        out[4..12].copy_from_slice(&self.number.to_le_bytes());
        out[12..16].copy_from_slice(&self.records.to_le_bytes());
        out[16..20].copy_from_slice(&self.raw_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.stored_bytes.to_le_bytes());
        let checksum = xxh3_64(&out[..24]);
        out[24..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// The head that these bytes are, or what is wrong with them.
    pub fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<ChunkHead, String> {
        check(bytes, 24).map_err(|what| format!("the head of a chunk: {what}"))?;
        let head = ChunkHead {
            number: u64_at(bytes, 4),
            records: u32_at(bytes, 12),
            raw_bytes: u32_at(bytes, 16),
            stored_bytes: u32_at(bytes, 20),
        };
        let fits = head.raw_bytes as usize <= MAX_RAW_BYTES && head.stored_bytes as usize <= MAX_STORED_BYTES;
        if fits { Ok(head) } else { Err(format!("chunk {} is larger than a chunk may be", head.number)) }
    }
}

/// The checksum behind a chunk: over its head and its bytes as they lie in the file.
pub(super) fn chunk_checksum(head: &[u8; HEAD_BYTES], stored: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(head);
    hasher.update(stored);
    hasher.digest()
}

impl BackupEnd {
    pub(super) fn encode(&self) -> [u8; END_BYTES] {
        let mut out = [0; END_BYTES];
        out[..4].copy_from_slice(&END_MAGIC);
        out[4..12].copy_from_slice(&self.chunks.to_le_bytes());
        out[12..20].copy_from_slice(&self.records.to_le_bytes());
        out[20..28].copy_from_slice(&self.raw_bytes.to_le_bytes());
        out[28..36].copy_from_slice(&self.file_bytes.to_le_bytes());
        out[36..52].copy_from_slice(&self.checksum.to_le_bytes());
        let checksum = xxh3_64(&out[..52]);
        out[52..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; END_BYTES]) -> Result<BackupEnd, String> {
        check(bytes, 52).map_err(|what| format!("the end: {what}"))?;
        Ok(BackupEnd {
            chunks: u64_at(bytes, 4),
            records: u64_at(bytes, 12),
            raw_bytes: u64_at(bytes, 20),
            file_bytes: u64_at(bytes, 28),
            checksum: u128::from(u64_at(bytes, 36)) | (u128::from(u64_at(bytes, 44)) << 64),
        })
    }
}

/// Compares the checksum at `at` with that of the bytes before.
fn check(bytes: &[u8], at: usize) -> Result<(), String> {
    let (computed, stored) = (xxh3_64(&bytes[..at]), u64_at(bytes, at));
    if computed == stored {
        return Ok(());
    }
    Err(format!("checksum mismatch: computed {computed:016x}, stored {stored:016x}"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u64::from_le_bytes(*chunk))
}
