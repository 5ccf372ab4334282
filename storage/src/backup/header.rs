//! The header: what the backup is of. One envelope of the codec, so that a foreign or future file is known by its first
//! ten bytes.

use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::Path;

use super::error::BackupError;
use crate::codec::{self, CodecError, HEADER_BYTES, Magic, OVERHEAD_BYTES};
use crate::log::LogPos;

/// The version of the format that this release writes.
pub const FORMAT_VERSION: u16 = 1;
const READABLE: RangeInclusive<u16> = 1..=FORMAT_VERSION;
const MAGIC: Magic = *b"PFBK";
const BODY_LIMIT_BYTES: usize = 1 << 20;

/// What a backup is of, known before its first record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHeader {
    /// The cluster that it was taken of.
    pub cluster_id: u128,
    /// The last log position that is in it.
    pub last: LogPos,
    /// The membership at that position; opaque here.
    pub membership: Vec<u8>,
    /// The digest of the state; opaque here.
    pub digest: u128,
    /// Cluster time of the state, in microseconds.
    pub time_us: u64,
    /// The wall clock of the node that took it, in microseconds since the Unix epoch.
    pub taken_at_us: u64,
    /// The feature level of the cluster: a release that reads less can't restore it.
    pub feature_level: u32,
    /// Visible entries.
    pub entries: u64,
    /// Distinct prefixes.
    pub prefixes: u64,
    /// Entries of cleared replicas that wait for their purge.
    pub dead_entries: u64,
    /// Stats rows.
    pub stats_rows: u64,
    /// Ingest sessions.
    pub sessions: u64,
    /// The node that took it.
    pub node_name: String,
    /// The release of that node.
    pub release: String,
}

impl BackupHeader {
    pub(super) fn encode(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode_within(MAGIC, FORMAT_VERSION, self, BODY_LIMIT_BYTES)
    }

    /// Reads a header from the beginning of a file; gives its bytes as well, for the sum over the whole.
    pub(super) fn read(input: &mut impl Read, path: &Path) -> Result<(BackupHeader, Vec<u8>), BackupError> {
        let mut bytes = vec![0; HEADER_BYTES];
        fill(input, &mut bytes, path, 0)?;
        let unusable = |source| match source {
            CodecError::ForeignMagic { found, .. } => BackupError::Foreign { path: path.to_owned(), found },
            CodecError::UnsupportedVersion { found, oldest, newest } => {
                BackupError::LaterRelease { path: path.to_owned(), found, oldest, newest }
            }
            other => BackupError::damaged(path, 0, format!("its header: {other}")),
        };
        // Of ten bytes nothing but magic and version can be judged; that the rest is missing is no news.
        match codec::open_envelope(MAGIC, READABLE, &bytes) {
            Err(CodecError::Torn { .. }) | Ok(_) => {}
            Err(error) => return Err(unusable(error)),
        }
        let body_bytes = bytes.last_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length)) as usize;
        if body_bytes > BODY_LIMIT_BYTES {
            return Err(BackupError::damaged(path, 0, format!("its header claims {body_bytes} bytes")));
        }
        bytes.resize(body_bytes + OVERHEAD_BYTES, 0);
        fill(input, &mut bytes[HEADER_BYTES..], path, HEADER_BYTES as u64)?;
        let header = codec::decode_within(MAGIC, READABLE, &bytes, BODY_LIMIT_BYTES).map_err(unusable)?;
        Ok((header, bytes))
    }
}

/// Fills the buffer from what lies at `at`, or says that the file is cut.
pub(super) fn fill(input: &mut impl Read, buffer: &mut [u8], path: &Path, at: u64) -> Result<(), BackupError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => return Err(BackupError::Cut { path: path.to_owned(), bytes: at + filled as u64 }),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(BackupError::Io { path: path.to_owned(), source }),
        }
    }
    Ok(())
}
