//! The key space of the store, on one screen, and the layout of a record.
//!
//! | table | key | value |
//! |---|---|---|
//! | `records` | index u64 | term u64, body length u32, xxh3_64 u64, the body or its first part (little-endian) |
//! | `parts` | index u64, number u32 | another part of that record's body; numbers count from 1 |
//! | `state` | 0 | the state row, see `state_row` |
//!
//! A record's checksum is over index, term, length (little-endian) and all of the body: a record under another
//! record's key is as wrong as a damaged one, and so is one whose parts are not all there. Why there are parts: a
//! value larger than a page gets a run of pages whose number is a power of two, of which it may leave half empty.
//! Where the cuts are is nobody's business but `pieces`; a reader puts together what there is.

use std::iter;

use redb::{ReadTransaction, StorageError, Table, TableDefinition, TableError};
use xxhash_rust::xxh3::Xxh3;

use super::error::RecordFault;
use super::{LogPos, LogRecord};

/// The name of the store's file in a data directory.
pub const STORE_FILE_NAME: &str = "log.redb";

/// Records by index.
pub(super) const RECORDS: TableDefinition<u64, &[u8]> = TableDefinition::new("records");
/// What did not go into [`RECORDS`], by index and number.
pub(super) const PARTS: TableDefinition<PartKey, &[u8]> = TableDefinition::new("parts");
/// The state row, under [`STATE_KEY`].
pub(super) const STATE: TableDefinition<u64, &[u8]> = TableDefinition::new("state");
/// The only key of [`STATE`].
pub(super) const STATE_KEY: u64 = 0;

pub(super) type PartKey = (u64, u32);

const RECORD_HEADER_BYTES: usize = 20;
/// Of a run of pages, at least what the engine needs beside the one value in it.
const PAGE_OVERHEAD_BYTES: usize = 32;
/// What may stay empty in the run of a last piece, or this share of the value if that is more.
const SLACK_BYTES: usize = 2048;
const SLACK_SHARE: usize = 16;

/// The lengths of the pieces in which a value of `value_bytes` is stored: each but the last fills a run of pages,
/// and the last leaves little of its own empty, or is small and shares a page with others. There are six at most.
fn pieces(value_bytes: usize) -> impl Iterator<Item = usize> {
    let slack_bytes = PAGE_OVERHEAD_BYTES + SLACK_BYTES.max(value_bytes / SLACK_SHARE);
    let mut left = value_bytes;
    iter::from_fn(move || {
        let run_bytes = (left + PAGE_OVERHEAD_BYTES).next_power_of_two();
        let piece = if run_bytes - left <= slack_bytes { left } else { run_bytes / 2 - PAGE_OVERHEAD_BYTES };
        left -= piece;
        (piece > 0).then_some(piece)
    })
}

/// The tables that hold records, open for writing.
pub(super) struct RecordTables<'t> {
    records: Table<'t, u64, &'static [u8]>,
    parts: Table<'t, PartKey, &'static [u8]>,
    scratch: Vec<u8>,
}

