//! Backup files: one stream of opaque records under a header, whole or refused.
//!
//! This module owns the layout (docs/BACKUP.md describes it byte by byte) and the refusal of whatever is cut, changed,
//! foreign or from a later release. It gathers no more than one chunk, so that a state of any size can be written and
//! read by a small machine, and it must never trust a length that no checksum covers. What records mean is for others.
//! Start at `header`, then `writer` and `reader`; `chunk` holds the two fixed layouts.

mod chunk;
mod error;
mod header;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub use error::BackupError;
pub use header::{BackupHeader, FORMAT_VERSION};
pub use reader::BackupReader;
pub use writer::BackupWriter;

/// The largest record that a backup takes.
pub const MAX_RECORD_BYTES: usize = 1 << 20;

/// What the end of a file says of all that is before it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BackupEnd {
    /// Chunks in the file.
    pub chunks: u64,
    /// Records in all chunks.
    pub records: u64,
    /// Bytes of the records with their lengths, before compression.
    pub raw_bytes: u64,
    /// Bytes of the whole file, this end included.
    pub file_bytes: u64,
    /// xxh3_128 of all bytes before the end.
    pub checksum: u128,
}
