//! Which directories are taken for what.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::*;
use crate::log::{FaultHook, LogFile, LogStore, Vote};

const UUID: u128 = 0xabc;

fn identity() -> Identity {
    Identity { cluster_id: None, node_id: 5, incarnation: 0, store_uuid: UUID, node_name: "node-0".into() }
}

fn options(store_uuid: u128) -> LogOptions {
    LogOptions::new(store_uuid)
}

/// A directory in which a node has served and voted.
fn lived_in() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let mut dir = DataDir::open(home.path()).unwrap();
    assert!(dir.presence().is_fresh());
    dir.create(&identity(), &options(UUID)).unwrap();
    let (found, log) = dir.load(options).unwrap();
    assert_eq!(found, Identity { incarnation: 1, ..identity() });
    log.save_vote(Vote { term: 1, voted_for: Some(5), committed: false }).unwrap();
    log.close().unwrap();
    home
}

fn missing(path: &Path) -> &'static str {
    match DataDir::open(path) {
        Err(DataDirError::Incomplete { missing, .. }) => missing,
        other => panic!("{:?}", other.map(|dir| dir.presence())),
    }
}

#[test]
fn lives_and_comes_back_counting_its_incarnations() {
    let home = lived_in();
    for incarnation in 2..4 {
        let dir = DataDir::open(home.path()).unwrap();
        assert_eq!(dir.presence(), Presence { mark: true, store: true, identity: true, snapshots: false });
        let (found, log) = dir.load(options).unwrap();
        assert_eq!(found.incarnation, incarnation);
        assert_eq!(log.state().vote.unwrap().term, 1);
    }
    let mut dir = DataDir::open(home.path()).unwrap();
    assert!(matches!(dir.create(&identity(), &options(UUID)), Err(DataDirError::WrongState { .. })));
}

#[test]
fn one_process_at_a_time() {
    let home = tempfile::tempdir().unwrap();
    let first = DataDir::open(home.path()).unwrap();
    let error = DataDir::open(home.path()).unwrap_err();
    assert!(matches!(error, DataDirError::InUse { .. }));
    assert!(error.to_string().contains(home.path().to_str().unwrap()));
    drop(first);
    DataDir::open(home.path()).unwrap();
}

#[test]
fn a_creation_that_was_cut_short_starts_over() {
    // after each step of the creation: a mark that isn't whole, a mark, a store that isn't whole, a store
    for step in 0..4 {
        let home = tempfile::tempdir().unwrap();
        drop(DataDir::open(home.path()).unwrap());
        let (mark, store) = (home.path().join(MARK_FILE_NAME), home.path().join(STORE_FILE_NAME));
        match step {
            0 => fs::write(&mark, [0; 100]).unwrap(),
            _ => RedbLog::create(home.path(), &options(1)).unwrap(),
        }
        match step {
            1 => fs::remove_file(&store).unwrap(),
            2 => fs::write(&store, [1, 2, 3]).unwrap(),
            _ => {}
        }
        let mut dir = DataDir::open(home.path()).unwrap();
        assert!(dir.presence().is_fresh());
        assert!(matches!(dir.load(options), Err(DataDirError::WrongState { .. })));
        dir.create(&identity(), &options(UUID)).unwrap();
        dir.load(options).unwrap();
    }
}

/// Lets a number of changes to the log's files pass and none after.
struct PassOnly(AtomicI64);

impl PassOnly {
    fn pass(&self) -> io::Result<()> {
        if self.0.fetch_sub(1, Ordering::SeqCst) > 0 { Ok(()) } else { Err(io::Error::other("stopped here")) }
    }
}

impl FaultHook for PassOnly {
    fn write(&self, _: LogFile, _: u64, _: &[u8]) -> io::Result<()> {
        self.pass()
    }
    fn set_len(&self, _: LogFile, _: u64) -> io::Result<()> {
        self.pass()
    }
    fn sync(&self, _: LogFile) -> io::Result<()> {
        self.pass()
    }
}

#[test]
fn a_creation_that_stops_anywhere_starts_over() {
    let mut stops = 0;
    loop {
        let home = tempfile::tempdir().unwrap();
        let mut dir = DataDir::open(home.path()).unwrap();
        let hook = Arc::new(PassOnly(AtomicI64::new(stops)));
        let stopping = LogOptions { fault_hook: Some(hook), ..options(1) };
        let stranger = Identity { store_uuid: 1, ..identity() };
        if dir.create(&stranger, &stopping).is_ok() {
            break;
        }
        drop(dir);
        let mut dir = DataDir::open(home.path()).unwrap();
        assert!(dir.presence().is_fresh(), "after {stops} changes");
        dir.create(&identity(), &options(UUID)).unwrap();
        dir.load(options).unwrap();
        stops += 1;
    }
    assert!(stops > 10, "only {stops} changes");
}