impl<'t> RecordTables<'t> {
    pub fn open(transaction: &'t redb::WriteTransaction) -> Result<RecordTables<'t>, TableError> {
        let (records, parts) = (transaction.open_table(RECORDS)?, transaction.open_table(PARTS)?);
        Ok(RecordTables { records, parts, scratch: Vec::new() })
    }

    pub fn insert(&mut self, record: &LogRecord) -> Result<(), StorageError> {
        // `append` refuses longer bodies, see `MAX_RECORD_BYTES`.
        let body_bytes = record.body.len() as u32;
        let mut pieces = pieces(RECORD_HEADER_BYTES + record.body.len());
        let first_bytes = pieces.next().unwrap_or(0).saturating_sub(RECORD_HEADER_BYTES);
        let (first, mut rest) = record.body.split_at(first_bytes);
        self.scratch.clear();
        self.scratch.reserve(RECORD_HEADER_BYTES + first.len());
        self.scratch.extend_from_slice(&record.pos.term.to_le_bytes());
        self.scratch.extend_from_slice(&body_bytes.to_le_bytes());
        self.scratch.extend_from_slice(&checksum(record.pos, body_bytes, &record.body).to_le_bytes());
        self.scratch.extend_from_slice(first);
        self.records.insert(record.pos.index, self.scratch.as_slice())?;
        for (number, bytes) in (1..).zip(pieces) {
            let (part, after) = rest.split_at(bytes);
            self.parts.insert((record.pos.index, number), part)?;
            rest = after;
        }
        Ok(())
    }

    /// Removes the records behind `keep`, None: all.
    pub fn truncate_after(&mut self, keep: Option<u64>) -> Result<(), StorageError> {
        let Some(from) = keep.map_or(Some(0), |keep| keep.checked_add(1)) else { return Ok(()) };
        self.records.retain_in(from.., |_, _| false)?;
        self.parts.retain_in((from, 0).., |_, _| false)
    }

    /// Removes the records up to `upto`.
    pub fn purge(&mut self, upto: u64) -> Result<(), StorageError> {
        self.records.retain_in(..=upto, |_, _| false)?;
        self.parts.retain_in(..=(upto, u32::MAX), |_, _| false)
    }
}

/// A record as it was found, or what is wrong at which index.
pub(super) type Found = Result<LogPos, (u64, RecordFault)>;

/// Reads a range of records, each with all of its parts. A part that belongs to none of them is a fault.
pub(super) struct RecordReader {
    records: redb::Range<'static, u64, &'static [u8]>,
    /// None in a store of the layout that had none.
    parts: Option<redb::Range<'static, PartKey, &'static [u8]>>,
    /// The next part, taken from `parts` already.
    ahead: Option<(PartKey, redb::AccessGuard<'static, &'static [u8]>)>,
}

impl RecordReader {
    /// Reads the indexes from `first` to `last`, both included.
    pub fn new(transaction: &ReadTransaction, first: u64, last: u64) -> Result<RecordReader, redb::Error> {
        let records = transaction.open_table(RECORDS)?.range(first..=last)?;
        let parts = match transaction.open_table(PARTS) {
            Ok(table) => Some(table.range((first, 0)..=(last, u32::MAX))?),
            Err(TableError::TableDoesNotExist(_)) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(RecordReader { records, parts, ahead: None })
    }

    /// The next record, its body in `body`.
    pub fn next(&mut self, body: &mut Vec<u8>) -> Result<Option<Found>, StorageError> {
        body.clear();
        let Some(entry) = self.records.next() else {
            self.peek()?;
            return Ok(self.ahead.take().map(|((index, _), _)| Err((index, RecordFault::StrayPart))));
        };
        let (key, value) = entry?;
        let index = key.value();
        let stored = value.value();
        let Some((header, first)) = stored.split_first_chunk::<RECORD_HEADER_BYTES>() else {
            return Ok(Some(Err((index, RecordFault::Torn { found: stored.len(), expected: RECORD_HEADER_BYTES }))));
        };
        body.extend_from_slice(first);
        if let Err(fault) = self.gather(index, body)? {
            return Ok(Some(Err(fault)));
        }
        Ok(Some(check(index, header, body).map_err(|fault| (index, fault))))
    }

    /// Appends the parts of this record to its body.
    fn gather(&mut self, index: u64, body: &mut Vec<u8>) -> Result<Result<(), (u64, RecordFault)>, StorageError> {
        for number in 1.. {
            self.peek()?;
            let Some((key, part)) = self.ahead.take_if(|(key, _)| key.0 <= index) else { break };
            if key != (index, number) || part.value().is_empty() {
                return Ok(Err((key.0, RecordFault::StrayPart)));
            }
            body.extend_from_slice(part.value());
        }
        Ok(Ok(()))
    }

    fn peek(&mut self) -> Result<(), StorageError> {
        if self.ahead.is_none()
            && let Some(entry) = self.parts.as_mut().and_then(|parts| parts.next())
        {
            let (key, part) = entry?;
            self.ahead = Some((key.value(), part));
        }
        Ok(())
    }
}

/// Checks a record's body against its header.
fn check(index: u64, header: &[u8; RECORD_HEADER_BYTES], body: &[u8]) -> Result<LogPos, RecordFault> {
    let word = |at: usize| header[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
    let body_bytes = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if body.len() != body_bytes as usize {
        let torn = |bytes| RECORD_HEADER_BYTES + bytes;
        return Err(RecordFault::Torn { found: torn(body.len()), expected: torn(body_bytes as usize) });
    }
    let pos = LogPos { term: word(0), index };
    let (computed, stored) = (checksum(pos, body_bytes, body), word(12));
    if computed != stored {
        return Err(RecordFault::Checksum { computed, stored });
    }
    Ok(pos)
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
mod tests;
