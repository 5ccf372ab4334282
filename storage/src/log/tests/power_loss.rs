//! Power losses at random points: what was acknowledged is there, and a healthy log is never refused.
//!
//! A hook between the log and its files keeps, beside the real files, what a disk is bound to hold: all
//! that was synced. When the power goes, any part of the rest may have reached the disk too: whole
//! writes, single sectors, nothing.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::conformance::append;
use super::super::{FaultHook, LogError, LogFile, LogOptions, LogStore, MARK_FILE_NAME, RedbLog, STORE_FILE_NAME};
use super::model::{Call, Model};
use super::{create, options, rounds, seed};

const SECTOR_BYTES: usize = 512;
const FILES: [(LogFile, &str); 2] = [(LogFile::Mark, MARK_FILE_NAME), (LogFile::Store, STORE_FILE_NAME)];

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    SetLen(u64),
}

/// What the disk holds for sure, and what was written since.
#[derive(Default)]
struct Platter {
    durable: HashMap<LogFile, Vec<u8>>,
    unsynced: Vec<(LogFile, Change)>,
    events: u64,
    cut_at: u64,
}

#[derive(Default)]
pub(super) struct PowerHook(Mutex<Platter>);

impl PowerHook {
    pub fn over(dir: &Path, cut_at: u64) -> Arc<PowerHook> {
        let durable = FILES.into_iter().map(|(file, name)| (file, fs::read(dir.join(name)).unwrap())).collect();
        Arc::new(PowerHook(Mutex::new(Platter { durable, cut_at, ..Platter::default() })))
    }

    fn note(&self, change: Option<(LogFile, Change)>) -> io::Result<()> {
        let mut platter = self.0.lock().unwrap();
        platter.events += 1;
        if platter.events > platter.cut_at {
            return Err(io::Error::other("the power is out"));
        }
        platter.unsynced.extend(change);
        Ok(())
    }

    /// Writes to `dir` what the disk may hold now that the power is out.
    pub fn restore(&self, dir: &Path, random: &mut StdRng) {
        let platter = self.0.lock().unwrap();
        let mut images = platter.durable.clone();
        let (keep_write, keep_sector) =
            [(0.0, 0.0), (1.0, 1.0), (0.5, 1.0), (0.7, 0.5), (0.1, 0.9)][random.random_range(0..5)];
        let stop_at =
            if random.random() { platter.unsynced.len() } else { random.random_range(0..=platter.unsynced.len()) };
        for (file, change) in &platter.unsynced[..stop_at] {
            if random.random_bool(keep_write) {
                tear(images.get_mut(file).unwrap(), change, |random| random.random_bool(keep_sector), random);
            }
        }
        for (file, name) in FILES {
            fs::write(dir.join(name), &images[&file]).unwrap();
        }
    }
}

impl FaultHook for PowerHook {
    fn write(&self, file: LogFile, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(Some((file, Change::Write(offset, data.to_vec()))))
    }

    fn set_len(&self, file: LogFile, len_bytes: u64) -> io::Result<()> {
        self.note(Some((file, Change::SetLen(len_bytes))))
    }

    fn sync(&self, _file: LogFile) -> io::Result<()> {
        self.note(None)
    }

    fn synced(&self, synced: LogFile) {
        let mut platter = self.0.lock().unwrap();
        if platter.events > platter.cut_at {
            return;
        }
        let unsynced = std::mem::take(&mut platter.unsynced);
        let (done, rest): (Vec<_>, Vec<_>) = unsynced.into_iter().partition(|(file, _)| *file == synced);
        platter.unsynced = rest;
        let image = platter.durable.get_mut(&synced).unwrap();
        let mut unused = StdRng::seed_from_u64(0);
        done.iter().for_each(|(_, change)| tear(image, change, |_| true, &mut unused));
    }
}

/// Applies a change to an image, sector by sector as `keep` says. What lies behind the end is lost.
fn tear(image: &mut Vec<u8>, change: &Change, keep: impl Fn(&mut StdRng) -> bool, random: &mut StdRng) {
    match change {
        Change::SetLen(len) => image.resize(*len as usize, 0),
        Change::Write(offset, data) => {
            let mut at = *offset as usize;
            let end = (at + data.len()).min(image.len());
            while at < end {
                let sector_end = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
                if keep(random) {
                    let from = at - *offset as usize;
                    image[at..sector_end].copy_from_slice(&data[from..from + sector_end - at]);
                }
                at = sector_end;
            }
        }
    }
}

