//! Random calls against a model that keeps everything in a map, with readers beside them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::conformance::{Fixture, append, pos, record, run_of};
use super::super::{LogPos, LogRecord, LogState, LogStore, RedbLog, Vote};
use super::{Disk, options, rounds, seed};

/// What a log should hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Model {
    pub records: BTreeMap<u64, u64>,
    pub purged: Option<LogPos>,
    pub vote: Option<Vote>,
    pub committed: Option<LogPos>,
}

/// A call that changes the log.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Append(Vec<LogRecord>),
    Vote(Vote),
    Truncate(Option<u64>),
    Purge(LogPos),
}

impl Model {
    pub fn state(&self) -> LogState {
        let last = self.records.last_key_value().map(|(index, term)| pos(*term, *index));
        LogState { purged: self.purged, last: last.or(self.purged), vote: self.vote, committed: self.committed }
    }

    fn read(&self, range: Range<u64>) -> Vec<LogRecord> {
        if range.start >= range.end {
            return Vec::new();
        }
        self.records.range(range).map(|(index, term)| record(*term, *index)).collect()
    }

    /// A call that makes sense here. Terms only rise and what is committed is never cut off, as in a real log.
    pub fn random_call(&self, random: &mut StdRng, term: &mut u64) -> Call {
        let last = self.state().last.map_or(0, |last| last.index);
        let first = self.records.first_key_value().map_or(last, |(first, _)| *first);
        match random.random_range(0..20) {
            0..12 => {
                let next = self.state().last.map_or(0, |last| last.index + 1);
                Call::Append(run_of(*term, next..next + random.random_range(1..6)))
            }
            12..15 => {
                *term += 1;
                let voted_for = random.random_bool(0.7).then(|| random.random_range(0..5));
                Call::Vote(Vote { term: *term, voted_for, committed: random.random() })
            }
            15..18 => {
                *term += 1;
                let index = random.random_range(first.saturating_sub(2)..last + 3);
                let index = random.random_bool(0.95).then_some(index);
                let held = self.committed.map(|pos| pos.index).filter(|index| self.records.contains_key(index));
                Call::Truncate(index.max(held))
            }
            _ => {
                let beyond = if random.random_bool(0.2) { 20 } else { 0 };
                let index = random.random_range(first..=last + beyond);
                let term = self.records.get(&index).copied().unwrap_or(*term);
                Call::Purge(pos(term, index))
            }
        }
    }

    pub fn apply(&mut self, call: &Call) {
        match call {
            Call::Append(records) => {
                self.records.extend(records.iter().map(|record| (record.pos.index, record.pos.term)));
            }
            Call::Vote(vote) => self.vote = Some(*vote),
            Call::Truncate(index) => self.records.retain(|at, _| index.is_some_and(|index| *at <= index)),
            Call::Purge(upto) => {
                if self.purged.is_none_or(|purged| purged.index < upto.index) {
                    self.purged = Some(*upto);
                    self.records.retain(|at, _| *at > upto.index);
                }
            }
        }
    }
}

#[test]
fn agrees_with_the_model() {
    let seed = seed();
    for round in 0..rounds("PREFIXD_LOG_MODEL_ROUNDS", 8) {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(round));
        let mut disk = Disk::fresh();
        disk.options.tail_max_bytes = random.random_range(0..2000);
        disk.options.group_max_records = random.random_range(1..50);
        let (mut model, mut term) = (Model::default(), 1);
        let mut store = disk.open();
        for step in 0..150 {
            let call = model.random_call(&mut random, &mut term);
            let what = format!("seed {seed} round {round} step {step}: {call:?}");
            model.apply(&call);
            match call {
                // mostly without waiting, so that things pile up
                Call::Append(records) if random.random_bool(0.8) => {
                    store.append(records, Box::new(|result| result.unwrap())).unwrap();
                }
                Call::Append(records) => append(&store, records).unwrap(),
                Call::Vote(vote) => store.save_vote(vote).unwrap(),
                Call::Truncate(index) => store.truncate_after(index).unwrap(),
                Call::Purge(upto) => store.purge(upto).unwrap(),
            }
            if random.random_bool(0.2) {
                model.committed = model.state().last;
                store.save_committed(model.committed);
            }
            if random.random_bool(0.03) {
                store.close().unwrap();
                store = disk.open();
            }
            assert_eq!(store.state(), model.state(), "{what}");
            let last = model.state().last.map_or(0, |last| last.index);
            let range = random.random_range(0..last + 2)..random.random_range(0..last + 4);
            assert_eq!(store.read(range.clone(), usize::MAX).unwrap(), model.read(range), "{what}");
        }
    }
}

/// Readers see whole prefixes of one log each, whatever the writer does to it meanwhile.
#[test]
fn readers_see_one_log_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    super::create(dir.path());
    let store = RedbLog::open(dir.path(), super::LogOptions { tail_max_bytes: 0, ..options() }).unwrap();
    append(&store, run_of(1, 0..50)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let records = store.read(0..u64::MAX, usize::MAX).unwrap();
                    for pair in records.windows(2) {
                        assert_eq!(pair[0].pos.index + 1, pair[1].pos.index);
                        assert!(pair[0].pos.term <= pair[1].pos.term, "records of two logs in one read");
                    }
                }
            });
        }
        let (sender, receiver) = channel();
        for round in 0..60 {
            let term = round + 2;
            let last = store.state().last.unwrap().index;
            store.truncate_after(Some(last - 5)).unwrap();
            let sender = sender.clone();
            let records = run_of(term, last - 4..last + 10);
            store.append(records, Box::new(move |result| sender.send(result).unwrap())).unwrap();
            if round % 4 == 0 {
                let upto = store.read(last - 20..last - 19, 1).unwrap()[0].pos;
                store.purge(upto).unwrap();
            }
        }
        drop(sender);
        receiver.iter().for_each(|result| result.unwrap());
        done.store(true, Ordering::Relaxed);
    });
}
