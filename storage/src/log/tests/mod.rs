//! What the log does on a real disk, a failing disk and a damaged one.

mod damage;
mod faults;
mod growth;
mod model;
mod power_loss;
mod small_disk;

use std::path::Path;

use super::conformance::{self, Fixture};
use super::{LogOptions, LogStore as _, RedbLog};

const STORE_UUID: u128 = 0x5705;

fn options() -> LogOptions {
    LogOptions { cache_bytes: 1 << 20, ..LogOptions::new(STORE_UUID) }
}

fn create(dir: &Path) {
    RedbLog::create(dir, &options()).unwrap();
}

fn open(dir: &Path) -> RedbLog {
    RedbLog::open(dir, options()).unwrap()
}

/// The number of rounds that a variable asks for, else the default.
fn rounds(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// The seed of a randomized test: PREFIXD_SEED, else a new one. It is printed, so that a failure can be
/// repeated.
fn seed() -> u64 {
    let seed = rounds("PREFIXD_SEED", rand::random());
    println!("PREFIXD_SEED={seed}");
    seed
}

struct Disk {
    dir: tempfile::TempDir,
    options: LogOptions,
}

impl Fixture for Disk {
    type Store = RedbLog;

    fn fresh() -> Disk {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path());
        Disk { dir, options: options() }
    }

    fn open(&self) -> RedbLog {
        RedbLog::open(self.dir.path(), self.options.clone()).unwrap()
    }
}

/// The same without a tail in memory: all that is durable is read from the store.
struct DiskWithoutTail(Disk);

impl Fixture for DiskWithoutTail {
    type Store = RedbLog;

    fn fresh() -> DiskWithoutTail {
        let mut disk = Disk::fresh();
        disk.options.tail_max_bytes = 0;
        DiskWithoutTail(disk)
    }

    fn open(&self) -> RedbLog {
        self.0.open()
    }
}

#[test]
fn fulfils_the_contract() {
    conformance::run::<Disk>();
}

#[test]
fn what_was_appended_since_the_start_is_read_from_memory() {
    let disk = Disk::fresh();
    let store = disk.open();
    conformance::append(&store, conformance::run_of(1, 0..9)).unwrap();
    store.close().unwrap();
    let store = disk.open();
    conformance::append(&store, conformance::run_of(1, 9..12)).unwrap();
    let each = conformance::record(1, 9).body.len();
    assert_eq!(store.read_from_memory(7..12, usize::MAX), None);
    assert_eq!(store.read_from_memory(9..12, each + 1), Some(conformance::run_of(1, 9..11)));
    assert_eq!(store.read_from_memory(12..20, usize::MAX), Some(Vec::new()));
}

#[test]
fn fulfils_the_contract_without_a_tail() {
    conformance::run::<DiskWithoutTail>();
}