/// The states that a log went through, and how far it was acknowledged.
struct History {
    states: Vec<Model>,
    acknowledged: usize,
}

/// Makes random calls until the power goes out.
fn live(store: &RedbLog, history: &mut History, term: &mut u64, random: &mut StdRng) {
    let (sender, acks) = channel();
    for _ in 0..60 {
        let mut model = history.states.last().unwrap().clone();
        let call = model.random_call(random, term);
        model.apply(&call);
        // what changes nothing returns at once and says nothing about what came before
        let waits = history.states.last() != Some(&model);
        history.states.push(model);
        let number = history.states.len() - 1;
        let outcome = match call {
            Call::Append(records) if random.random_bool(0.6) => {
                let sender = sender.clone();
                let done = move |result: Result<(), LogError>| drop(result.map(|()| sender.send(number)));
                store.append(records, Box::new(done)).map(|()| false)
            }
            Call::Append(records) => append(store, records).map(|()| true),
            Call::Vote(vote) => store.save_vote(vote).map(|()| true),
            Call::Truncate(index) => store.truncate_after(index).map(|()| waits),
            Call::Purge(upto) => store.purge(upto).map(|()| waits),
        };
        match outcome {
            Ok(true) => history.acknowledged = number,
            Ok(false) => {}
            Err(LogError::Failed(_)) => break,
            Err(other) => panic!("{other}"),
        }
        collect(&acks, history);
    }
    let _ = store.close();
    collect(&acks, history);
}

fn collect(acks: &Receiver<usize>, history: &mut History) {
    acks.try_iter().for_each(|number| history.acknowledged = history.acknowledged.max(number));
}

/// The log must be in one of the states since the last acknowledgement; that is where it goes on.
fn check(store: &RedbLog, history: &mut History, what: &str) {
    let mut found = Model { purged: store.state().purged, vote: store.state().vote, ..Model::default() };
    let records = store.read(0..u64::MAX, usize::MAX).unwrap();
    found.records = records.iter().map(|record| (record.pos.index, record.pos.term)).collect();
    assert_eq!(store.state().last, found.state().last, "{what}");
    let at = history.states.iter().rposition(|state| *state == found);
    let (acknowledged, last) = (history.acknowledged, history.states.len() - 1);
    assert!(
        at.is_some_and(|at| at >= acknowledged),
        "{what}: found state {at:?} of {last}, acknowledged up to {acknowledged}: {found:?}, acknowledged {:?}",
        history.states[acknowledged]
    );
    *history = History { states: vec![found], acknowledged: 0 };
}

fn one_life(seed: u64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    create(dir.path());
    let mut history = History { states: vec![Model::default()], acknowledged: 0 };
    let mut term = 1;
    let mut losses = 0;
    for loss in 0..6 {
        let hook = PowerHook::over(dir.path(), random.random_range(1..300));
        let faulty = LogOptions {
            fault_hook: Some(hook.clone()),
            tail_max_bytes: 500,
            group_max_records: random.random_range(1..30),
            ..options()
        };
        match RedbLog::open(dir.path(), faulty) {
            Ok(store) => live(&store, &mut history, &mut term, &mut random),
            Err(super::super::OpenError::Failed(_)) => {}
            Err(refused) => panic!("seed {seed} loss {loss}: {refused}"),
        }
        hook.restore(dir.path(), &mut random);
        let what = format!("seed {seed} loss {loss}");
        let store = RedbLog::open(dir.path(), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
        check(&store, &mut history, &what);
        store.close().unwrap();
        losses += 1;
    }
    losses
}

#[test]
fn what_was_acknowledged_survives_any_power_loss() {
    let seed = seed();
    let lives = rounds("PREFIXD_POWER_LOSS_ROUNDS", 40);
    let losses: usize = (0..lives).map(|life| one_life(seed.wrapping_add(life))).sum();
    println!("{losses} power losses in {lives} lives");
}
