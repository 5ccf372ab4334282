//! What comes back, and that nothing else does: every cut, every flipped bit, other files, later versions.

use std::path::Path;

use super::*;
use crate::log::LogPos;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

fn header() -> BackupHeader {
    BackupHeader {
        cluster_id: 0xc1,
        last: LogPos { term: 3, index: 77 },
        membership: b"members".to_vec(),
        digest: 0xd1 << 100,
        time_us: 1_700_000_000_000_000,
        taken_at_us: 1_700_000_000_500_000,
        feature_level: 1,
        entries: 5,
        prefixes: 4,
        dead_entries: 1,
        stats_rows: 2,
        sessions: 3,
        node_name: "n0".into(),
        release: "0.1.0".into(),
    }
}

fn written(records: &[Vec<u8>]) -> (Vec<u8>, BackupEnd) {
    let mut writer = BackupWriter::begin(Vec::new(), Path::new("out"), &header()).unwrap();
    records.iter().for_each(|record| writer.put(record).unwrap());
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> Result<(Vec<Vec<u8>>, BackupEnd), BackupError> {
    let mut reader = BackupReader::new(bytes, Path::new("nightly.pfbk"))?;
    assert_eq!(reader.header(), &header());
    let mut records = Vec::new();
    while let Some(record) = reader.next_record()? {
        records.push(record.to_vec());
    }
    assert!(reader.next_record()?.is_none(), "the end stays the end");
    Ok((records, reader.end().unwrap()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn what_went_in_comes_back(lengths in proptest::collection::vec(0usize..300_000, 0..12)) {
        let records: Vec<Vec<u8>> = lengths.iter().map(|length| vec![*length as u8; *length]).collect();
        let (bytes, end) = written(&records);
        prop_assert_eq!(end.file_bytes, bytes.len() as u64);
        prop_assert_eq!(end.records, records.len() as u64);
        prop_assert_eq!(read(&bytes).unwrap(), (records, end));
    }
}

#[test]
fn the_largest_record_fits_and_a_larger_one_is_refused() {
    let mut noise = 1u64;
    let largest: Vec<u8> = (0..MAX_RECORD_BYTES)
        .map(|_| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise as u8
        })
        .collect();
    let records = vec![vec![1; 500_000], largest.clone(), largest];
    assert_eq!(read(&written(&records).0).unwrap().0, records);
    let mut writer = BackupWriter::begin(Vec::new(), Path::new("out"), &header()).unwrap();
    let error = writer.put(&vec![0; MAX_RECORD_BYTES + 1]).unwrap_err();
    assert!(matches!(error, BackupError::TooLarge { .. }), "{error}");
}

/// A file of two chunks, small enough to be damaged in every place.
fn small() -> Vec<u8> {
    let mut records: Vec<Vec<u8>> = (0..20u8).map(|number| vec![number; usize::from(number)]).collect();
    records.push(vec![0; 600_000]);
    records.push(b"the last".to_vec());
    let bytes = written(&records).0;
    assert_eq!(read(&bytes).unwrap().1.chunks, 2);
    bytes
}

#[test]
fn every_cut_is_refused_as_one() {
    let bytes = small();
    for length in 0..bytes.len() {
        let error = read(&bytes[..length]).unwrap_err();
        assert!(matches!(error, BackupError::Cut { bytes, .. } if bytes == length as u64), "at {length}: {error}");
        assert!(error.to_string().contains("nightly.pfbk: cut short"), "{error}");
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let bytes = small();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            let error = read(&flipped).expect_err("a flipped bit was taken");
            assert!(error.to_string().starts_with("nightly.pfbk: "), "byte {at}, bit {bit}: {error}");
        }
    }
}

#[test]
fn what_is_added_or_in_another_order_is_refused() {
    let mut longer = small();
    longer.push(0);
    let error = read(&longer).unwrap_err().to_string();
    assert!(error.contains("bytes follow the end"), "{error}");
    // The two chunks of a file change places.
    let half = vec![7; 512 << 10];
    let whole = written(&[half.clone(), vec![9; 512 << 10]]).0;
    let heads: Vec<usize> = (0..whole.len() - 4).filter(|at| whole[*at..].starts_with(b"PFBC")).collect();
    let end = whole.len() - chunk::END_BYTES;
    let swapped = [&whole[..heads[0]], &whole[heads[1]..end], &whole[heads[0]..heads[1]], &whole[end..]].concat();
    let error = read(&swapped).unwrap_err().to_string();
    assert!(error.contains("chunk 0 should be here"), "{error}");
    // The second chunk is gone, with or without the end that knew of it.
    let short = [&whole[..heads[1]], &whole[end..]].concat();
    assert!(read(&short).unwrap_err().to_string().contains("the end tells of"));
}

#[test]
fn foreign_and_future_files_are_refused_by_name() {
    let error = read(b"PK\x03\x04 a zip archive").unwrap_err().to_string();
    assert!(error.contains("nightly.pfbk: foreign") && error.contains(r#""PK\x03\x04""#), "{error}");
    let mut later = small();
    later[4] = 9;
    let error = read(&later).unwrap_err().to_string();
    assert!(error.contains("format version 9") && error.contains("reads 1 to 1"), "{error}");
    let missing = BackupReader::open(Path::new("/nonexistent/nightly.pfbk")).err().unwrap().to_string();
    assert!(missing.contains("/nonexistent/nightly.pfbk"), "{missing}");
}

#[test]
fn a_chunk_that_contradicts_itself_is_refused_though_its_checksums_are_right() {
    let bytes = written(&[b"one".to_vec(), b"two".to_vec()]).0;
    let at = (0..bytes.len()).find(|at| bytes[*at..].starts_with(b"PFBC")).unwrap();
    for (place, value) in [(12, 3u32), (12, 1), (16, 13), (16, 1 << 30), (20, 1 << 30)] {
        let mut odd = bytes.clone();
        odd[at + place..at + place + 4].copy_from_slice(&value.to_le_bytes());
        let checksum = xxh3_64(&odd[at..at + 24]);
        odd[at + 24..at + 32].copy_from_slice(&checksum.to_le_bytes());
        let stored = chunk::u32_at(&odd, at + 20) as usize;
        if let Some(body_end) = odd.len().checked_sub(chunk::END_BYTES + 8)
            && stored < odd.len()
        {
            let head = odd[at..at + 32].try_into().unwrap();
            let checksum = chunk::chunk_checksum(&head, &odd[at + 32..body_end]);
            odd[body_end..body_end + 8].copy_from_slice(&checksum.to_le_bytes());
        }
        let error = read(&odd).unwrap_err();
        assert!(matches!(error, BackupError::Damaged { .. }), "{place} = {value}: {error}");
    }
}
