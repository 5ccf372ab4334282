//! Data directories as earlier releases wrote them: each must stay readable, for ever.
//!
//! They lie under `fixtures/`, one for each version of any format. After a format has changed, write a new
//! one with PREFIXD_WRITE_FIXTURE=v2 and leave the old ones alone.

use std::fs;
use std::path::{Path, PathBuf};

use crate::data_dir::DataDir;
use crate::identity::{Identity, Promise};
use crate::log::{LogOptions, LogPos, LogRecord, LogState, LogStore, Vote};
use crate::snapshot::{SnapshotManifest, SnapshotStore};

const UUID: u128 = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn identity() -> Identity {
    Identity { cluster_id: Some(0xc1), node_id: 42, incarnation: 0, store_uuid: UUID, node_name: "node-0".into() }
}

fn promise() -> Promise {
    Promise { cluster_id: 0xc1, members: vec![("node-0".into(), 42), ("node-1".into(), 43)] }
}

fn pos(index: u64) -> LogPos {
    LogPos { term: 2, index }
}

/// The records that a fixture holds; from the second version on there is one that lies in parts.
fn record(fixture: &Path, index: u64) -> LogRecord {
    let mut body = format!("record {index}").into_bytes();
    if index == 6 && !fixture.ends_with("v1") {
        body.resize(9_000, 6);
    }
    LogRecord { pos: pos(index), body: body.into() }
}

fn vote() -> Vote {
    Vote { term: 3, voted_for: Some(43), committed: true }
}

fn manifest() -> SnapshotManifest {
    SnapshotManifest {
        cluster_id: 0xc1,
        last: Some(pos(5)),
        membership: b"membership".to_vec(),
        header: b"header".to_vec(),
        records: 3,
        digest: 0xd1,
        taken_at_us: 1_700_000_000_000_000,
    }
}

fn snapshot_records() -> [Vec<u8>; 3] {
    [b"first".to_vec(), vec![5; 10_000], Vec::new()]
}

fn write(home: &Path) {
    let mut dir = DataDir::open(home).unwrap();
    dir.create(&identity(), &LogOptions::new(UUID)).unwrap();
    promise().make(&dir.promise_path()).unwrap();
    let (_, log) = dir.load(LogOptions::new).unwrap();
    log.append((0..9).map(|index| record(home, index)).collect(), Box::new(|result| result.unwrap())).unwrap();
    log.save_vote(vote()).unwrap();
    log.save_committed(Some(pos(7)));
    log.purge(pos(3)).unwrap();
    log.close().unwrap();
    let (store, _) = SnapshotStore::open(&dir.snapshots_path()).unwrap();
    let mut writer = store.begin().unwrap();
    snapshot_records().iter().for_each(|record| writer.put(record).unwrap());
    writer.finish(manifest()).unwrap();
}

fn check(fixture: &Path, home: &Path) {
    let dir = DataDir::open(home).unwrap();
    assert_eq!(dir.promise().unwrap(), Some(promise()));
    let (found, log) = dir.load(LogOptions::new).unwrap();
    assert_eq!(found, Identity { incarnation: 2, ..identity() });
    let state = LogState { purged: Some(pos(3)), last: Some(pos(8)), vote: Some(vote()), committed: Some(pos(7)) };
    assert_eq!(log.state(), state);
    assert_eq!(log.read(0..100, usize::MAX).unwrap(), (4..9).map(|index| record(fixture, index)).collect::<Vec<_>>());
    let (store, set_aside) = SnapshotStore::open(&dir.snapshots_path()).unwrap();
    assert!(set_aside.is_empty(), "{set_aside:?}");
    let generation = store.latest().unwrap();
    assert_eq!(generation.manifest(), &manifest());
    let records: Vec<_> = generation.records().unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(records, snapshot_records());
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn every_format_ever_written_is_readable() {
    if let Some(name) = std::env::var_os("PREFIXD_WRITE_FIXTURE") {
        write(&fixtures().join(name));
    }
    let mut count = 0;
    for entry in fs::read_dir(fixtures()).unwrap() {
        let fixture = entry.unwrap().path();
        println!("{}", fixture.display());
        let home = tempfile::tempdir().unwrap();
        copy(&fixture, home.path());
        check(&fixture, home.path());
        count += 1;
    }
    assert!(count >= 2);
}
