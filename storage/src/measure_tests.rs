//! Figures, not verdicts: how fast the log commits and how long a snapshot takes on this disk. Skipped
//! unless PREFIXD_MEASURE is set; PREFIXD_MEASURE_DIR names the disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::log::{LogOptions, LogPos, LogRecord, LogStore, RedbLog, STORE_FILE_NAME};
use crate::snapshot::{SnapshotManifest, SnapshotStore};

fn disk() -> Option<tempfile::TempDir> {
    if std::env::var_os("PREFIXD_MEASURE").is_none() {
        println!("skipped: PREFIXD_MEASURE is not set");
        return None;
    }
    let dir = std::env::var_os("PREFIXD_MEASURE_DIR").unwrap_or_else(|| std::env::temp_dir().into());
    Some(tempfile::tempdir_in(dir).unwrap())
}

/// Keeps `in_flight` appends of `body_bytes` going for a while.
fn appends(dir: &Path, in_flight: u64, body_bytes: usize) {
    let store = RedbLog::open(dir, LogOptions::new(1)).unwrap();
    let body: Arc<[u8]> = vec![7; body_bytes].into();
    let mut index = store.state().last.map_or(0, |last| last.index + 1);
    let (sender, receiver) = channel();
    let mut latencies = Vec::new();
    let (before, begun) = (store.stats(), Instant::now());
    let mut pending = 0;
    while begun.elapsed() < Duration::from_secs(3) || pending > 0 {
        while pending < in_flight && begun.elapsed() < Duration::from_secs(3) {
            let (sender, at) = (sender.clone(), Instant::now());
            let record = LogRecord { pos: LogPos { term: 1, index }, body: body.clone() };
            store.append(vec![record], Box::new(move |_| sender.send(at.elapsed()).unwrap())).unwrap();
            (index, pending) = (index + 1, pending + 1);
        }
        if pending > 0 {
            latencies.push(receiver.recv().unwrap());
            pending -= 1;
        }
        if index.is_multiple_of(20_000) {
            store.purge(LogPos { term: 1, index: index - 1_000 }).unwrap();
        }
    }
    let (after, took) = (store.stats(), begun.elapsed());
    latencies.sort();
    println!(
        "{in_flight} in flight, {body_bytes} bytes: {:.0} appends/s, {:.0} commits/s, p50 {:?}, p99 {:?}, disk {} KiB",
        latencies.len() as f64 / took.as_secs_f64(),
        (after.commits - before.commits) as f64 / took.as_secs_f64(),
        latencies[latencies.len() / 2],
        latencies[latencies.len() * 99 / 100],
        after.disk_bytes >> 10
    );
    store.purge(store.state().last.unwrap()).unwrap();
}

#[test]
fn log() {
    let Some(dir) = disk() else { return };
    RedbLog::create(dir.path(), &LogOptions::new(1)).unwrap();
    for (in_flight, body_bytes) in [(1, 200), (64, 200), (1024, 200), (1, 65_536), (16, 65_536), (16, 1 << 20)] {
        appends(dir.path(), in_flight, body_bytes);
    }
    let begun = Instant::now();
    RedbLog::open(dir.path(), LogOptions::new(1)).unwrap();
    println!("opening: {:?}", begun.elapsed());
}

/// What records of `sizes`, in turn, take on disk beyond their bytes.
fn room(what: &str, sizes: &[usize]) {
    use std::os::unix::fs::MetadataExt;
    const TOTAL_BYTES: usize = 160 << 20;
    let total_bytes = if sizes.iter().sum::<usize>() < 1 << 10 { TOTAL_BYTES / 16 } else { TOTAL_BYTES };
    let Some(dir) = disk() else { return };
    RedbLog::create(dir.path(), &LogOptions::new(1)).unwrap();
    let store = RedbLog::open(dir.path(), LogOptions::new(1)).unwrap();
    let (mut index, mut bytes) = (0, 0);
    for size in sizes.iter().cycle() {
        let record = LogRecord { pos: LogPos { term: 1, index }, body: vec![7; *size].into() };
        store.append(vec![record], Box::new(|result| result.unwrap())).unwrap();
        (index, bytes) = (index + 1, bytes + size);
        if bytes >= total_bytes {
            break;
        }
    }
    store.close().unwrap();
    let path = dir.path().join(STORE_FILE_NAME);
    let file = std::fs::metadata(&path).unwrap();
    let engine = redb::Database::open(&path).unwrap();
    let stats = engine.begin_write().unwrap().stats().unwrap();
    let share = |part: u64| part as f64 / bytes as f64;
    println!(
        "{what}: {index} records of {} KiB; of their bytes the file takes {:.3}, as held {:.3}; stored {:.3}, metadata {:.4}, \
         fragmented {:.3}, allocated pages {:.3}",
        (bytes / index as usize) >> 10,
        share(file.len()),
        share(file.blocks() * 512),
        share(stats.stored_bytes()),
        share(stats.metadata_bytes()),
        share(stats.fragmented_bytes()),
        share(stats.allocated_pages() * 4096),
    );
}

#[test]
fn log_room() {
    room("small", &[200]);
    room("a page", &[4 << 10]);
    room("70 KiB", &[70 << 10]);
    room("half an entry", &[550_000]);
    room("a full entry", &[(1 << 20) - 300]);
    room(
        "mixed",
        &[4_000, 9_000, 20_000, 33_000, 70_000, 100_000, 150_000, 280_000, 400_000, 540_000, 700_000, 1_040_000],
    );
}

#[test]
fn snapshot() {
    let Some(dir) = disk() else { return };
    let (store, _) = SnapshotStore::open(dir.path()).unwrap();
    for megabytes in [1, 100] {
        let begun = Instant::now();
        let mut writer = store.begin().unwrap();
        let mut noise = 1u64;
        for _ in 0..megabytes * 16 {
            let record: Vec<u8> = (0..65_536)
                .map(|_| {
                    noise ^= noise << 13;
                    noise ^= noise >> 7;
                    noise ^= noise << 17;
                    noise as u8
                })
                .collect();
            writer.put(&record).unwrap();
        }
        let put = begun.elapsed();
        let manifest = SnapshotManifest {
            cluster_id: 1,
            last: Some(LogPos { term: 1, index: megabytes }),
            membership: Vec::new(),
            header: Vec::new(),
            records: megabytes * 16,
            digest: 0,
            taken_at_us: 0,
        };
        let sealed = writer.seal(manifest).unwrap();
        let seal = begun.elapsed();
        let generation = sealed.publish().unwrap();
        let publish = begun.elapsed();
        let again = Instant::now();
        drop(SnapshotStore::open(dir.path()).unwrap());
        let opened = again.elapsed();
        generation.records().unwrap().for_each(|record| drop(record.unwrap()));
        println!(
            "{megabytes} MiB: put {put:?}, sealed {:?}, published {:?}, disk {} KiB; opening {opened:?}, reading {:?}",
            seal - put,
            publish - seal,
            generation.bytes() >> 10,
            again.elapsed() - opened
        );
    }
}
