use std::sync::Arc;

use proptest::prelude::*;
use redb::{Database, ReadableDatabase, ReadableTable};

use super::*;

const PAGE_BYTES: usize = 4096;

fn record(index: u64, bytes: usize) -> LogRecord {
    let body: Vec<u8> = (0..bytes).map(|at| (at as u64 ^ index) as u8).collect();
    LogRecord { pos: LogPos { term: 3, index }, body: Arc::from(body) }
}

/// A store in memory.
fn engine() -> Database {
    Database::builder().create_with_backend(redb::backends::InMemoryBackend::new()).unwrap()
}

fn change(engine: &Database, work: impl FnOnce(&mut RecordTables<'_>)) {
    let transaction = engine.begin_write().unwrap();
    work(&mut RecordTables::open(&transaction).unwrap());
    transaction.commit().unwrap();
}

fn filled(records: &[LogRecord]) -> Database {
    let engine = engine();
    change(&engine, |tables| records.iter().for_each(|record| tables.insert(record).unwrap()));
    engine
}

fn all(engine: &Database) -> Result<Vec<LogRecord>, (u64, RecordFault)> {
    let mut reader = RecordReader::new(&engine.begin_read().unwrap(), 0, u64::MAX).unwrap();
    let (mut records, mut body) = (Vec::new(), Vec::new());
    while let Some(found) = reader.next(&mut body).unwrap() {
        records.push(LogRecord { pos: found?, body: Arc::from(body.as_slice()) });
    }
    Ok(records)
}

/// The keys of all parts there are.
fn part_keys(engine: &Database) -> Vec<PartKey> {
    let table = engine.begin_read().unwrap().open_table(PARTS).unwrap();
    table.iter().unwrap().map(|entry| entry.unwrap().0.value()).collect()
}

/// Lets `work` at a stored value.
fn tamper(engine: &Database, index: u64, number: u32, work: impl FnOnce(&mut Vec<u8>)) {
    change(engine, |tables| {
        let mut value = match number {
            0 => tables.records.get(index).unwrap().unwrap().value().to_vec(),
            _ => tables.parts.get((index, number)).unwrap().unwrap().value().to_vec(),
        };
        work(&mut value);
        match number {
            0 => drop(tables.records.insert(index, value.as_slice()).unwrap()),
            _ => drop(tables.parts.insert((index, number), value.as_slice()).unwrap()),
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn pieces_make_the_whole_and_leave_little_empty(bytes in prop_oneof![1usize..20_000, 1usize..70 << 20]) {
        let lengths: Vec<usize> = pieces(bytes).collect();
        prop_assert_eq!(lengths.iter().sum::<usize>(), bytes);
        prop_assert!(lengths.len() <= 6 && lengths.iter().all(|length| *length > 0), "{:?}", lengths);
        let pages = |length: &usize| (length + PAGE_OVERHEAD_BYTES).next_power_of_two().max(PAGE_BYTES);
        let held: usize = lengths.iter().map(pages).sum();
        let slack = PAGE_BYTES.max(bytes / SLACK_SHARE) + (lengths.len() + 1) * PAGE_OVERHEAD_BYTES;
        prop_assert!(held <= bytes + slack, "{bytes} in {lengths:?}: {held}");
    }
}

#[test]
fn small_values_stay_whole() {
    for bytes in [20, 4_000, 4_064, 6_200, 8_160] {
        assert_eq!(pieces(bytes).collect::<Vec<_>>(), [bytes]);
    }
    assert_eq!(pieces(4_116).collect::<Vec<_>>(), [4_064, 52]);
    assert_eq!(pieces(9020).collect::<Vec<_>>(), [8160, 860]);
}

#[test]
fn records_of_all_sizes_come_back() {
    let sizes = [0, 1, 4_076, 4_100, 8_140, 8_141, 9_000, 70_000, 550_000, 1 << 20];
    let records: Vec<_> = (5..).zip(sizes).map(|(index, bytes)| record(index, bytes)).collect();
    let engine = filled(&records);
    assert_eq!(all(&engine).unwrap(), records);
    assert!(part_keys(&engine).contains(&(11, 1)));
    let mut reader = RecordReader::new(&engine.begin_read().unwrap(), 11, 12).unwrap();
    let mut body = Vec::new();
    for record in &records[6..8] {
        assert_eq!(reader.next(&mut body).unwrap(), Some(Ok(record.pos)));
        assert_eq!(body, record.body[..]);
    }
    assert_eq!(reader.next(&mut body).unwrap(), None);
}

#[test]
fn every_flip_in_every_piece_is_noticed() {
    let records = [record(8, 9_000), record(9, 6)];
    for (number, bytes) in [(0, 8160), (1, 860)] {
        for at in (0..bytes).step_by(if number == 0 { 97 } else { 13 }).chain(0..20) {
            let engine = filled(&records);
            tamper(&engine, 8, number, |value| value[at] ^= 0x40);
            assert!(matches!(all(&engine), Err((8, _))), "piece {number}, byte {at}");
            let engine = filled(&records);
            tamper(&engine, 8, number, |value| value.truncate(at));
            assert!(matches!(all(&engine), Err((8, _))), "piece {number} cut to {at}");
        }
    }
}

#[test]
fn parts_that_are_missing_moved_or_too_many_are_noticed() {
    let records = [record(8, 10_000), record(9, 10_000), record(10, 1)];
    let spoilt = |spoil: &dyn Fn(&mut RecordTables<'_>)| {
        let engine = filled(&records);
        change(&engine, |tables| spoil(tables));
        all(&engine).unwrap_err()
    };
    assert_eq!(part_keys(&filled(&records)), [(8, 1), (9, 1)]);
    let missing = spoilt(&|tables| drop(tables.parts.remove((8, 1)).unwrap()));
    assert_eq!(missing, (8, RecordFault::Torn { found: 8160, expected: 10_020 }));
    let renumbered = spoilt(&|tables| {
        let part = tables.parts.remove((8, 1)).unwrap().unwrap().value().to_vec();
        tables.parts.insert((8, 2), part.as_slice()).unwrap();
    });
    assert_eq!(renumbered, (8, RecordFault::StrayPart));
    let exchanged = spoilt(&|tables| {
        let part = tables.parts.remove((8, 1)).unwrap().unwrap().value().to_vec();
        let part = tables.parts.insert((9, 1), part.as_slice()).unwrap().unwrap().value().to_vec();
        tables.parts.insert((8, 1), part.as_slice()).unwrap();
    });
    assert!(matches!(exchanged, (8, RecordFault::Checksum { .. })));
    for bytes in [&b""[..], b"more"] {
        assert_eq!(spoilt(&|tables| drop(tables.parts.insert((9, 2), bytes).unwrap())).0, 9);
        for (index, number) in [(10, 1), (11, 1), (7, 1), (8, 0)] {
            let (found, _) = spoilt(&|tables| drop(tables.parts.insert((index, number), bytes).unwrap()));
            assert_eq!(found, index);
        }
    }
    let orphaned = spoilt(&|tables| drop(tables.records.remove(9).unwrap()));
    assert_eq!(orphaned, (9, RecordFault::StrayPart));
}

#[test]
fn truncation_and_purge_take_the_parts_along() {
    let records: Vec<_> = (1..=9).map(|index| record(index, 10_000)).collect();
    let engine = filled(&records);
    change(&engine, |tables| tables.truncate_after(Some(6)).unwrap());
    change(&engine, |tables| tables.purge(2).unwrap());
    assert_eq!(all(&engine).unwrap(), records[2..6]);
    assert_eq!(part_keys(&engine), [(3, 1), (4, 1), (5, 1), (6, 1)]);
    change(&engine, |tables| tables.truncate_after(Some(u64::MAX)).unwrap());
    assert_eq!(part_keys(&engine).len(), 4);
    change(&engine, |tables| tables.truncate_after(None).unwrap());
    assert_eq!((all(&engine).unwrap(), part_keys(&engine)), (Vec::new(), Vec::new()));
}

#[test]
fn the_layout_is_the_documented_one() {
    let engine = filled(&[record(8, 9_000)]);
    let transaction = engine.begin_read().unwrap();
    let first = transaction.open_table(RECORDS).unwrap().get(8).unwrap().unwrap().value().to_vec();
    let second = transaction.open_table(PARTS).unwrap().get((8, 1)).unwrap().unwrap().value().to_vec();
    assert_eq!(first[..12], [3, 0, 0, 0, 0, 0, 0, 0, 0x28, 0x23, 0, 0]);
    assert_eq!([&first[20..], &second].concat(), record(8, 9_000).body[..]);
}

#[test]
fn a_store_without_parts_is_the_earlier_layout() {
    let engine = engine();
    let record = record(4, 9_000);
    let mut stored = 3u64.to_le_bytes().to_vec();
    stored.extend_from_slice(&9_000u32.to_le_bytes());
    stored.extend_from_slice(&checksum(record.pos, 9_000, &record.body).to_le_bytes());
    stored.extend_from_slice(&record.body);
    let transaction = engine.begin_write().unwrap();
    transaction.open_table(RECORDS).unwrap().insert(4, stored.as_slice()).unwrap();
    transaction.commit().unwrap();
    assert_eq!(all(&engine).unwrap(), [record]);
}
