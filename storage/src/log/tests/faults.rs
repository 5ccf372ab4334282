//! Errors of the disk: the first one ends the store, is told once, and is never tried again.

use std::io;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use super::super::conformance::{all, append, pos, run_of};
use super::super::{FaultHook, LogError, LogFile, LogOptions, LogStore, OpenError, RedbLog, Vote};
use super::{create, open, options};
use crate::failure::{Failure, FailureKind};

/// Where a fault is put.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Place {
    Write(LogFile),
    Sync(LogFile),
}

/// Fails the nth passage of a place, once armed. One time only: who tries again succeeds, and is found
/// out by that.
struct OneFault {
    place: Place,
    errno: Errno,
    countdown: AtomicI64,
    passages_after: AtomicU64,
}

impl OneFault {
    fn pass(&self, place: Place) -> io::Result<()> {
        if place != self.place {
            return Ok(());
        }
        match self.countdown.fetch_sub(1, Ordering::SeqCst) {
            1 => Err(self.errno.into()),
            left => {
                if left <= 0 {
                    self.passages_after.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            }
        }
    }
}

impl FaultHook for OneFault {
    fn write(&self, file: LogFile, _offset: u64, _data: &[u8]) -> io::Result<()> {
        self.pass(Place::Write(file))
    }

    fn set_len(&self, file: LogFile, _len_bytes: u64) -> io::Result<()> {
        self.pass(Place::Write(file))
    }

    fn sync(&self, file: LogFile) -> io::Result<()> {
        self.pass(Place::Sync(file))
    }
}

const PLACES: [Place; 4] = [
    Place::Write(LogFile::Store),
    Place::Sync(LogFile::Store),
    Place::Write(LogFile::Mark),
    Place::Sync(LogFile::Mark),
];

fn is_failed(result: Result<(), LogError>, kind: FailureKind) -> bool {
    matches!(result, Err(LogError::Failed(failure)) if failure.kind == kind)
}

/// Opens with a fault that is not armed yet, and a list of what was told as fatal.
fn open_faulty(
    dir: &std::path::Path,
    place: Place,
    errno: Errno,
) -> (RedbLog, Arc<OneFault>, Arc<Mutex<Vec<Failure>>>) {
    let fault = OneFault { place, errno, countdown: AtomicI64::new(i64::MAX), passages_after: AtomicU64::new(0) };
    let (fault, told) = (Arc::new(fault), Arc::new(Mutex::new(Vec::new())));
    let on_fatal = {
        let told = told.clone();
        Arc::new(move |failure: &Failure| told.lock().unwrap().push(failure.clone()))
    };
    let faulty = LogOptions { fault_hook: Some(fault.clone()), on_fatal: Some(on_fatal), ..options() };
    (RedbLog::open(dir, faulty).unwrap(), fault, told)
}

fn poisons(place: Place, errno: Errno, kind: FailureKind) {
    println!("{errno:?} at {place:?}");
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let (store, fault, told) = open_faulty(dir.path(), place, errno);
    append(&store, run_of(1, 0..5)).unwrap();
    let vote = Vote { term: 2, voted_for: Some(1), committed: false };
    fault.countdown.store(1, Ordering::SeqCst);
    // a vote passes all four places
    assert!(is_failed(store.save_vote(vote), kind));
    // what comes after fails likewise, and nothing was tried again
    let (sender, receiver) = channel();
    let late = store.append(run_of(1, 5..6), Box::new(move |result| sender.send(result).unwrap()));
    assert!(is_failed(late, kind) && receiver.recv().is_err());
    assert!(is_failed(store.save_vote(vote), kind));
    assert!(is_failed(store.truncate_after(None), kind));
    assert!(is_failed(store.purge(run_of(1, 0..1)[0].pos), kind));
    assert!(is_failed(store.read(0..9, 9).map(drop), kind));
    assert!(is_failed(store.close(), kind));
    drop(store);
    assert_eq!(fault.passages_after.load(Ordering::SeqCst), 0, "something was tried again");
    let told = told.lock().unwrap();
    assert_eq!(told.iter().map(|failure| failure.kind).collect::<Vec<_>>(), [kind]);
    // the files can be opened again in the same process, and what was acknowledged is there
    let store = open(dir.path());
    assert_eq!(all(&store), run_of(1, 0..5));
    assert!(store.state().vote.is_none_or(|found| found == vote));
}

#[test]
fn every_error_poisons() {
    for place in PLACES {
        poisons(place, Errno::IO, FailureKind::Io);
        poisons(place, Errno::NOSPC, FailureKind::DiskFull);
        poisons(place, Errno::DQUOT, FailureKind::DiskFull);
    }
}

#[test]
fn everything_pending_is_told() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let (store, fault, told) = open_faulty(dir.path(), Place::Sync(LogFile::Store), Errno::IO);
    fault.countdown.store(3, Ordering::SeqCst);
    let (sender, receiver) = channel();
    let mut refused = false;
    for index in 0..500 {
        let sender = sender.clone();
        let done = Box::new(move |result: Result<(), LogError>| sender.send((index, result.is_ok())).unwrap());
        if store.append(run_of(1, index..index + 1), done).is_err() {
            refused = true;
            break;
        }
    }
    drop(sender);
    let told_of: Vec<_> = receiver.iter().collect();
    let acknowledged = told_of.iter().take_while(|(_, ok)| *ok).count();
    assert!(told_of.iter().skip(acknowledged).all(|(_, ok)| !ok), "nothing succeeds after a failure");
    assert!(refused || told_of.len() == 500);
    drop(store);
    assert_eq!(told.lock().unwrap().len(), 1);
    assert!(all(&open(dir.path())).len() >= acknowledged);
}

