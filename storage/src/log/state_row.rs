//! The state row: what the log holds besides its records, written with every transaction and copied into
//! the mark. It owns the layout; the meaning of `seq` is explained in `mark`.
//!
//! 112 bytes, little-endian; an absent position is all zeros, and its flag says so:
//!
//! | at | what | | at | what |
//! |---|---|---|---|---|
//! | 0 | magic "PFST" | | 48 | last: term, index |
//! | 4 | version u16 = 2 | | 64 | purged: term, index |
//! | 6 | flags u16 | | 80 | committed: term, index |
//! | 8 | store uuid u128 | | 96 | first index u64 |
//! | 24 | seq u64 | | 104 | xxh3_64 of bytes 0..104 |
//! | 32 | vote: term, voted for | | | |

use xxhash_rust::xxh3::xxh3_64;

use super::{LogPos, LogState, Vote};
use crate::codec::{CodecError, Magic};

pub(super) const STATE_ROW_BYTES: usize = 112;
const MAGIC: Magic = *b"PFST";
/// The layout of the store that goes with a row: in the first no record had parts.
const OLDEST_VERSION: u16 = 1;
const VERSION: u16 = 2;

const HAS_VOTE: u16 = 1;
const HAS_VOTED_FOR: u16 = 2;
const VOTE_COMMITTED: u16 = 4;
const HAS_LAST: u16 = 8;
const HAS_PURGED: u16 = 16;
const HAS_COMMITTED: u16 = 32;
const HAS_FIRST: u16 = 64;
const ALL_FLAGS: u16 = 127;

/// What the log holds besides its records.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct StateRow {
    /// Under which version it lies on disk.
    pub version: u16,
    pub store_uuid: u128,
    /// Rises by one with every transaction.
    pub seq: u64,
    pub vote: Option<Vote>,
    pub last: Option<LogPos>,
    pub purged: Option<LogPos>,
    pub committed: Option<LogPos>,
    /// Index of the first record, None without records.
    pub first: Option<u64>,
}

impl StateRow {
    /// The row of a log in which nothing has happened.
    pub fn newborn(store_uuid: u128) -> StateRow {
        StateRow {
            version: VERSION,
            store_uuid,
            seq: 0,
            vote: None,
            last: None,
            purged: None,
            committed: None,
            first: None,
        }
    }

    /// The row of the next transaction, which may write what this release writes.
    pub fn next(&self) -> StateRow {
        StateRow { version: VERSION, seq: self.seq + 1, ..*self }
    }

    pub fn log_state(&self) -> LogState {
        LogState { purged: self.purged, last: self.last, vote: self.vote, committed: self.committed }
    }

