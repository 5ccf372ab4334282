//! Records in chunks: how a snapshot's records lie in the database.
//!
//! The records make one stream of frames, cut every 4096 bytes whatever lies there; the chunk with
//! number n is the value under key n (u64, big-endian). A frame, little-endian: length u32, xxh3_64 u64
//! over record number (u64), length and record; then the record. Values must not be larger: sled writes
//! nodes of up to 17 values as one item, and items above 128 KiB into files that it never syncs.

use xxhash_rust::xxh3::Xxh3;

/// The largest record.
pub const MAX_RECORD_BYTES: usize = 1 << 20;
/// The size of every value but the last.
pub(super) const CHUNK_BYTES: usize = 4096;
const HEADER_BYTES: usize = 12;

/// Makes chunks of records.
#[derive(Default)]
pub(super) struct FrameWriter {
    buffer: Vec<u8>,
    hasher: Xxh3,
    pub records: u64,
    pub bytes: u64,
}

impl FrameWriter {
    /// Adds a record (at most [`MAX_RECORD_BYTES`]) and hands the chunks that it fills to `emit`.
    pub fn put<E>(&mut self, record: &[u8], mut emit: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let length = record.len() as u32;
        self.buffer.extend_from_slice(&length.to_le_bytes());
        self.buffer.extend_from_slice(&checksum(self.records, record).to_le_bytes());
        self.buffer.extend_from_slice(record);
        self.records += 1;
        let whole = self.buffer.len() / CHUNK_BYTES * CHUNK_BYTES;
        for chunk in self.buffer[..whole].chunks_exact(CHUNK_BYTES) {
            self.hasher.update(chunk);
            self.bytes += CHUNK_BYTES as u64;
            emit(chunk)?;
        }
        self.buffer.drain(..whole);
        Ok(())
    }

    /// Hands the last chunk to `emit` and returns the checksum of the stream.
    pub fn finish<E>(&mut self, emit: impl FnOnce(&[u8]) -> Result<(), E>) -> Result<u128, E> {
        if !self.buffer.is_empty() {
            self.hasher.update(&self.buffer);
            self.bytes += self.buffer.len() as u64;
            emit(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(self.hasher.digest128())
    }
}

/// Makes records of chunks.
#[derive(Default)]
pub(super) struct FrameReader {
    buffer: Vec<u8>,
    /// Where the next frame begins in `buffer`.
    at: usize,
    hasher: Xxh3,
    pub records: u64,
    pub bytes: u64,
}

impl FrameReader {
    /// Takes the next chunk.
    pub fn feed(&mut self, chunk: &[u8]) {
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        self.buffer.extend_from_slice(chunk);
        self.hasher.update(chunk);
        self.bytes += chunk.len() as u64;
    }

    /// The next record, None when another chunk is needed for it.
    pub fn next_record(&mut self) -> Result<Option<Vec<u8>>, String> {
        let rest = &self.buffer[self.at..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        if length > MAX_RECORD_BYTES {
            return Err(format!("record {} claims {length} bytes", self.records));
        }
        let Some(record) = rest.get(..length) else { return Ok(None) };
        let stored = header[4..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
        let computed = checksum(self.records, record);
        if computed != stored {
            let number = self.records;
            return Err(format!("record {number}: checksum mismatch: computed {computed:016x}, stored {stored:016x}"));
        }
        let record = record.to_vec();
        self.records += 1;
        self.at += HEADER_BYTES + length;
        Ok(Some(record))
    }

    /// Bytes that no record has claimed yet.
    pub fn rest_bytes(&self) -> usize {
        self.buffer.len() - self.at
    }

    /// The checksum of all that was fed.
    pub fn checksum(&self) -> u128 {
        self.hasher.digest128()
    }
}

fn checksum(number: u64, record: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&(record.len() as u32).to_le_bytes());
    hasher.update(record);
    hasher.digest()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunks_of(records: &[Vec<u8>]) -> (Vec<Vec<u8>>, u128) {
        let mut chunks = Vec::new();
        let mut writer = FrameWriter::default();
        let mut emit = |chunk: &[u8]| {
            chunks.push(chunk.to_vec());
            Ok::<_, ()>(())
        };
        records.iter().for_each(|record| writer.put(record, &mut emit).unwrap());
        let checksum = writer.finish(&mut emit).unwrap();
        (chunks, checksum)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn records_come_back(lengths in proptest::collection::vec(0usize..20_000, 0..12)) {
            let records: Vec<Vec<u8>> = lengths.iter().map(|length| vec![*length as u8; *length]).collect();
            let (chunks, checksum) = chunks_of(&records);
            let mut reader = FrameReader::default();
            let mut back = Vec::new();
            for chunk in &chunks {
                prop_assert!(chunk.len() <= CHUNK_BYTES);
                reader.feed(chunk);
                while let Some(record) = reader.next_record().unwrap() {
                    back.push(record);
                }
            }
            prop_assert_eq!(back, records);
            prop_assert_eq!((reader.rest_bytes(), reader.checksum()), (0, checksum));
        }
    }

    #[test]
    fn a_flip_anywhere_is_noticed() {
        let (chunks, checksum) = chunks_of(&[vec![1; 300], vec![2; 5000], vec![]]);
        let stream = chunks.concat();
        for at in 0..stream.len() {
            let mut damaged = stream.clone();
            damaged[at] ^= 4;
            let mut reader = FrameReader::default();
            reader.feed(&damaged);
            let mut count = 0;
            let sound = loop {
                match reader.next_record() {
                    Ok(Some(_)) => count += 1,
                    Ok(None) => break count == 3 && reader.rest_bytes() == 0,
                    Err(_) => break false,
                }
            };
            assert!(!sound, "byte {at}");
            assert_ne!(reader.checksum(), checksum);
        }
    }
}