#[test]
fn a_background_sync_of_the_mark_that_fails_is_fatal() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let (store, fault, told) = open_faulty(dir.path(), Place::Sync(LogFile::Mark), Errno::IO);
    fault.countdown.store(1, Ordering::SeqCst);
    append(&store, run_of(1, 0..1)).unwrap();
    // nothing more is asked of the store: it finds out by itself
    let begun = std::time::Instant::now();
    while told.lock().unwrap().is_empty() {
        assert!(begun.elapsed().as_secs() < 10);
        std::thread::yield_now();
    }
    assert!(is_failed(store.close(), FailureKind::Io));
}

#[test]
fn opening_on_a_failing_disk_is_a_failure_and_no_refusal() {
    for place in PLACES {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path());
        let fault =
            OneFault { place, errno: Errno::NOSPC, countdown: AtomicI64::new(1), passages_after: AtomicU64::new(0) };
        let faulty = LogOptions { fault_hook: Some(Arc::new(fault)), ..options() };
        match RedbLog::open(dir.path(), faulty) {
            Err(OpenError::Failed(failure)) => assert_eq!(failure.kind, FailureKind::DiskFull, "{place:?}"),
            other => panic!("{place:?}: {:?}", other.err()),
        }
        assert!(all(&open(dir.path())).is_empty());
    }
}

/// The owner of a store may drop it from the fatal callback and open another at once.
#[test]
fn the_store_can_be_reopened_from_the_fatal_callback() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let path = dir.path().to_owned();
    let (sender, receiver) = channel();
    let fault = Arc::new(OneFault {
        place: Place::Sync(LogFile::Store),
        errno: Errno::NOSPC,
        countdown: AtomicI64::new(i64::MAX),
        passages_after: AtomicU64::new(0),
    });
    let on_fatal = Arc::new(move |_: &Failure| sender.send(all(&open(&path)).len()).unwrap());
    let faulty = LogOptions { fault_hook: Some(fault.clone()), on_fatal: Some(on_fatal), ..options() };
    let store = RedbLog::open(dir.path(), faulty).unwrap();
    append(&store, run_of(1, 0..3)).unwrap();
    fault.countdown.store(1, Ordering::SeqCst);
    assert!(append(&store, run_of(1, 3..4)).is_err());
    assert!(receiver.recv().unwrap() >= 3);
}

/// What was appended when the disk was full can be had from the failed store, and be appended to the next one.
#[test]
fn what_a_full_disk_cost_can_be_appended_again() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let (store, fault, _) = open_faulty(dir.path(), Place::Write(LogFile::Store), Errno::NOSPC);
    append(&store, run_of(1, 0..5)).unwrap();
    assert!(store.unsaved().is_empty());
    fault.countdown.store(1, Ordering::SeqCst);
    assert!(append(&store, run_of(1, 5..9)).is_err());
    let unsaved = store.unsaved();
    assert_eq!(unsaved, run_of(1, 5..9));
    let next = open(dir.path());
    assert_eq!(all(&next), run_of(1, 0..5));
    append(&next, unsaved).unwrap();
    drop(store);
    assert_eq!(all(&next), run_of(1, 0..9));
}

