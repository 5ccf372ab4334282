//! The key space of the store, on one screen, and the layout of a record.
//!
//! | table | key | value |
//! |---|---|---|
//! | `records` | index u64 | term u64, body length u32, xxh3_64 u64, body (little-endian) |
//! | `state` | 0 | the state row, see `state_row` |
//!
//! A record's checksum is over index, term, length (little-endian) and body: a record under another
//! record's key is as wrong as a damaged one.

use std::sync::Arc;

use redb::TableDefinition;
use xxhash_rust::xxh3::Xxh3;

use super::error::RecordFault;
use super::{LogPos, LogRecord};

/// The name of the store's file in a data directory.
pub const STORE_FILE_NAME: &str = "log.redb";

/// Records by index.
pub(super) const RECORDS: TableDefinition<u64, &[u8]> = TableDefinition::new("records");
/// The state row, under [`STATE_KEY`].
pub(super) const STATE: TableDefinition<u64, &[u8]> = TableDefinition::new("state");
/// The only key of [`STATE`].
pub(super) const STATE_KEY: u64 = 0;

const RECORD_HEADER_BYTES: usize = 20;

/// Writes the stored form of a record into `out`, which is cleared first.
pub(super) fn encode_record(record: &LogRecord, out: &mut Vec<u8>) {
    // `append` refuses longer bodies, see `MAX_RECORD_BYTES`.
    let body_bytes = record.body.len() as u32;
    out.clear();
    out.reserve(RECORD_HEADER_BYTES + record.body.len());
    out.extend_from_slice(&record.pos.term.to_le_bytes());
    out.extend_from_slice(&body_bytes.to_le_bytes());
    out.extend_from_slice(&checksum(record.pos, body_bytes, &record.body).to_le_bytes());
    out.extend_from_slice(&record.body);
}

/// Checks a stored record and returns its position and body.
pub(super) fn check_record(index: u64, stored: &[u8]) -> Result<(LogPos, &[u8]), RecordFault> {
    let torn = |expected| RecordFault::Torn { found: stored.len(), expected };
    let (header, body) = stored.split_first_chunk::<RECORD_HEADER_BYTES>().ok_or_else(|| torn(RECORD_HEADER_BYTES))?;
    let word = |at: usize| header[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
    let body_bytes = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if body.len() != body_bytes as usize {
        return Err(torn(RECORD_HEADER_BYTES + body_bytes as usize));
    }
    let pos = LogPos { term: word(0), index };
    let (computed, stored) = (checksum(pos, body_bytes, body), word(12));
    if computed != stored {
        return Err(RecordFault::Checksum { computed, stored });
    }
    Ok((pos, body))
}

/// [`check_record`], as a record of its own.
pub(super) fn decode_record(index: u64, stored: &[u8]) -> Result<LogRecord, RecordFault> {
    let (pos, body) = check_record(index, stored)?;
    Ok(LogRecord { pos, body: Arc::from(body) })
}

fn checksum(pos: LogPos, body_bytes: u32, body: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&pos.index.to_le_bytes());
    hasher.update(&pos.term.to_le_bytes());
    hasher.update(&body_bytes.to_le_bytes());
    hasher.update(body);
    hasher.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_every_flip_is_noticed() {
        let record = LogRecord { pos: LogPos { term: 3, index: 8 }, body: Arc::from(&b"opaque"[..]) };
        let mut stored = Vec::new();
        encode_record(&record, &mut stored);
        assert_eq!(decode_record(8, &stored).unwrap(), record);
        assert!(matches!(decode_record(9, &stored), Err(RecordFault::Checksum { .. })));
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 0x40;
            assert!(decode_record(8, &damaged).is_err(), "byte {at}");
            assert!(decode_record(8, &stored[..at]).is_err(), "cut to {at}");
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let record = LogRecord { pos: LogPos { term: 3, index: 8 }, body: Arc::from(&b"ab"[..]) };
        let mut stored = Vec::new();
        encode_record(&record, &mut stored);
        assert_eq!(stored[..12], [3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(stored[20..], *b"ab");
    }
}
