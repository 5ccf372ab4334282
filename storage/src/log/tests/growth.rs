//! Appending and purging for ever must not make the file grow for ever.

use super::super::conformance::{append, pos};
use super::super::{LogRecord, LogStore};
use super::{create, open, rounds};

#[test]
fn append_and_purge_stay_bounded() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let store = open(dir.path());
    let rounds = rounds("PREFIXD_GROWTH_ROUNDS", 3_000);
    let mut most_bytes = 0;
    for round in 0..rounds {
        let record = LogRecord { pos: pos(1, round), body: vec![round as u8; 200].into() };
        append(&store, vec![record]).unwrap();
        if round % 10 == 9 {
            store.purge(pos(1, round - 5)).unwrap();
        }
        most_bytes = most_bytes.max(store.stats().disk_bytes);
    }
    let stats = store.stats();
    println!("{rounds} rounds: at most {most_bytes} bytes, {} syncs of the store", stats.store_syncs);
    assert!(most_bytes < 8 << 20, "{most_bytes} bytes for a handful of records");
    assert!(stats.records <= 15);
}

#[test]
fn large_records_leave_little_behind() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let store = open(dir.path());
    let mut most_bytes = 0;
    for round in 0..rounds("PREFIXD_GROWTH_ROUNDS", 300).min(3_000) {
        let bytes = 5_000 + (round * 7_919_117 % 300_000) as usize;
        append(&store, vec![LogRecord { pos: pos(1, round), body: vec![round as u8; bytes].into() }]).unwrap();
        if round % 10 == 9 {
            store.purge(pos(1, round - 5)).unwrap();
        }
        most_bytes = most_bytes.max(store.stats().disk_bytes);
    }
    println!("at most {most_bytes} bytes for 15 records of up to 305,000");
    assert!(most_bytes < 24 << 20, "{most_bytes} bytes for a handful of records");
}
