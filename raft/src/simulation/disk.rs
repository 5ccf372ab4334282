//! A disk that loses what isn't synced. Changes are seen at once and become durable in their order, a group at a time;
//! a crash keeps some first few of those that wait, the last of them perhaps in part. Snapshots are there whole or not
//! at all. What is promised of a log is what the storage crate's `LogStore` promises; this must not promise more. A disk
//! may be full, fail a sync, or fail a read: the log then ends, as `RedbLog` does, and is opened anew or not at all.

use super::executor;
use super::world::{Invariant, Plant, World};
use prefixd_storage::{LogPos, LogRecord, SnapshotManifest, Vote};
use rand::RngExt;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Generations kept, as the storage crate keeps them.
const KEPT_GENERATIONS: usize = 2;

/// A snapshot on a disk.
pub(super) struct Taken {
    pub(super) manifest: SnapshotManifest,
    pub(super) records: Vec<Vec<u8>>,
}

impl Taken {
    pub(super) fn last(&self) -> u64 {
        self.manifest.last.map_or(0, |pos| pos.index)
    }

    pub(super) fn records(&self) -> impl Iterator<Item = Result<Vec<u8>, std::io::Error>> + '_ {
        self.records.iter().cloned().map(Ok)
    }
}

/// What a log holds.
#[derive(Clone, Default)]
pub(super) struct Content {
    pub(super) records: BTreeMap<u64, LogRecord>,
    pub(super) purged: Option<LogPos>,
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogPos>,
}

impl Content {
    pub(super) fn last(&self) -> Option<LogPos> {
        self.records.last_key_value().map(|(_, record)| record.pos).or(self.purged)
    }

    fn change(&mut self, change: &Change) -> u64 {
        match change {
            Change::Append(records) => {
                self.records.extend(records.iter().map(|record| (record.pos.index, record.clone())));
                0
            }
            Change::Vote(vote) => {
                self.vote = Some(*vote);
                0
            }
            Change::Truncate(after) => {
                let removed = self.records.split_off(&after.map_or(0, |index| index + 1));
                removed.len() as u64
            }
            Change::Purge(upto) => {
                if self.purged.is_none_or(|purged| purged.index < upto.index) {
                    self.records = self.records.split_off(&(upto.index + 1));
                    self.purged = Some(*upto);
                }
                0
            }
        }
    }
}

pub(super) enum Change {
    Append(Vec<LogRecord>),
    Vote(Vote),
    Truncate(Option<u64>),
    Purge(LogPos),
}

impl Change {
    fn records(&self) -> &[LogRecord] {
        match self {
            Change::Append(records) => records,
            Change::Vote(_) | Change::Truncate(_) | Change::Purge(_) => &[],
        }
    }
}

type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// What became of a log that ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// There was no room: it can be opened anew when there is.
    Full,
    /// A sync or a read failed: the process has to end.
    Broken,
}

fn error(failed: Failed) -> io::Error {
    match failed {
        Failed::Full => io::ErrorKind::StorageFull.into(),
        Failed::Broken => io::Error::other("the disk failed"),
    }
}

#[derive(Default)]
struct Held {
    is_full: bool,
    /// The next sync fails, or the next read.
    fails_sync: bool,
    fails_read: bool,
    failed: Option<Failed>,
    /// How often the log was opened: who uses an earlier opening is refused.
    opening: u64,
    /// What was appended to the log that ended and never reported durable.
    unsaved: Vec<LogRecord>,
    durable: Content,
    seen: Content,
    waiting: VecDeque<(Change, Option<Done>)>,
    generations: Vec<Arc<Taken>>,
    promised_vote: Option<Vote>,
    stalled_until: Duration,
}

/// The disk of one node; it outlives the node.
pub(super) struct Disk {
    pub(super) node: u64,
    held: Mutex<Held>,
    work: Notify,
}

fn rank(vote: &Vote) -> (u64, bool, Option<u64>) {
    (vote.term, vote.committed, vote.voted_for)
}

