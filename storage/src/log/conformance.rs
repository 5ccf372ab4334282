//! The contract of [`LogStore`], as a suite that any implementation must pass.
//!
//! A second implementation is tested by one more `Fixture` and a call of [`run`].

use std::sync::Arc;
use std::sync::mpsc::channel;

use super::{LogError, LogPos, LogRecord, LogState, LogStore, Vote};

/// A disk on which a store can be made and opened again.
pub(super) trait Fixture {
    type Store: LogStore;
    /// An empty log on a new disk.
    fn fresh() -> Self;
    /// Opens the log; the last one that was opened has been closed.
    fn open(&self) -> Self::Store;
}

/// Runs every case.
pub(super) fn run<F: Fixture>() {
    type Case<F> = (&'static str, fn(F));
    let cases: [Case<F>; 10] = [
        ("starts empty", starts_empty),
        ("keeps records", keeps_records),
        ("reads what is pending", reads_what_is_pending),
        ("stops at max bytes", stops_at_max_bytes),
        ("keeps the vote", keeps_the_vote),
        ("keeps the committed position", keeps_committed),
        ("refuses gaps", refuses_gaps),
        ("truncates", truncates),
        ("purges", purges),
        ("closes", closes),
    ];
    for (name, case) in cases {
        println!("case: {name}");
        case(F::fresh());
    }
}

pub(super) fn pos(term: u64, index: u64) -> LogPos {
    LogPos { term, index }
}

/// A record that can be told from all others. From the 13th on every seventh is a large one, such as a store may hold in
/// several pieces.
pub(super) fn record(term: u64, index: u64) -> LogRecord {
    let mut body = format!("record {index} of term {term}");
    if index > 12 && index % 7 == 6 {
        body = body.repeat(300 + (index * 113 % 800) as usize);
    }
    LogRecord { pos: pos(term, index), body: Arc::from(body.into_bytes()) }
}

pub(super) fn run_of(term: u64, indexes: std::ops::Range<u64>) -> Vec<LogRecord> {
    indexes.map(|index| record(term, index)).collect()
}

/// Appends and waits until it is durable.
pub(super) fn append(store: &dyn LogStore, records: Vec<LogRecord>) -> Result<(), LogError> {
    let (sender, receiver) = channel();
    store.append(records, Box::new(move |result| sender.send(result).unwrap()))?;
    receiver.recv().unwrap()
}

pub(super) fn all(store: &dyn LogStore) -> Vec<LogRecord> {
    store.read(0..u64::MAX, usize::MAX).unwrap()
}

fn starts_empty<F: Fixture>(disk: F) {
    let store = disk.open();
    assert_eq!(store.state(), LogState::default());
    assert!(all(&store).is_empty());
    append(&store, Vec::new()).unwrap();
    store.truncate_after(None).unwrap();
    assert_eq!(store.state(), LogState::default());
    assert_eq!(store.stats().records, 0);
}

fn keeps_records<F: Fixture>(disk: F) {
    let store = disk.open();
    append(&store, run_of(1, 0..3)).unwrap();
    append(&store, run_of(2, 3..5)).unwrap();
    let expected: Vec<_> = run_of(1, 0..3).into_iter().chain(run_of(2, 3..5)).collect();
    assert_eq!(all(&store), expected);
    assert_eq!(store.read(1..4, usize::MAX).unwrap(), expected[1..4]);
    assert!(store.read(5..9, usize::MAX).unwrap().is_empty());
    assert!(store.read(std::ops::Range { start: 4, end: 2 }, usize::MAX).unwrap().is_empty());
    store.close().unwrap();
    let store = disk.open();
    assert_eq!(store.state(), LogState { last: Some(pos(2, 4)), ..LogState::default() });
    assert_eq!(all(&store), expected);
    append(&store, run_of(2, 5..6)).unwrap();
    assert_eq!(store.read(3..9, usize::MAX).unwrap(), run_of(2, 3..6));
    assert_eq!(store.stats().records, 6);
}

fn reads_what_is_pending<F: Fixture>(disk: F) {
    let store = disk.open();
    let (sender, receiver) = channel();
    for index in 0..200 {
        let sender = sender.clone();
        store
            .append(run_of(1, index..index + 1), Box::new(move |result| sender.send((index, result)).unwrap()))
            .unwrap();
        assert_eq!(store.state().last, Some(pos(1, index)));
        assert_eq!(store.read(index..index + 1, usize::MAX).unwrap(), run_of(1, index..index + 1));
    }
    for index in 0..200 {
        let (told, result) = receiver.recv().unwrap();
        result.unwrap();
        assert_eq!(told, index, "callbacks come in order");
    }
    assert_eq!(store.stats().pending_bytes, 0);
}

fn stops_at_max_bytes<F: Fixture>(disk: F) {
    let store = disk.open();
    append(&store, run_of(1, 0..9)).unwrap();
    let each = record(1, 0).body.len();
    assert_eq!(store.read(0..9, 0).unwrap().len(), 1);
    assert_eq!(store.read(2..9, each + 1).unwrap(), run_of(1, 2..4));
    assert_eq!(store.read(2..9, each * 2).unwrap().len(), 2);
    store.close().unwrap();
    let store = disk.open();
    append(&store, run_of(1, 9..12)).unwrap();
    // across the border between store and memory
    assert_eq!(store.read(7..12, each * 3 + 1).unwrap(), run_of(1, 7..11));
    // what lies in memory is the store's own affair, so long as it is all or nothing
    for (range, max_bytes) in [(7..12, usize::MAX), (9..12, each + 1), (12..20, usize::MAX)] {
        if let Some(records) = store.read_from_memory(range.clone(), max_bytes) {
            assert_eq!(records, store.read(range, max_bytes).unwrap());
        }
    }
}

fn keeps_the_vote<F: Fixture>(disk: F) {
    let votes = [
        Vote { term: 3, voted_for: None, committed: false },
        Vote { term: 3, voted_for: Some(u64::MAX), committed: true },
        Vote { term: 4, voted_for: Some(0), committed: false },
    ];
    for vote in votes {
        let store = disk.open();
        store.save_vote(vote).unwrap();
        assert_eq!(store.state().vote, Some(vote));
        store.close().unwrap();
        let store = disk.open();
        assert_eq!(store.state().vote, Some(vote));
        store.close().unwrap();
    }
}

fn keeps_committed<F: Fixture>(disk: F) {
    let store = disk.open();
    store.save_committed(Some(pos(1, 1)));
    append(&store, run_of(1, 0..3)).unwrap();
    store.save_committed(Some(pos(1, 2)));
    assert_eq!(store.state().committed, Some(pos(1, 2)));
    store.close().unwrap();
    let store = disk.open();
    assert_eq!(store.state().committed, Some(pos(1, 2)));
    store.save_committed(None);
    store.close().unwrap();
    assert_eq!(disk.open().state().committed, None);
}

fn refuses_gaps<F: Fixture>(disk: F) {
    let store = disk.open();
    append(&store, run_of(1, 5..7)).unwrap();
    for records in [run_of(1, 8..9), run_of(1, 6..7), vec![record(1, 7), record(1, 9)]] {
        assert!(matches!(append(&store, records), Err(LogError::NotContiguous { wanted: 7 | 8, .. })));
    }
    assert!(matches!(store.purge(pos(1, 2)), Err(LogError::NotContiguous { wanted: 4, got: 2 })));
    assert_eq!(all(&store), run_of(1, 5..7));
    store.purge(pos(1, 4)).unwrap();
    append(&store, run_of(1, 7..8)).unwrap();
    store.close().unwrap();
    let store = disk.open();
    assert_eq!(all(&store), run_of(1, 5..8));
    assert_eq!(store.state().purged, Some(pos(1, 4)));
}

fn truncates<F: Fixture>(disk: F) {
    let store = disk.open();
    append(&store, run_of(1, 0..10)).unwrap();
    for beyond in [9, 10, u64::MAX] {
        store.truncate_after(Some(beyond)).unwrap();
    }
    assert_eq!(store.state().last, Some(pos(1, 9)));
    store.truncate_after(Some(6)).unwrap();
    append(&store, run_of(2, 7..9)).unwrap();
    store.close().unwrap();
    let store = disk.open();
    assert_eq!(all(&store), [run_of(1, 0..7), run_of(2, 7..9)].concat());
    // what is neither in memory nor pending any more
    store.truncate_after(Some(3)).unwrap();
    assert_eq!(store.state().last, Some(pos(1, 3)));
    store.purge(pos(1, 1)).unwrap();
    store.truncate_after(None).unwrap();
    let empty = LogState { purged: Some(pos(1, 1)), last: Some(pos(1, 1)), ..LogState::default() };
    assert_eq!(store.state(), empty);
    store.close().unwrap();
    let store = disk.open();
    assert_eq!(store.state(), empty);
    append(&store, run_of(3, 2..4)).unwrap();
    store.truncate_after(Some(0)).unwrap();
    assert_eq!(store.state(), empty, "before the purge point means everything behind it");
}

fn purges<F: Fixture>(disk: F) {
    let store = disk.open();
    append(&store, run_of(1, 0..10)).unwrap();
    store.purge(pos(1, 3)).unwrap();
    store.purge(pos(1, 2)).unwrap();
    store.purge(pos(1, 3)).unwrap();
    assert_eq!(store.state().purged, Some(pos(1, 3)));
    assert_eq!(all(&store), run_of(1, 4..10));
    store.close().unwrap();
    let store = disk.open();
    assert_eq!(all(&store), run_of(1, 4..10));
    assert_eq!(store.read(0..6, usize::MAX).unwrap(), run_of(1, 4..6));
    store.purge(pos(1, 9)).unwrap();
    assert_eq!(store.state(), LogState { purged: Some(pos(1, 9)), last: Some(pos(1, 9)), ..LogState::default() });
    append(&store, run_of(1, 10..12)).unwrap();
    store.purge(pos(4, 100)).unwrap();
    assert_eq!(store.state(), LogState { purged: Some(pos(4, 100)), last: Some(pos(4, 100)), ..LogState::default() });
    assert!(matches!(append(&store, run_of(4, 12..13)), Err(LogError::NotContiguous { wanted: 101, got: 12 })));
    append(&store, run_of(4, 101..103)).unwrap();
    store.close().unwrap();
    let store = disk.open();
    assert_eq!(all(&store), run_of(4, 101..103));
    assert_eq!(store.stats().records, 2);
}

fn closes<F: Fixture>(disk: F) {
    let store = disk.open();
    let (sender, receiver) = channel();
    store.append(run_of(1, 0..3), Box::new(move |result| sender.send(result).unwrap())).unwrap();
    store.close().unwrap();
    receiver.try_recv().expect("what was pending is told before close returns").unwrap();
    store.close().unwrap();
    assert!(matches!(append(&store, run_of(1, 3..4)), Err(LogError::Closed)));
    assert!(matches!(store.read(0..1, 1), Err(LogError::Closed)));
    let vote = Vote { term: 1, voted_for: None, committed: false };
    assert!(matches!(store.save_vote(vote), Err(LogError::Closed)));
    drop(store);
    // dropping without closing loses nothing either
    let store = disk.open();
    store.append(run_of(1, 3..5), Box::new(|result| result.unwrap())).unwrap();
    drop(store);
    assert_eq!(all(&disk.open()), run_of(1, 0..5));
}
