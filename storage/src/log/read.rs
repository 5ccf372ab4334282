//! Reading records: which part of a range lies in memory and which in the store, and reading the latter.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use redb::{Database, ReadableDatabase};

use super::LogRecord;
use super::error::RecordFault;
use super::shared::Inner;
use super::tables::RecordReader;

/// How a range is to be read, as of one moment.
pub(super) struct ReadPlan {
    /// What the store must be asked for; comes before what is in memory.
    pub stored: Range<u64>,
    /// Records from memory.
    pub in_memory: Vec<LogRecord>,
    /// The epoch of that moment: when it has changed, what the store said may belong to another log.
    pub epoch: u64,
}

/// Plans to read what exists of `range`, at most about `max_bytes`.
pub(super) fn plan(inner: &Inner, range: &Range<u64>, max_bytes: usize) -> ReadPlan {
    let nothing = ReadPlan { stored: 0..0, in_memory: Vec::new(), epoch: inner.epoch };
    let (Some(first), Some(last)) = (inner.first, inner.log.last) else { return nothing };
    let start = range.start.max(first);
    let end = range.end.min(last.index.saturating_add(1));
    if start >= end {
        return nothing;
    }
    let memory_from = inner.tail.first_index().unwrap_or(end).clamp(start, end);
    let in_memory = take_bytes((memory_from..end).map_while(|index| inner.tail.get(index).cloned()), max_bytes);
    ReadPlan { stored: start..memory_from, in_memory, ..nothing }
}

/// Takes records until their bodies reach `max_bytes`, at least one.
pub(super) fn take_bytes(records: impl Iterator<Item = LogRecord>, max_bytes: usize) -> Vec<LogRecord> {
    let mut taken = Vec::new();
    let mut bytes = 0;
    for record in records {
        bytes += record.body.len();
        taken.push(record);
        if bytes >= max_bytes {
            break;
        }
    }
    taken
}

/// Why records could not be read from the store.
pub(super) enum ReadError {
    Engine(Box<redb::Error>),
    BadRecord { index: u64, fault: RecordFault },
    Missing { index: u64 },
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Engine(error) => error.fmt(f),
            ReadError::BadRecord { index, fault } => write!(f, "bad record at index {index}: {fault}"),
            ReadError::Missing { index } => write!(f, "no record at index {index}"),
        }
    }
}

impl<E: Into<redb::Error>> From<E> for ReadError {
    fn from(error: E) -> ReadError {
        ReadError::Engine(Box::new(error.into()))
    }
}

/// Reads records that must exist, without a gap, until their bodies reach `max_bytes`.
pub(super) fn read_store(engine: &Database, range: Range<u64>, max_bytes: usize) -> Result<Vec<LogRecord>, ReadError> {
    let mut expected = range.clone();
    let mut records = Vec::new();
    let Some(last) = range.end.checked_sub(1) else { return Ok(records) };
    let mut reader = RecordReader::new(&engine.begin_read()?, range.start, last)?;
    let (mut body, mut bytes) = (Vec::new(), 0);
    while let Some(found) = reader.next(&mut body)? {
        let pos = found.map_err(|(index, fault)| ReadError::BadRecord { index, fault })?;
        match expected.next() {
            Some(wanted) if wanted != pos.index => return Err(ReadError::Missing { index: wanted }),
            _ => {}
        }
        bytes += body.len();
        records.push(LogRecord { pos, body: Arc::from(body.as_slice()) });
        if bytes >= max_bytes {
            return Ok(records);
        }
    }
    match expected.next() {
        Some(index) => Err(ReadError::Missing { index }),
        None => Ok(records),
    }
}