/// Once armed: holds the next sync of the store back until it is let go, lets one more pass, and fails all that follow.
struct TwoSyncsMore {
    armed: std::sync::atomic::AtomicBool,
    held: Mutex<std::sync::mpsc::Receiver<()>>,
    passed: AtomicU64,
}

impl FaultHook for TwoSyncsMore {
    fn sync(&self, file: LogFile) -> io::Result<()> {
        if file != LogFile::Store || !self.armed.load(Ordering::SeqCst) {
            return Ok(());
        }
        match self.passed.fetch_add(1, Ordering::SeqCst) {
            0 => self.held.lock().unwrap().recv().map_err(io::Error::other),
            1 => Ok(()),
            _ => Err(Errno::IO.into()),
        }
    }
}

/// A quorum commits what this disk is late with. What is on the disk must not say that more is committed than it holds.
#[test]
fn what_is_committed_is_never_beyond_what_is_written() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let (let_go, held) = channel();
    let hook = Arc::new(TwoSyncsMore { armed: false.into(), held: Mutex::new(held), passed: AtomicU64::new(0) });
    let slow = LogOptions { fault_hook: Some(hook.clone()), group_max_records: 2, ..options() };
    let store = RedbLog::open(dir.path(), slow).unwrap();
    hook.armed.store(true, Ordering::SeqCst);
    let (sender, receiver) = channel();
    for index in 0..9 {
        let sender = sender.clone();
        let done = Box::new(move |result: Result<(), LogError>| sender.send(result.is_ok()).unwrap());
        store.append(run_of(1, index..index + 1), done).unwrap();
    }
    drop(sender);
    store.save_committed(Some(pos(1, 8)));
    // The group behind this one is taken when all of that is known.
    let_go.send(()).unwrap();
    let written = receiver.iter().filter(|is_ok| *is_ok).count() as u64;
    assert!((2..=4).contains(&written), "{written}");
    drop(store);
    let state = open(dir.path()).state();
    let (last, committed) = (state.last.unwrap().index, state.committed.map(|pos| pos.index));
    assert!(last + 1 >= written && last < 8, "{state:?}");
    assert!(committed <= Some(last), "{state:?}");
}

/// A sync that doesn't end is seen while it lasts; counted it would be when it is over.
#[test]
fn a_disk_that_stands_still_shows() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let (let_go, held) = channel();
    let hook = Arc::new(TwoSyncsMore { armed: false.into(), held: Mutex::new(held), passed: AtomicU64::new(0) });
    let store = RedbLog::open(dir.path(), LogOptions { fault_hook: Some(hook.clone()), ..options() }).unwrap();
    let syncs = store.stats().store_syncs;
    hook.armed.store(true, Ordering::SeqCst);
    let (sender, receiver) = channel();
    store.append(run_of(1, 0..1), Box::new(move |result| sender.send(result.is_ok()).unwrap())).unwrap();
    let first = std::iter::repeat_with(|| store.stats().writing_for).flatten().next();
    assert!(store.stats().writing_for >= first && store.stats().store_syncs == syncs);
    let_go.send(()).unwrap();
    assert!(receiver.recv().unwrap());
    // The writer tells its callers before it looks for more work.
    while store.stats().writing_for.is_some() {
        std::thread::yield_now();
    }
    assert!(store.stats().store_syncs > syncs);
}

/// No leader asks for it; a log that was told so all the same can be opened.
#[test]
fn what_is_committed_goes_with_what_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    append(&open(dir.path()), run_of(1, 0..9)).unwrap();
    for (committed, kept, expected) in [(3, 5, Some(3)), (5, 4, Some(3)), (4, 2, None)] {
        let store = open(dir.path());
        store.save_committed(Some(pos(1, committed)));
        store.truncate_after(Some(kept)).unwrap();
        drop(store);
        let state = open(dir.path()).state();
        assert_eq!((state.last, state.committed), (Some(pos(1, kept)), expected.map(|index| pos(1, index))));
    }
}
