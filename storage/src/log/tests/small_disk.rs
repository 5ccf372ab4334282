//! The log on a disk that is really full; see `snapshot/small_disk_tests` for what it needs.

use std::fs;
use std::io::Write;

use super::super::conformance::{all, append, pos};
use super::super::{LogError, LogRecord, LogStore, OpenError, RedbLog, Vote};
use super::{create, open, options};
use crate::data_dir::disk_free_bytes;
use crate::failure::FailureKind;

#[test]
fn a_full_disk_loses_nothing_and_can_be_survived() {
    let Some((disk, _mine_alone)) = crate::small_disk::take() else { return };
    assert!(disk_free_bytes(&disk).unwrap() < 64 << 20, "not a small file system");
    let dir = disk.join("log");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    create(&dir);
    let ballast = disk.join("log-ballast");
    for round in 0..20 {
        let store = open(&dir);
        let mut acknowledged = all(&store).len();
        store.save_vote(Vote { term: round, voted_for: None, committed: false }).unwrap();
        let mut file = fs::File::create(&ballast).unwrap();
        while disk_free_bytes(&disk).unwrap() > 40_000 * (round + 1) && file.write_all(&[1; 4096]).is_ok() {}
        drop(file);
        let failure = loop {
            let next = store.state().last.map_or(0, |last| last.index + 1);
            match append(&store, vec![LogRecord { pos: pos(round, next), body: vec![round as u8; 3000].into() }]) {
                Ok(()) => acknowledged += 1,
                Err(LogError::Failed(failure)) => break failure,
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(failure.kind, FailureKind::DiskFull, "{failure}");
        drop(store);
        match RedbLog::open(&dir, options()) {
            Ok(log) => assert!(all(&log).len() >= acknowledged),
            Err(OpenError::Failed(failure)) => println!("round {round}: not while full: {failure}"),
            Err(refused) => panic!("{refused}"),
        }
        fs::remove_file(&ballast).unwrap();
        let store = open(&dir);
        assert!(all(&store).len() >= acknowledged, "round {round}");
        assert_eq!(store.state().vote.unwrap().term, round);
        if round % 3 == 2 {
            store.purge(store.state().last.unwrap()).unwrap();
        }
    }
    fs::remove_dir_all(&dir).unwrap();
}
