//! What a snapshot takes in memory, whatever its size: the process must not hold what it writes or reads. It is alone in its
//! process, because the peak of a process is all that the kernel tells. PREFIXD_SNAPSHOT_MIB asks for another size.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use prefixd_storage::{SnapshotManifest, SnapshotStore};
use std::time::Instant;

const MIB: u64 = 160;
const RECORD_BYTES: u64 = 60_000;
/// What may be taken whatever the size, and the share of the size.
const MOST_MIB: u64 = 36;
const MOST_SHARE: u64 = 10;

fn memory_mib(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

fn phase<T>(what: &str, before_mib: f64, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let made = work();
    println!("{what}: {:?}, peak so far {:.1} MiB more", began.elapsed(), memory_mib("VmHWM") - before_mib);
    made
}

#[test]
fn a_snapshot_is_not_held_in_memory() {
    let mib = std::env::var("PREFIXD_SNAPSHOT_MIB").map_or(MIB, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = SnapshotStore::open(dir.path()).unwrap();
    let before_mib = memory_mib("VmHWM");
    let records = (mib << 20) / RECORD_BYTES;
    let mut writer = store.begin().unwrap();
    let mut noise = 1u64;
    let mut record = vec![0u8; RECORD_BYTES as usize];
    phase("put", before_mib, || {
        for _ in 0..records {
            for word in record.chunks_exact_mut(8) {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                word.copy_from_slice(&noise.to_le_bytes());
            }
            writer.put(&record).unwrap();
        }
    });
    let manifest = SnapshotManifest {
        cluster_id: 1,
        last: None,
        membership: Vec::new(),
        header: Vec::new(),
        records,
        digest: 0,
        taken_at_us: 0,
    };
    let generation = phase("finish", before_mib, || writer.finish(manifest).unwrap());
    let count = phase("read", before_mib, || {
        generation.records().unwrap().try_fold(0, |count, record| record.map(|_| count + 1)).unwrap()
    });
    assert_eq!(count, records);
    println!("{} MiB of records, {} on disk", generation.record_bytes() >> 20, generation.bytes() >> 20);
    let most_mib = memory_mib("VmHWM") - before_mib;
    assert!(
        most_mib < (MOST_MIB + mib / MOST_SHARE) as f64,
        "a snapshot of {mib} MiB took {most_mib:.1} MiB of memory"
    );
}
