//! Snapshots on a disk that is really full. Needs a small file system of its own, so it is skipped
//! unless PREFIXD_SMALL_DISK names one with 4 to 64 MiB, for instance
//! `mount -t tmpfs -o size=16m none /mnt/small`.

use std::fs;
use std::io::Write;
use std::path::Path;

use super::tests::{manifest, read, records, take};
use super::*;
use crate::data_dir::disk_free_bytes;

fn fill(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
}

#[test]
fn a_full_disk_costs_the_snapshot_and_nothing_else() {
    let Some((disk, _mine_alone)) = crate::small_disk::take() else { return };
    assert!(disk_free_bytes(&disk).unwrap() < 64 << 20, "not a small file system");
    let dir = disk.join("snapshots");
    let _ = fs::remove_dir_all(&dir);
    let (store, _) = SnapshotStore::open(&dir).unwrap();
    let kept = records(1, 20);
    take(&store, 1, &kept);
    for round in 0..3 {
        let mut writer = store.begin().unwrap();
        let record = vec![7; 60_000];
        let mut count = 0;
        let error = loop {
            match writer.put(&record) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
            assert!(count < 10_000, "the disk is not full yet");
        };
        println!("round {round}: {count} records, then {error}");
        assert!(error.is_disk_full(), "{error}");
        drop(writer);
        assert_eq!(read(&store.latest().unwrap()).unwrap(), kept);
    }
    // what there is can be read while not a byte is free
    let ballast = disk.join("ballast");
    fill(&ballast);
    assert_eq!(disk_free_bytes(&disk).unwrap(), 0);
    assert_eq!(read(&store.latest().unwrap()).unwrap(), kept);
    let (reopened, set_aside) = SnapshotStore::open(&dir).unwrap();
    assert_eq!(read(&reopened.latest().unwrap()).unwrap(), kept);
    assert!(set_aside.is_empty());
    fs::remove_file(&ballast).unwrap();
    // sled's own threads let go of the files of what was given up when they get to it
    let begun = std::time::Instant::now();
    while disk_free_bytes(&disk).unwrap() < 10 << 20 && begun.elapsed().as_secs() < 10 {
        std::thread::yield_now();
    }
    // there is room again, in the same process
    let more = records(2, 30);
    take(&store, 2, &more);
    assert_eq!(read(&store.latest().unwrap()).unwrap(), more);
    let writer = store.begin().unwrap();
    writer.finish(manifest(3, 0)).unwrap();
    fs::remove_dir_all(&dir).unwrap();
}
