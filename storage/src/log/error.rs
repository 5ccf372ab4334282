//! The errors of the log's two faces: opening it, and using it.
//!
//! A refusal at open is final for this disk: its message names the file, what was seen, and what the
//! operator is to do. It must never be turned into an attempt to repair.

use std::path::PathBuf;
use std::sync::Arc;

use super::LogPos;
use crate::codec::CodecError;
use crate::failure::Failure;
use crate::rejoin::Rejoin;

/// Why a call on an open log did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// The store failed, now or earlier, and is unusable until it is opened anew.
    #[error("the log store failed: {0}")]
    Failed(Arc<Failure>),
    /// The store was closed.
    #[error("the log store is closed")]
    Closed,
    /// The records or the position do not fit the log.
    #[error("not contiguous: {got} was given where the log wants {wanted}")]
    NotContiguous {
        /// The index that fits.
        wanted: u64,
        /// The index that was given.
        got: u64,
    },
    /// A record is larger than a log takes.
    #[error("record {pos:?} of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Which record.
        pos: LogPos,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

/// Why a log could not be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system did not let us: the disk is full, a call failed. Trying again later may succeed.
    #[error("{0}")]
    Failed(Failure),
    /// A later release wrote it. The data is good, this release is too old for it.
    #[error("{}: {version}: start the release that wrote it, or a later one", file.display())]
    WrittenByLaterRelease {
        /// The file in question.
        file: PathBuf,
        /// The version that was found, and those that can be read.
        version: CodecError,
    },
    /// What is on disk contradicts itself or what was promised. This disk can't be used again.
    #[error("{}: {refusal}. {}", file.display(), Rejoin(data_dir))]
    Refused {
        /// The file in question.
        file: PathBuf,
        /// The data directory that holds it.
        data_dir: PathBuf,
        /// What was seen.
        refusal: Refusal,
    },
}

/// What was seen that makes a log unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The mark or the store is not there.
    #[error("the file is missing")]
    Missing,
    /// A log is to be created where there is one.
    #[error("the file exists already")]
    Exists,
    /// The mark file is not as long as it was made.
    #[error("the mark is {found} bytes long, expected {expected}")]
    MarkLength {
        /// Its length.
        found: u64,
        /// The length that it always has.
        expected: u64,
    },
    /// Neither slot of the mark is whole.
    #[error("no valid slot in the mark (first: {first}; second: {second})")]
    NoValidMark {
        /// What is wrong with the first slot.
        first: CodecError,
        /// What is wrong with the second slot.
        second: CodecError,
    },
    /// A slot of the mark, or the state row, was written by a release that this one does not understand;
    /// comes out as [`OpenError::WrittenByLaterRelease`].
    #[error("{0}")]
    UnsupportedVersion(CodecError),
    /// The files do not belong together.
    #[error("belongs to store {found:032x}, expected {expected:032x}")]
    ForeignStore {
        /// The store uuid in the file.
        found: u128,
        /// The store uuid of the identity.
        expected: u128,
    },
    /// The store's file is shorter than the engine ever makes it.
    #[error("the store is only {found} bytes long")]
    StoreTooShort {
        /// Its length.
        found: u64,
    },
    /// The engine does not take the file.
    #[error("the storage engine refused it: {0}")]
    EngineRefused(String),
    /// The engine panicked over the file.
    #[error("the storage engine panicked over it: {0}")]
    EnginePanicked(String),
    /// The state row is not there.
    #[error("no state row")]
    NoStateRow,
    /// The state row is damaged.
    #[error("bad state row: {0}")]
    BadStateRow(CodecError),
    /// The store holds an older state than was marked: something acknowledged is lost.
    #[error("the log is behind its mark: sequence {found}, but {marked} was marked as durable")]
    BehindMark {
        /// The sequence of the state row.
        found: u64,
        /// The sequence of the mark.
        marked: u64,
    },
    /// Store and mark tell different stories of the same moment.
    #[error("state row and mark differ at sequence {seq}")]
    ContradictsMark {
        /// The sequence of both.
        seq: u64,
    },
    /// A record is not what was written.
    #[error("bad record at index {index}: {reason}")]
    BadRecord {
        /// Its index.
        index: u64,
        /// What is wrong.
        reason: RecordFault,
    },
    /// The records do not begin where they should.
    #[error("the first record has index {found:?}, expected {expected:?}")]
    WrongFirst {
        /// The index of the first record.
        found: Option<u64>,
        /// The index that the state row asks for.
        expected: Option<u64>,
    },
    /// A record is missing.
    #[error("a hole: the record after index {after} has index {found}")]
    Hole {
        /// The record before the hole.
        after: u64,
        /// The record behind it.
        found: u64,
    },
    /// The records do not end where they should.
    #[error("the last record is {found:?}, expected {expected:?}")]
    WrongLast {
        /// The position of the last record.
        found: Option<LogPos>,
        /// The position that the state row asks for.
        expected: Option<LogPos>,
    },
}

/// What is wrong with a stored record.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// Its length is not what it says.
    #[error("torn: {found} bytes, expected {expected}")]
    Torn {
        /// The bytes there.
        found: usize,
        /// The bytes that should be there.
        expected: usize,
    },
    /// Its checksum is wrong.
    #[error("checksum mismatch: computed {computed:016x}, stored {stored:016x}")]
    Checksum {
        /// The checksum of what was read.
        computed: u64,
        /// The checksum that was stored.
        stored: u64,
    },
    /// There is a part of a body that belongs to no record, or is not the next one of its record.
    #[error("a part that is out of place")]
    StrayPart,
}