#[test]
fn a_lost_file_is_named() {
    for name in [MARK_FILE_NAME, STORE_FILE_NAME, IDENTITY_FILE_NAME] {
        let home = lived_in();
        fs::remove_file(home.path().join(name)).unwrap();
        assert_eq!(missing(home.path()), name);
    }
    // the mark and the identity together
    let home = lived_in();
    fs::remove_file(home.path().join(MARK_FILE_NAME)).unwrap();
    fs::remove_file(home.path().join(IDENTITY_FILE_NAME)).unwrap();
    assert_eq!(missing(home.path()), MARK_FILE_NAME);
    // all but the snapshots
    let home = lived_in();
    fs::create_dir(home.path().join("snapshots/gen-00000000000000000001")).unwrap();
    for name in [MARK_FILE_NAME, STORE_FILE_NAME, IDENTITY_FILE_NAME] {
        fs::remove_file(home.path().join(name)).unwrap();
    }
    let error = DataDir::open(home.path()).unwrap_err().to_string();
    assert!(error.contains("identity is missing although snapshots is there"), "{error}");
    assert!(error.contains("--bootstrap=never: it rejoins as a fresh learner"), "{error}");
}

#[test]
fn another_nodes_log_is_refused() {
    let (home, other) = (lived_in(), tempfile::tempdir().unwrap());
    let mut dir = DataDir::open(other.path()).unwrap();
    let stranger = Identity { store_uuid: 0xdef, ..identity() };
    dir.create(&stranger, &options(0xdef)).unwrap();
    for name in [MARK_FILE_NAME, STORE_FILE_NAME] {
        let home = lived_in();
        fs::copy(other.path().join(name), home.path().join(name)).unwrap();
        let error = DataDir::open(home.path()).unwrap().load(options).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("belongs to store 00000000000000000000000000000def"), "{error}");
        assert!(error.contains(name), "{error}");
    }
    // the whole directory of an older day: mark and store agree, and the node must not know better
    DataDir::open(home.path()).unwrap().load(options).unwrap();
}

#[test]
fn an_old_store_under_a_new_mark_is_refused() {
    let home = lived_in();
    let store = home.path().join(STORE_FILE_NAME);
    let old = fs::read(&store).unwrap();
    {
        let (_, log) = DataDir::open(home.path()).unwrap().load(options).unwrap();
        log.save_vote(Vote { term: 9, voted_for: Some(6), committed: false }).unwrap();
    }
    fs::write(&store, old).unwrap();
    let error = DataDir::open(home.path()).unwrap().load(options).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("the log is behind its mark"), "{error}");
    let dir = home.path().display();
    assert!(error.contains(&format!("`mv {dir} {dir}.refused`")), "{error}");
}

#[test]
fn a_later_release_is_named_and_nobody_is_sent_away() {
    let home = lived_in();
    let path = home.path().join(MARK_FILE_NAME);
    let mut mark = fs::read(&path).unwrap();
    for slot in [0, 4096] {
        mark[slot + 4] = 9;
        let checksum = xxhash_rust::xxh3::xxh3_64(&mark[slot..slot + 504]);
        mark[slot + 504..slot + 512].copy_from_slice(&checksum.to_le_bytes());
    }
    fs::write(&path, mark).unwrap();
    let error = DataDir::open(home.path()).unwrap().load(options).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("format version 9 is not readable") && error.contains("start the release"), "{error}");
    assert!(!error.contains("--bootstrap"), "{error}");
}

#[test]
fn free_bytes_are_told() {
    assert!(disk_free_bytes(std::env::temp_dir().as_path()).unwrap() > 0);
    assert!(disk_free_bytes(Path::new("/nowhere/at/all")).is_err());
}

#[test]
fn a_restore_wants_an_empty_place_and_is_served_only_when_it_is_done() {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().join("data");
    let restoring = DataDir::open_for_restore(&home).unwrap();
    assert!(matches!(DataDir::open_for_restore(&home), Err(DataDirError::InUse { .. })));
    fs::write(home.join("identity"), b"half of one").unwrap();
    fs::write(home.join("snapshots/half"), b"of one").unwrap();
    drop(restoring);
    let error = DataDir::open(&home).unwrap_err().to_string();
    assert!(error.contains("cut short") && error.contains("prefixd restore FILE --data-dir"), "{error}");
    // The next restore starts over.
    let mut restoring = DataDir::open_for_restore(&home).unwrap();
    assert!(!home.join("identity").exists() && !home.join("snapshots/half").exists());
    restoring.create(&identity(), &options(UUID)).unwrap();
    restoring.restored().unwrap();
    assert!(DataDir::open(&home).unwrap().presence().identity);
    let error = DataDir::open_for_restore(&home).map(drop).unwrap_err().to_string();
    assert!(error.contains("not empty (identity is there)"), "{error}");
}

#[test]
fn a_restore_that_is_given_up_leaves_an_empty_directory() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("lost+found")).unwrap();
    let restoring = DataDir::open_for_restore(home.path()).unwrap();
    fs::write(home.path().join("log.mark"), b"half").unwrap();
    restoring.give_up_restore().unwrap();
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lost+found"]);
    DataDir::open_for_restore(home.path()).unwrap();
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("letter.txt"), b"dear").unwrap();
    let error = DataDir::open_for_restore(other.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("letter.txt") && error.contains("another --data-dir"), "{error}");
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1, "nothing was left in it");
}
