//! Generations as a whole: what comes back, what is kept, and what damage does.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::log::LogPos;

pub(super) fn manifest(index: u64, records: u64) -> SnapshotManifest {
    SnapshotManifest {
        cluster_id: 7,
        last: Some(LogPos { term: 1, index }),
        membership: vec![1, 2, 3],
        header: b"header".to_vec(),
        records,
        digest: 99,
        taken_at_us: 123,
    }
}

/// Records of many sizes that differ by `seed`.
pub(super) fn records(seed: u8, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| vec![seed.wrapping_add(number as u8); (number * 977) % 9000]).collect()
}

pub(super) fn take(store: &SnapshotStore, index: u64, records: &[Vec<u8>]) -> Arc<Generation> {
    let mut writer = store.begin().unwrap();
    records.iter().for_each(|record| writer.put(record).unwrap());
    writer.finish(manifest(index, records.len() as u64)).unwrap()
}

pub(super) fn read(generation: &Arc<Generation>) -> Result<Vec<Vec<u8>>, SnapshotError> {
    generation.records()?.collect()
}

fn open(dir: &Path) -> (SnapshotStore, Vec<SetAside>) {
    SnapshotStore::open(dir).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn comes_back_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (store, set_aside) = open(dir.path());
    assert!(set_aside.is_empty() && store.latest().is_none());
    let content = records(1, 40);
    let generation = take(&store, 10, &content);
    assert_eq!(read(&generation).unwrap(), content);
    assert_eq!(read(&store.latest().unwrap()).unwrap(), content);
    drop((store, generation));
    let (store, set_aside) = open(dir.path());
    assert!(set_aside.is_empty());
    let generation = store.latest().unwrap();
    assert_eq!(generation.manifest(), &manifest(10, 40));
    assert!(generation.bytes() > 0 && generation.record_bytes() > 0);
    // two readers at once, then one again
    let (mut first, second) = (generation.records().unwrap(), generation.records().unwrap());
    assert_eq!(first.next().unwrap().unwrap(), content[0]);
    assert_eq!(second.collect::<Result<Vec<_>, _>>().unwrap(), content);
    drop(first);
    assert_eq!(read(&generation).unwrap(), content);
}

#[test]
fn an_empty_snapshot_and_the_largest_record_are_fine() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    assert!(read(&take(&store, 1, &[])).unwrap().is_empty());
    let large = vec![vec![5; MAX_RECORD_BYTES]];
    assert_eq!(read(&take(&store, 2, &large)).unwrap(), large);
    let mut writer = store.begin().unwrap();
    let error = writer.put(&vec![0; MAX_RECORD_BYTES + 1]).unwrap_err();
    assert!(matches!(error, SnapshotError::TooLarge { .. }));
}

#[test]
fn two_generations_are_kept_and_a_held_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let held = take(&store, 1, &records(1, 5));
    for index in 2..6 {
        take(&store, index, &records(index as u8, 5));
    }
    assert_eq!(names(dir.path()).len(), 3);
    assert_eq!(read(&held).unwrap(), records(1, 5));
    drop(held);
    assert_eq!(names(dir.path()), ["gen-00000000000000000004", "gen-00000000000000000005"]);
    assert_eq!(store.generations().len(), 2);
}

#[test]
fn an_older_state_never_hides_a_newer_one() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    take(&store, 200, &records(1, 3));
    take(&store, 100, &records(2, 3));
    assert_eq!(store.latest().unwrap().manifest().last.unwrap().index, 200);
    drop(store);
    assert_eq!(open(dir.path()).0.latest().unwrap().manifest().last.unwrap().index, 200);
}

#[test]
fn what_is_given_up_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let mut writer = store.begin().unwrap();
    writer.put(b"record").unwrap();
    drop(writer);
    let mut writer = store.begin().unwrap();
    writer.put(b"record").unwrap();
    let sealed = writer.seal(manifest(1, 1)).unwrap();
    assert_eq!(sealed.records().unwrap().next().unwrap().unwrap(), b"record");
    drop(sealed);
    assert!(matches!(store.begin().unwrap().finish(manifest(1, 1)), Err(SnapshotError::WrongCount { .. })));
    assert!(names(dir.path()).is_empty());
    assert!(store.latest().is_none());
    store.warm_up().unwrap();
    assert!(names(dir.path()).is_empty() && store.latest().is_none());
    // what a crash leaves behind goes at the next start
    fs::create_dir_all(dir.path().join("tmp-00000000000000000009/sled")).unwrap();
    open(dir.path());
    assert!(names(dir.path()).is_empty());
}

