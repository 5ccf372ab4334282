//! Every byte of the two files flipped, and every length that they can be cut to: the log comes back as
//! it was, or is refused by name. Never a shorter log, never an older vote.
//!
//! A sample by default; PREFIXD_DAMAGE=full tries all.

use std::fs;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::conformance::{all, append, pos, run_of};
use super::super::{
    LogOptions, LogRecord, LogState, LogStore, MARK_FILE_NAME, OpenError, RedbLog, STORE_FILE_NAME, Vote,
};
use super::{create, options, rounds, seed};

/// A log as it lies on disk, and what it must be.
struct Subject {
    mark: Vec<u8>,
    store: Vec<u8>,
    state: LogState,
    records: Vec<LogRecord>,
}

impl Subject {
    /// A log with a bit of everything in it; closed, or as a crash leaves it behind.
    fn make(closed: bool) -> Subject {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path());
        let store = RedbLog::open(dir.path(), options()).unwrap();
        append(&store, run_of(1, 0..40)).unwrap();
        store.save_vote(Vote { term: 1, voted_for: Some(7), committed: true }).unwrap();
        store.truncate_after(Some(30)).unwrap();
        append(&store, run_of(2, 31..36)).unwrap();
        store.purge(pos(1, 4)).unwrap();
        let large = LogRecord { pos: pos(2, 36), body: vec![9; 9000].into() };
        append(&store, vec![large]).unwrap();
        store.save_committed(Some(pos(2, 36)));
        // last of all a vote, which syncs the mark: from here on no older state may be shown
        store.save_vote(Vote { term: 3, voted_for: Some(8), committed: false }).unwrap();
        let (state, records) = (store.state(), all(&store));
        if closed {
            store.close().unwrap();
        }
        let read = |name| fs::read(dir.path().join(name)).unwrap();
        Subject { mark: read(MARK_FILE_NAME), store: read(STORE_FILE_NAME), state, records }
    }

    /// Opens these bytes: true when the log is as it was, false when it is refused.
    fn comes_back(&self, dir: &Path, mark: &[u8], store: &[u8], what: &str) -> bool {
        fs::write(dir.join(MARK_FILE_NAME), mark).unwrap();
        fs::write(dir.join(STORE_FILE_NAME), store).unwrap();
        let small = LogOptions { tail_max_bytes: 0, ..options() };
        match RedbLog::open(dir, small) {
            Ok(log) => {
                assert_eq!(log.state(), self.state, "{what}");
                assert_eq!(all(&log), self.records, "{what}");
                true
            }
            Err(error @ OpenError::Refused { .. }) => {
                let said = error.to_string();
                assert!(said.contains(dir.to_str().unwrap()) && said.contains("--bootstrap=never"), "{said}");
                false
            }
            Err(failed) => panic!("{what}: {failed}"),
        }
    }
}

fn is_full() -> bool {
    std::env::var("PREFIXD_DAMAGE").is_ok_and(|value| value == "full")
}

/// Where to damage a file: everywhere, or densely where something lies and sparsely elsewhere.
fn places(bytes: &[u8], dense: usize, sparse: usize) -> Vec<usize> {
    if is_full() {
        return (0..bytes.len()).collect();
    }
    let (used, unused): (Vec<_>, Vec<_>) = (0..bytes.len()).partition(|at| bytes[*at] != 0);
    let pick = |from: &[usize], count: usize| -> Vec<usize> {
        from.iter().copied().step_by((from.len() / count).max(1)).collect()
    };
    let mut places = [pick(&used, dense), pick(&unused, sparse)].concat();
    places.sort_unstable();
    places
}

fn try_all(closed: bool) {
    let subject = Subject::make(closed);
    let dir = tempfile::tempdir().unwrap();
    let (mark, store) = (&subject.mark, &subject.store);
    assert!(subject.comes_back(dir.path(), mark, store, "undamaged"));
    let (mut unaffected, mut refused) = (0, 0);
    let mut count = |came_back: bool| *if came_back { &mut unaffected } else { &mut refused } += 1;
    for at in places(mark, 300, 100) {
        let mut damaged = mark.clone();
        damaged[at] ^= 1 << (at % 8);
        count(subject.comes_back(dir.path(), &damaged, store, &format!("mark flipped at {at}")));
        count(subject.comes_back(dir.path(), &mark[..at], store, &format!("mark cut to {at}")));
    }
    for at in places(store, 1200, 200) {
        let mut damaged = store.clone();
        damaged[at] ^= 1 << (at % 8);
        count(subject.comes_back(dir.path(), mark, &damaged, &format!("store flipped at {at}")));
    }
    let ends = (0..store.len()).step_by(4096);
    for at in places(store, 100, 100).into_iter().chain(ends) {
        count(subject.comes_back(dir.path(), mark, &store[..at], &format!("store cut to {at}")));
    }
    println!(
        "mark of {} bytes, store of {} bytes, closed: {closed}: {} damages tried, {unaffected} unaffected or \
         repaired, {refused} refused",
        mark.len(),
        store.len(),
        unaffected + refused
    );
    assert!(unaffected > 0 && refused > 0);
}

/// Larger damage: stretches zeroed, filled with noise, or replaced by another part of the file or by
/// what was there when the log was young.
#[test]
fn larger_damage_is_noticed_as_well() {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let subject = Subject::make(true);
    let young = {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path());
        fs::read(dir.path().join(STORE_FILE_NAME)).unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let (mut unaffected, mut refused) = (0, 0);
    for round in 0..rounds("PREFIXD_DAMAGE_ROUNDS", 300) {
        let mut files = [subject.mark.clone(), subject.store.clone()];
        let bytes = &mut files[usize::from(random.random_bool(0.8))];
        let unit = [1, 64, 512, 4096][random.random_range(0..4)];
        let length = (unit * random.random_range(1..5)).min(bytes.len());
        let at = random.random_range(0..=bytes.len() - length) / unit * unit;
        let kind = random.random_range(0..4);
        match kind {
            0 => bytes[at..at + length].fill(0),
            1 => random.fill(&mut bytes[at..at + length]),
            2 => {
                let from = random.random_range(0..=bytes.len() - length) / unit * unit;
                bytes.copy_within(from..from + length, at);
            }
            _ => {
                let length = length.min(young.len());
                let at = at.min(young.len() - length);
                bytes[at..at + length].copy_from_slice(&young[at..at + length]);
            }
        }
        let what = format!("seed {seed} round {round}: {length} bytes at {at}, kind {kind}");
        let [mark, store] = &files;
        *if subject.comes_back(dir.path(), mark, store, &what) { &mut unaffected } else { &mut refused } += 1;
    }
    println!("{unaffected} unaffected or repaired, {refused} refused");
}

#[test]
fn a_closed_log_is_whole_or_refused() {
    try_all(true);
}

#[test]
fn a_crashed_log_is_whole_or_refused() {
    try_all(false);
}
