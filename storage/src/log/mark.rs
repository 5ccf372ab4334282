//! The mark: a second, tiny witness of what the store acknowledged.
//!
//! The engine falls back to an older commit when the newest is damaged, and says nothing. So after each
//! commit is synced, a copy of its state row goes into the mark; at open a store that is older than its
//! mark is refused. The mark is written after the store's sync, and `seq` rises with every transaction,
//! so a mark is never ahead of a healthy store, whichever of its writes a power loss takes.
//!
//! File `log.mark`, 8192 bytes, written in full at birth and never renamed: slots of 512 bytes at 0 and
//! 4096, overwritten in turn. A slot, little-endian: magic "PFMK", version u16, 2 zeros, counter u64,
//! state row (112 bytes), zeros, xxh3_64 of bytes 0..504 at 504. Of the valid slots that with the higher
//! counter counts. All versions keep the checksum where it is: it tells a damaged slot from a later one.

use std::io;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::device::Device;
use super::error::Refusal;
use super::state_row::{STATE_ROW_BYTES, StateRow};
use crate::codec::{CodecError, Magic};

/// The name of the mark's file in a data directory.
pub const MARK_FILE_NAME: &str = "log.mark";
pub(super) const MARK_FILE_BYTES: usize = 8192;

const MAGIC: Magic = *b"PFMK";
const VERSION: u16 = 1;
const SLOT_BYTES: usize = 512;
const SLOT_OFFSETS: [usize; 2] = [0, 4096];
const ROW_AT: usize = 16;
const CHECKSUM_AT: usize = SLOT_BYTES - 8;

/// The mark, open.
pub(super) struct Mark {
    device: Arc<Device>,
    /// The counter of the newest slot; its parity says which slot that is.
    counter: u64,
    row: StateRow,
}

impl Mark {
    /// Fills a new file with the mark of a newborn log; durable on return.
    pub fn create(device: Arc<Device>, row: StateRow) -> io::Result<Mark> {
        let mut bytes = vec![0; MARK_FILE_BYTES];
        for (counter, offset) in SLOT_OFFSETS.into_iter().enumerate() {
            bytes[offset..offset + SLOT_BYTES].copy_from_slice(&encode_slot(counter as u64, &row));
        }
        device.write_all_at(&bytes, 0)?;
        device.sync()?;
        Ok(Mark { device, counter: 1, row })
    }

    /// Reads the mark. The outer error is the system's, the inner one says that the file is no good.
    pub fn open(device: Arc<Device>) -> io::Result<Result<Mark, Refusal>> {
        let found = device.len_bytes()?;
        if found != MARK_FILE_BYTES as u64 {
            return Ok(Err(Refusal::MarkLength { found, expected: MARK_FILE_BYTES as u64 }));
        }
        let mut bytes = vec![0; MARK_FILE_BYTES];
        device.read_exact_at(&mut bytes, 0)?;
        Ok(newest_slot(&bytes).map(|(counter, row)| Mark { device, counter, row }))
    }

    /// What was marked last.
    pub fn row(&self) -> &StateRow {
        &self.row
    }

    /// Marks a row whose commit has been synced. Not durable before [`Mark::sync`].
    pub fn write(&mut self, row: StateRow) -> io::Result<()> {
        let counter = self.counter + 1;
        let offset = SLOT_OFFSETS[(counter % 2) as usize];
        self.device.write_all_at(&encode_slot(counter, &row), offset as u64)?;
        self.counter = counter;
        self.row = row;
        Ok(())
    }