impl Disk {
    pub(super) fn new(node: u64) -> Self {
        Self { node, held: Mutex::default(), work: Notify::new() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap()
    }

    /// Looks at what a reader sees now.
    pub(super) fn seen<T>(&self, look: impl FnOnce(&Content) -> T) -> T {
        look(&self.held().seen)
    }

    /// True when a crash now would leave this position here, in the log or in a snapshot.
    pub(super) fn keeps(&self, pos: LogPos) -> bool {
        let held = self.held();
        let logged = held.durable.records.get(&pos.index).is_some_and(|record| record.pos == pos);
        let purged = held.durable.purged.is_some_and(|purged| purged.index >= pos.index);
        logged || purged || held.generations.iter().any(|taken| taken.last() >= pos.index)
    }

    pub(super) fn read(&self, range: Range<u64>, max_bytes: usize) -> io::Result<Vec<LogRecord>> {
        let mut bytes = 0;
        let mut held = self.held();
        if std::mem::take(&mut held.fails_read) {
            held.failed = Some(Failed::Broken);
            return Err(error(Failed::Broken));
        }
        let mut records = Vec::new();
        for record in held.seen.records.range(range).map(|(_, record)| record) {
            records.push(record.clone());
            bytes += record.body.len();
            if bytes >= max_bytes {
                break;
            }
        }
        Ok(records)
    }

    /// Makes a change that is seen at once; `done` is called when it is durable, or when the log has ended. An error: it
    /// was not made.
    pub(super) fn write(&self, world: &World, opening: u64, change: Change, done: Done) -> io::Result<()> {
        let mut held = self.held();
        if let Some(failed) = held.failed {
            return Err(error(failed));
        }
        if held.opening != opening {
            return Err(io::Error::other("this log was given up"));
        }
        let removed = held.seen.change(&change);
        let detail = held.seen.last().map_or((0, 0), |pos| (pos.term, pos.index));
        match &change {
            Change::Append(_) => world.note("append", self.node, detail),
            Change::Vote(vote) => world.note("vote", self.node, (vote.term, vote.voted_for.unwrap_or(0))),
            Change::Truncate(_) if removed > 0 => world.count("truncation", self.node, detail),
            Change::Truncate(_) => {}
            Change::Purge(upto) => world.count("purge", self.node, (upto.term, upto.index)),
        }
        let early = match change {
            Change::Append(_) => world.plan.plant == Plant::EarlyAcknowledgement,
            _ => false,
        };
        if early {
            held.waiting.push_back((change, None));
            drop(held);
            done(Ok(()));
        } else {
            held.waiting.push_back((change, Some(done)));
            drop(held);
        }
        self.work.notify_one();
        Ok(())
    }

    /// Makes a change and waits until it is durable.
    pub(super) async fn write_through(&self, world: &World, opening: u64, change: Change) -> io::Result<()> {
        if let Change::Vote(vote) = change {
            let last = self.held().promised_vote;
            let rises = last.is_none_or(|last| rank(&last) <= rank(&vote)) || !world.plan.sees_disks;
            world.holds(Invariant::Vote, rises, || format!("node {} saves {vote:?} after {last:?}", self.node));
            if world.plan.plant == Plant::ForgottenVote {
                let mut held = self.held();
                held.seen.vote = Some(vote);
                held.promised_vote = Some(vote);
                return Ok(());
            }
        }
        let vote = match &change {
            Change::Vote(vote) => Some(*vote),
            _ => None,
        };
        let (send, receive) = oneshot::channel();
        self.write(world, opening, change, Box::new(move |synced| drop(send.send(synced))))?;
        // A disk that is gone took the caller with it.
        receive.await.unwrap_or(Ok(()))?;
        if vote.is_some() {
            self.held().promised_vote = vote;
        }
        Ok(())
    }

    /// Notes what is committed; durable with the next change.
    pub(super) fn note_committed(&self, pos: Option<LogPos>) {
        self.held().seen.committed = pos;
    }

    /// The writer: brings what waits onto the disk.
    pub(super) async fn serve(self: Arc<Self>, world: Arc<World>) {
        loop {
            let count = self.held().waiting.len();
            if count == 0 {
                self.work.notified().await;
                continue;
            }
            self.sync(&world).await;
            if let Some(failed) = self.fails(&world) {
                self.end_log(&world, failed);
                continue;
            }
            let done: Vec<Done> = {
                let mut held = self.held();
                let count = count.min(held.waiting.len());
                let group: Vec<_> = held.waiting.drain(..count).collect();
                group.iter().for_each(|(change, _)| _ = held.durable.change(change));
                // Never beyond what is written.
                if held.seen.committed.map(|pos| pos.index) <= held.durable.last().map(|pos| pos.index) {
                    held.durable.committed = held.seen.committed;
                }
                group.into_iter().filter_map(|(_, done)| done).collect()
            };
            done.into_iter().for_each(|done| done(Ok(())));
        }
    }

    /// How the sync that has just been made went, if not well.
    fn fails(&self, world: &World) -> Option<Failed> {
        let mut held = self.held();
        if !std::mem::take(&mut held.fails_sync) {
            return held.is_full.then_some(Failed::Full);
        }
        if world.plan.plant != Plant::FailedSyncForgotten {
            return Some(Failed::Broken);
        }
        // The planted bug: it is tried again, and says ok without what the first one lost.
        let done: Vec<_> = held.waiting.drain(..).filter_map(|(_, done)| done).collect();
        drop(held);
        done.into_iter().for_each(|done| done(Ok(())));
        None
    }

    /// The log ends: all that wait are told, what waits may be on the disk or not, and nothing is tried again.
    fn end_log(&self, world: &World, failed: Failed) {
        world.count(if failed == Failed::Full { "disk full" } else { "failed sync" }, self.node, (0, 0));
        let mut held = self.held();
        held.failed = Some(failed);
        held.unsaved = held.waiting.iter().flat_map(|(change, _)| change.records()).cloned().collect();
        let done: Vec<_> = self.keep_some(world, &mut held).into_iter().filter_map(|(_, done)| done).collect();
        drop(held);
        done.into_iter().for_each(|done| done(Err(error(failed))));
    }

    /// How the log has ended, if it has.
    pub(super) fn failed(&self) -> Option<Failed> {
        self.held().failed
    }

    /// The number of the present opening.
    pub(super) fn opening(&self) -> u64 {
        self.held().opening
    }

    /// No room from now on, or room again.
    pub(super) fn set_full(&self, is_full: bool) {
        self.held().is_full = is_full;
    }

    /// Lets the next sync fail.
    pub(super) fn fail_sync(&self) {
        self.held().fails_sync = true;
    }

    /// Lets the next read fail.
    pub(super) fn fail_read(&self) {
        self.held().fails_read = true;
    }

    /// Opens a log anew that ended for want of room; gives what was appended and never reported durable. `None`: there is
    /// no room yet.
    pub(super) fn reopen(&self) -> Option<Vec<LogRecord>> {
        let mut held = self.held();
        if held.is_full {
            return None;
        }
        held.seen = held.durable.clone();
        held.failed = None;
        held.opening += 1;
        Some(std::mem::take(&mut held.unsaved))
    }

    /// Brings the log up to what was applied, durably and at once: before anybody uses the one that was opened anew.
    pub(super) fn change_at_once(&self, change: Change) {
        let mut held = self.held();
        held.seen.change(&change);
        held.durable.change(&change);
    }

    /// The time that one sync takes.
    async fn sync(&self, world: &World) {
        let stalled_until = self.held().stalled_until;
        if stalled_until > executor::now() {
            executor::sleep_until(stalled_until).await;
        }
        executor::sleep(executor::between(world.shape.sync / 4, world.shape.sync * 2)).await;
    }

    /// Lets no sync return before then.
    pub(super) fn stall(&self, duration: Duration) {
        self.held().stalled_until = executor::now() + duration;
    }

    /// Makes a snapshot one of the generations, durably.
    pub(super) async fn publish(&self, world: &World, taken: Arc<Taken>) -> io::Result<()> {
        self.sync(world).await;
        let mut held = self.held();
        if held.is_full {
            world.count("snapshot without room", self.node, (taken.last(), 0));
            return Err(error(Failed::Full));
        }
        held.generations.push(taken);
        held.generations.sort_by_key(|taken| Reverse(taken.last()));
        held.generations.truncate(KEPT_GENERATIONS);
        Ok(())
    }

    /// The generations, the latest first.
    pub(super) fn generations(&self) -> Vec<Arc<Taken>> {
        self.held().generations.clone()
    }

    /// The power goes, or the process ends after its disk failed: what wasn't synced is lost, or some of it.
    pub(super) fn lose(&self, world: &World) {
        let mut held = self.held();
        let lost = self.keep_some(world, &mut held);
        drop(lost);
        held.seen = held.durable.clone();
        held.opening += 1;
        (held.stalled_until, held.unsaved) = (Duration::ZERO, Vec::new());
        (held.is_full, held.fails_sync, held.fails_read, held.failed) = (false, false, false, None);
    }

    /// Makes some first few of the changes that wait durable, the last of them perhaps in part; gives all of them.
    fn keep_some(&self, world: &World, held: &mut Held) -> Vec<(Change, Option<Done>)> {
        let waiting: Vec<_> = held.waiting.drain(..).collect();
        let kept = executor::chance(|rng| rng.random_range(0..=waiting.len()));
        for (at, (change, _)) in waiting.iter().enumerate() {
            match change {
                _ if at < kept => {
                    held.durable.change(change);
                }
                Change::Append(records) if at == kept && records.len() > 1 => {
                    let whole = executor::chance(|rng| rng.random_range(0..records.len()));
                    held.durable.change(&Change::Append(records[..whole].to_vec()));
                    world.count("torn append", self.node, (whole as u64, records.len() as u64));
                }
                _ => break,
            }
        }
        if kept < waiting.len() {
            world.count("unsynced write lost", self.node, ((waiting.len() - kept) as u64, 0));
        }
        waiting
    }

    /// What is found at a start must be what was promised.
    pub(super) fn check(&self, world: &World) {
        let held = self.held();
        let (found, promised) = (held.durable.vote, held.promised_vote);
        if world.plan.sees_disks {
            let kept = promised.is_none_or(|promised| found.is_some_and(|found| rank(&found) >= rank(&promised)));
            world.holds(Invariant::Vote, kept, || {
                format!("node {} finds the vote {found:?}, and had promised {promised:?}", self.node)
            });
        }
        let purged = held.durable.purged.map_or(0, |pos| pos.index);
        let snapshot = held.generations.first().map_or(0, |taken| taken.last());
        world.holds(Invariant::Positions, purged <= snapshot, || {
            format!("node {}: the log is purged up to {purged}, the snapshot reaches {snapshot}", self.node)
        });
    }
}