    pub fn encode(&self) -> [u8; STATE_ROW_BYTES] {
        let mut flags = 0;
        let mut flag = |set: bool, bit: u16| flags |= if set { bit } else { 0 };
        flag(self.vote.is_some(), HAS_VOTE);
        flag(self.vote.is_some_and(|vote| vote.voted_for.is_some()), HAS_VOTED_FOR);
        flag(self.vote.is_some_and(|vote| vote.committed), VOTE_COMMITTED);
        flag(self.last.is_some(), HAS_LAST);
        flag(self.purged.is_some(), HAS_PURGED);
        flag(self.committed.is_some(), HAS_COMMITTED);
        flag(self.first.is_some(), HAS_FIRST);
        let zero = LogPos { term: 0, index: 0 };
        let words = [
            self.seq,
            self.vote.map_or(0, |vote| vote.term),
            self.vote.and_then(|vote| vote.voted_for).unwrap_or(0),
            self.last.unwrap_or(zero).term,
            self.last.unwrap_or(zero).index,
            self.purged.unwrap_or(zero).term,
            self.purged.unwrap_or(zero).index,
            self.committed.unwrap_or(zero).term,
            self.committed.unwrap_or(zero).index,
            self.first.unwrap_or(0),
        ];
        let mut out = [0; STATE_ROW_BYTES];
        out[0..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&self.version.to_le_bytes());
        out[6..8].copy_from_slice(&flags.to_le_bytes());
        out[8..24].copy_from_slice(&self.store_uuid.to_le_bytes());
        for (place, word) in out[24..104].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let checksum = xxh3_64(&out[..104]);
        out[104..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<StateRow, CodecError> {
        let torn = CodecError::Torn { found: bytes.len(), expected: STATE_ROW_BYTES };
        let found = *bytes.first_chunk::<4>().ok_or(torn.clone())?;
        if found != MAGIC {
            return Err(CodecError::ForeignMagic { found, expected: MAGIC });
        }
        let version = bytes.get(4..6).map(u16_at).ok_or(torn.clone())?;
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            return Err(CodecError::UnsupportedVersion { found: version, oldest: OLDEST_VERSION, newest: VERSION });
        }
        let bytes: &[u8; STATE_ROW_BYTES] = bytes.try_into().map_err(|_| torn)?;
        let (computed, stored) = (xxh3_64(&bytes[..104]), u64_at(&bytes[104..]));
        if computed != stored {
            return Err(CodecError::Checksum { computed, stored });
        }
        let row = StateRow::from_fields(bytes);
        // One state has one encoding: comparing rows and comparing bytes must be the same.
        if u16_at(&bytes[6..8]) & !ALL_FLAGS != 0 || row.encode() != *bytes {
            return Err(CodecError::Malformed("not the canonical encoding".into()));
        }
        Ok(row)
    }

    fn from_fields(bytes: &[u8; STATE_ROW_BYTES]) -> StateRow {
        let flags = u16_at(&bytes[6..8]);
        let has = |bit| flags & bit != 0;
        let word = |at: usize| u64_at(&bytes[at..]);
        let pos = |at| LogPos { term: word(at), index: word(at + 8) };
        let vote =
            Vote { term: word(32), voted_for: has(HAS_VOTED_FOR).then(|| word(40)), committed: has(VOTE_COMMITTED) };
        StateRow {
            version: u16_at(&bytes[4..6]),
            store_uuid: u128::from(word(8)) | (u128::from(word(16)) << 64),
            seq: word(24),
            vote: has(HAS_VOTE).then_some(vote),
            last: has(HAS_LAST).then(|| pos(48)),
            purged: has(HAS_PURGED).then(|| pos(64)),
            committed: has(HAS_COMMITTED).then(|| pos(80)),
            first: has(HAS_FIRST).then(|| word(96)),
        }
    }
}

fn u16_at(bytes: &[u8]) -> u16 {
    bytes.first_chunk().map_or(0, |chunk| u16::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pos() -> impl Strategy<Value = LogPos> {
        (any::<u64>(), any::<u64>()).prop_map(|(term, index)| LogPos { term, index })
    }

    fn row() -> impl Strategy<Value = StateRow> {
        let vote = (any::<u64>(), any::<Option<u64>>(), any::<bool>()).prop_map(|(term, voted_for, committed)| Vote {
            term,
            voted_for,
            committed,
        });
        (
            any::<u128>(),
            any::<u64>(),
            proptest::option::of(vote),
            proptest::option::of(pos()),
            proptest::option::of(pos()),
            proptest::option::of(pos()),
            any::<Option<u64>>(),
        )
            .prop_map(|(store_uuid, seq, vote, last, purged, committed, first)| StateRow {
                version: OLDEST_VERSION + (seq % 2) as u16,
                store_uuid,
                seq,
                vote,
                last,
                purged,
                committed,
                first,
            })
    }

    proptest! {
        #[test]
        fn comes_back_as_it_went_in(row in row()) {
            prop_assert_eq!(StateRow::decode(&row.encode()).unwrap(), row);
        }

        #[test]
        fn every_flip_is_noticed(row in row(), at in 0..STATE_ROW_BYTES, bit in 0..8) {
            let mut bytes = row.encode();
            bytes[at] ^= 1u8 << bit;
            prop_assert!(StateRow::decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_later_version_is_named() {
        let mut bytes = StateRow::newborn(1).encode();
        bytes[4] = 3;
        let error = StateRow::decode(&bytes).unwrap_err();
        assert_eq!(error, CodecError::UnsupportedVersion { found: 3, oldest: 1, newest: 2 });
    }
}