    /// Makes what was marked durable.
    pub fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

/// Whether these are the bytes of a mark in whose log nothing has happened yet, or of a mark whose
/// writing never ended: both are left behind by a creation that was cut short.
pub(crate) fn is_unborn(bytes: &[u8]) -> bool {
    if bytes.len() < MARK_FILE_BYTES || bytes.iter().all(|byte| *byte == 0) {
        return true;
    }
    newest_slot(bytes).is_ok_and(|(_, row)| row.seq == 0)
}

fn newest_slot(bytes: &[u8]) -> Result<(u64, StateRow), Refusal> {
    let slot = |offset: usize| decode_slot(bytes.get(offset..offset + SLOT_BYTES).unwrap_or_default());
    match (slot(SLOT_OFFSETS[0]), slot(SLOT_OFFSETS[1])) {
        (Err(later @ CodecError::UnsupportedVersion { .. }), _)
        | (_, Err(later @ CodecError::UnsupportedVersion { .. })) => Err(Refusal::UnsupportedVersion(later)),
        (Ok(first), Ok(second)) => Ok(if first.0 > second.0 { first } else { second }),
        (Ok(only), Err(_)) | (Err(_), Ok(only)) => Ok(only),
        (Err(first), Err(second)) => Err(Refusal::NoValidMark { first, second }),
    }
}

fn encode_slot(counter: u64, row: &StateRow) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..4].copy_from_slice(&MAGIC);
    slot[4..6].copy_from_slice(&VERSION.to_le_bytes());
    slot[8..16].copy_from_slice(&counter.to_le_bytes());
    slot[ROW_AT..ROW_AT + STATE_ROW_BYTES].copy_from_slice(&row.encode());
    let checksum = xxh3_64(&slot[..CHECKSUM_AT]);
    slot[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    slot
}

fn decode_slot(bytes: &[u8]) -> Result<(u64, StateRow), CodecError> {
    let slot: &[u8; SLOT_BYTES] =
        bytes.try_into().map_err(|_| CodecError::Torn { found: bytes.len(), expected: SLOT_BYTES })?;
    let word = |at: usize| slot[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
    let found = [slot[0], slot[1], slot[2], slot[3]];
    if found != MAGIC {
        return Err(CodecError::ForeignMagic { found, expected: MAGIC });
    }
    let (computed, stored) = (xxh3_64(&slot[..CHECKSUM_AT]), word(CHECKSUM_AT));
    if computed != stored {
        return Err(CodecError::Checksum { computed, stored });
    }
    let version = u16::from_le_bytes([slot[4], slot[5]]);
    if version != VERSION {
        return Err(CodecError::UnsupportedVersion { found: version, oldest: VERSION, newest: VERSION });
    }
    Ok((word(8), StateRow::decode(&slot[ROW_AT..ROW_AT + STATE_ROW_BYTES])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seq: u64) -> StateRow {
        StateRow { seq, ..StateRow::newborn(9) }
    }

    fn file(first: u64, second: u64) -> Vec<u8> {
        let mut bytes = vec![0; MARK_FILE_BYTES];
        bytes[..SLOT_BYTES].copy_from_slice(&encode_slot(first, &row(first)));
        bytes[4096..4096 + SLOT_BYTES].copy_from_slice(&encode_slot(second, &row(second)));
        bytes
    }

    #[test]
    fn the_higher_counter_counts() {
        assert_eq!(newest_slot(&file(4, 3)).unwrap(), (4, row(4)));
        assert_eq!(newest_slot(&file(4, 5)).unwrap(), (5, row(5)));
    }

    #[test]
    fn a_torn_slot_leaves_the_other() {
        let mut bytes = file(4, 5);
        bytes[4096 + 100] ^= 1;
        assert_eq!(newest_slot(&bytes).unwrap(), (4, row(4)));
        bytes[3] ^= 1;
        assert!(matches!(newest_slot(&bytes), Err(Refusal::NoValidMark { .. })));
    }

    #[test]
    fn a_later_version_is_refused_even_beside_a_readable_slot() {
        let mut bytes = file(4, 5);
        bytes[4] = 2;
        let checksum = xxh3_64(&bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..SLOT_BYTES].copy_from_slice(&checksum.to_le_bytes());
        let refusal = newest_slot(&bytes).unwrap_err();
        assert_eq!(refusal.to_string(), "format version 2 is not readable by this release, which reads 1 to 1");
    }

    #[test]
    fn unborn_is_what_a_creation_leaves_behind() {
        assert!(is_unborn(&[]));
        assert!(is_unborn(&[0; MARK_FILE_BYTES]));
        assert!(is_unborn(&file(0, 0)));
        assert!(!is_unborn(&file(1, 2)));
        assert!(!is_unborn(&[7; MARK_FILE_BYTES]));
    }
}