#[test]
fn bad_generations_are_set_aside_and_do_not_pile_up() {
    let dir = tempfile::tempdir().unwrap();
    for index in 1..5 {
        let (store, _) = open(dir.path());
        let generation = take(&store, index, &records(index as u8, 3));
        let set_aside = store.set_aside(&generation, "for the test").unwrap();
        assert_eq!(set_aside[0].reason, "for the test");
        assert!(store.set_aside(&generation, "again").unwrap().is_empty());
    }
    assert_eq!(names(dir.path()), ["bad-00000000000000000003", "bad-00000000000000000004"]);
}

/// Copies a directory tree.
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

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Opens a store whose latest generation was damaged: it must be set aside by name, and the older one
/// must be offered, whole.
fn older_is_offered(dir: &Path, older: &[Vec<u8>], what: &str) {
    let (store, set_aside) = open(dir);
    assert_eq!(set_aside.len(), 1, "{what}");
    let latest = store.latest().unwrap();
    assert_eq!(latest.manifest().last.unwrap().index, 1, "{what}: {set_aside:?}");
    assert_eq!(read(&latest).unwrap(), older, "{what}");
}

#[test]
fn a_damaged_generation_is_never_offered() {
    let pristine = tempfile::tempdir().unwrap();
    let (store, _) = open(pristine.path());
    let older = records(1, 6);
    let path = {
        take(&store, 1, &older);
        take(&store, 2, &records(2, 6)).path().strip_prefix(pristine.path()).unwrap().to_owned()
    };
    drop(store);
    let full = std::env::var("PREFIXD_DAMAGE").is_ok_and(|value| value == "full");
    let mut tried = 0;
    for file in files(&pristine.path().join(&path)) {
        let name = file.strip_prefix(pristine.path()).unwrap();
        let bytes = fs::read(&file).unwrap();
        let stride = (bytes.len() / if full { 4096 } else { 12 }).max(1);
        for at in (0..bytes.len()).step_by(stride) {
            let work = tempfile::tempdir().unwrap();
            copy(pristine.path(), work.path());
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x20;
            fs::write(work.path().join(name), &damaged).unwrap();
            older_is_offered(work.path(), &older, &format!("{} flipped at {at}", name.display()));
            let work = tempfile::tempdir().unwrap();
            copy(pristine.path(), work.path());
            fs::write(work.path().join(name), &bytes[..at]).unwrap();
            older_is_offered(work.path(), &older, &format!("{} cut to {at}", name.display()));
            tried += 2;
        }
        let work = tempfile::tempdir().unwrap();
        copy(pristine.path(), work.path());
        fs::remove_file(work.path().join(name)).unwrap();
        older_is_offered(work.path(), &older, &format!("{} removed", name.display()));
    }
    println!("{tried} damages tried");
}

/// The other half of the next test, run by it in a process of its own: reads for ever.
#[test]
fn child_reads_until_killed() {
    let Some(dir) = std::env::var_os("PREFIXD_TEST_CHILD_DIR") else { return };
    loop {
        let (store, _) = SnapshotStore::open(Path::new(&dir)).unwrap();
        read(&store.latest().unwrap()).unwrap();
    }
}

/// sled writes to its files when they are opened for reading. What it writes must be what is there.
#[test]
fn a_reader_that_is_killed_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let content = records(4, 150);
    {
        let (store, _) = open(dir.path());
        take(&store, 1, &content);
    }
    for round in 0..12 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "snapshot::tests::child_reads_until_killed"])
            .env("PREFIXD_TEST_CHILD_DIR", dir.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_micros(5_000 + round * 1_700));
        child.kill().unwrap();
        child.wait().unwrap();
        let (store, set_aside) = open(dir.path());
        assert!(set_aside.is_empty(), "round {round}: {set_aside:?}");
        assert_eq!(read(&store.latest().unwrap()).unwrap(), content);
    }
}

#[test]
fn with_nothing_good_left_there_is_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    for index in 1..3 {
        let generation = take(&store, index, &records(1, 3));
        fs::write(generation.path().join("manifest"), b"not a manifest").unwrap();
    }
    drop(store);
    let (store, set_aside) = open(dir.path());
    assert!(store.latest().is_none());
    assert_eq!(set_aside.len(), 2);
    assert!(set_aside[0].reason.contains("foreign magic"), "{set_aside:?}");
}

#[test]
fn damage_while_running_is_noticed_by_the_reader() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let older = records(3, 4);
    take(&store, 1, &older);
    let generation = take(&store, 2, &records(2, 6));
    let manifest_path = generation.path().join("manifest");
    assert!(manifest_path.exists());
    let reason = "the reader found it damaged";
    assert_eq!(store.set_aside(&generation, reason).unwrap().len(), 1);
    assert_eq!(read(&store.latest().unwrap()).unwrap(), older);
    assert!(generation.records().is_err(), "no database may be made where there was one");
}
