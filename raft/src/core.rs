//! The one thread that owns the index. Everything that changes it comes through here as a job, in order: applied log
//! entries, slices of a snapshot in the making, an installed snapshot. After each job it publishes what readers see;
//! readers never come here.

use crate::record;
use crate::types::{Membership, Proposal, Reply};
use arc_swap::ArcSwap;
use prefixd_index::command::{ClusterMeta, Command};
use prefixd_index::{
    Applied, BatchOutcome, Evictions, Index, SnapshotInfo, SnapshotOverflow, SnapshotRecord, Totals, View,
};
use prefixd_storage::LogPos;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::membership::clock::ClusterClock;

/// Jobs that may wait for the thread.
const QUEUE_JOBS: usize = 64;
/// Most tenants whose quota evictions are counted by name.
const MAX_COUNTED_TENANTS: usize = 10_000;
/// (index, digest) pairs remembered for audits and operators.
const DIGEST_RING: usize = 16_384;

/// One committed log entry.
pub(crate) struct Committed {
    pub(crate) pos: LogPos,
    pub(crate) what: What,
}

/// What a committed entry holds.
pub(crate) enum What {
    Blank,
    Members(Membership),
    Command(Proposal),
}

/// Where a snapshot was cut.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    /// Tells this walk over the index from others: there is one at a time.
    id: u64,
    pub(crate) at: Option<LogPos>,
    pub(crate) membership_at: Option<LogPos>,
    pub(crate) membership: Membership,
    pub(crate) digest: u128,
    pub(crate) time_us: u64,
    pub(crate) totals: Totals,
    pub(crate) feature_level: u32,
}

impl Cut {
    /// The cut of a state that no thread owns, under the membership that it is to have there.
    pub(crate) fn at_rest(index: &mut Index, at: LogPos, membership: Membership) -> Self {
        let info = index.begin_snapshot(usize::MAX);
        let start = (Some(at), Some(at), membership);
        Self::new(0, start, info, index.meta().feature_level)
    }

    fn new(
        id: u64,
        (at, membership_at, membership): (Option<LogPos>, Option<LogPos>, Membership),
        info: SnapshotInfo,
        feature_level: u32,
    ) -> Self {
        let SnapshotInfo { digest, time_us, totals } = info;
        Self { id, at, membership_at, membership, digest, time_us, totals, feature_level }
    }
}

/// A slice of a snapshot in the making.
pub(crate) struct CutSlice {
    pub(crate) records: Vec<SnapshotRecord>,
    pub(crate) done: bool,
    /// How long this walk has kept the thread from anything else at a time, at most.
    pub(crate) longest_stop_us: u64,
}

/// Why a slice was not given.
#[derive(Debug)]
pub(crate) enum CutError {
    /// Too much changed while it was walked; begin again.
    Overflow,
    /// This walk was ended: another one began, or a snapshot was installed.
    Ended,
    /// The thread is gone.
    Gone,
}

/// The state that the thread starts from, or is given by a snapshot.
pub(crate) struct Start {
    pub(crate) index: Index,
    pub(crate) applied: Option<LogPos>,
    pub(crate) membership_at: Option<LogPos>,
    pub(crate) membership: Membership,
}

/// How a walk is to begin.
struct CutAsk {
    preimage_limit: usize,
    /// Ends a walk that is under way; else there is none for who asks.
    displaces: bool,
}

enum Job {
    Apply(Vec<Committed>, oneshot::Sender<io::Result<Vec<Reply>>>),
    BeginCut(CutAsk, oneshot::Sender<Option<Cut>>),
    Slice(u64, usize, oneshot::Sender<Result<CutSlice, CutError>>),
    EndCut(u64),
    Install(Box<Start>, oneshot::Sender<()>),
}

/// What the thread last published, for status and metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) applied: Option<LogPos>,
    pub(crate) membership_at: Option<LogPos>,
    pub(crate) membership: Membership,
    pub(crate) digest: u128,
    pub(crate) totals: Totals,
    pub(crate) meta: ClusterMeta,
    pub(crate) wants_sweep: bool,
    /// True once a ClusterMeta was applied, or a snapshot was loaded.
    pub(crate) meta_was_set: bool,
    pub(crate) sweeps: u64,
    pub(crate) audit_mismatches: u64,
    pub(crate) last_mismatch: Option<u64>,
    pub(crate) duplicate_batches: u64,
    pub(crate) evictions: Evictions,
}

/// Microseconds of this process's monotonic clock, from any origin.
pub(crate) type Monotonic = Box<dyn Fn() -> u64 + Send + Sync>;

/// What readers see.
pub(crate) struct Published {
    pub(crate) view: ArcSwap<View>,
    pub(crate) clock: ClusterClock,
    mono: Monotonic,
    applied: watch::Sender<u64>,
    summary: Mutex<Summary>,
    digests: Mutex<VecDeque<(u64, u128)>>,
}

impl Published {
    /// Microseconds of this process's monotonic clock.
    pub(crate) fn mono_us(&self) -> u64 {
        (self.mono)()
    }

    /// Cluster time.
    pub(crate) fn now_us(&self) -> u64 {
        self.clock.now_us(self.mono_us())
    }

    /// The applied index, to wait on.
    pub(crate) fn applied(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    pub(crate) fn applied_index(&self) -> u64 {
        *self.applied.borrow()
    }

    pub(crate) fn summary(&self) -> Summary {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The latest (index, digest) pair.
    pub(crate) fn latest_digest(&self) -> Option<(u64, u128)> {
        self.digests.lock().unwrap_or_else(PoisonError::into_inner).back().copied()
    }

    /// The digest right after a log index was applied, if it is still remembered.
    pub(crate) fn digest_at(&self, index: u64) -> Option<u128> {
        let ring = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        ring.binary_search_by_key(&index, |(at, _)| *at).ok().and_then(|i| ring.get(i)).map(|(_, digest)| *digest)
    }
}

/// The way to the thread.
#[derive(Clone)]
pub(crate) struct Core {
    jobs: mpsc::Sender<Job>,
    pub(crate) published: Arc<Published>,
    /// Cancelled when the Raft that this is handed to has ended; held by all that works for it.
    pub(crate) life: Arc<CancellationToken>,
}

fn gone() -> io::Error {
    io::Error::other("the index thread has ended")
}

impl Core {
    /// Starts the thread. `on_end` is told when it ends in any way but by dropping the last [`Core`].
    pub(crate) fn start(start: Start, on_end: impl FnOnce(String) + Send + 'static) -> io::Result<Self> {
        let started = Instant::now();
        let mono = move || u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let (core, worker) = Self::prepare(start, Box::new(mono));
        std::thread::Builder::new().name("prefixd-index".into()).spawn(move || {
            let work = std::panic::AssertUnwindSafe(|| worker.run());
            if let Err(panic) = std::panic::catch_unwind(work) {
                let what = panic.downcast_ref::<String>().cloned();
                let what = what.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                on_end(format!("the index thread panicked: {}", what.unwrap_or_default()));
            }
        })?;
        Ok(core)
    }

    /// The same way for another Raft.
    pub(crate) fn in_new_life(&self) -> Self {
        Self { life: Arc::default(), ..self.clone() }
    }

    /// The way to a worker, and the worker, which is to be run once.
    pub(crate) fn prepare(start: Start, mono: Monotonic) -> (Self, Worker) {
        let published = Arc::new(Published {
            view: ArcSwap::from_pointee(start.index.view()),
            clock: ClusterClock::default(),
            mono,
            applied: watch::Sender::new(start.applied.map_or(0, |pos| pos.index)),
            summary: Mutex::default(),
            digests: Mutex::default(),
        });
        let (jobs, queue) = mpsc::channel(QUEUE_JOBS);
        // What is published is true before anybody can read it: Raft asks at once what is applied, and would apply the
        // log a second time to a state that is said to be empty.
        let worker = Worker::new(start, published.clone(), queue);
        (Self { jobs, published, life: Arc::default() }, worker)
    }

    /// Applies entries in order; one reply an entry.
    pub(crate) async fn apply(&self, entries: Vec<Committed>) -> io::Result<Vec<Reply>> {
        let (send, receive) = oneshot::channel();
        self.jobs.send(Job::Apply(entries, send)).await.map_err(|_| gone())?;
        receive.await.map_err(|_| gone())?
    }

    /// Begins a snapshot of the state as it is behind all jobs sent so far. A walk that is under way is ended.
    pub(crate) async fn begin_cut(&self, preimage_limit: usize) -> io::Result<Cut> {
        let ask = CutAsk { preimage_limit, displaces: true };
        self.begin(ask).await?.ok_or_else(|| io::Error::other("no snapshot could be begun"))
    }

    /// The same, unless a walk is under way: for who can wait.
    pub(crate) async fn begin_cut_if_idle(&self, preimage_limit: usize) -> io::Result<Option<Cut>> {
        self.begin(CutAsk { preimage_limit, displaces: false }).await
    }

    async fn begin(&self, ask: CutAsk) -> io::Result<Option<Cut>> {
        let (send, receive) = oneshot::channel();
        self.jobs.send(Job::BeginCut(ask, send)).await.map_err(|_| gone())?;
        receive.await.map_err(|_| gone())
    }

    /// The next slice of the snapshot in the making. Blocking; for the thread that writes it.
    pub(crate) fn slice(&self, cut: &Cut, max_entries: usize) -> Result<CutSlice, CutError> {
        let (send, receive) = oneshot::channel();
        self.jobs.blocking_send(Job::Slice(cut.id, max_entries, send)).map_err(|_| CutError::Gone)?;
        receive.blocking_recv().map_err(|_| CutError::Gone)?
    }

    /// The same for a caller that may wait but not block.
    #[cfg(test)]
    pub(crate) async fn slice_soon(&self, cut: &Cut, max_entries: usize) -> Result<CutSlice, CutError> {
        let (send, receive) = oneshot::channel();
        self.jobs.send(Job::Slice(cut.id, max_entries, send)).await.map_err(|_| CutError::Gone)?;
        receive.await.map_err(|_| CutError::Gone)?
    }

    /// Ends the snapshot in the making, complete or not.
    pub(crate) async fn end_cut(&self, cut: &Cut) {
        // A thread that is gone has nothing to end.
        let _gone = self.jobs.send(Job::EndCut(cut.id)).await;
    }

    /// Replaces the whole state.
    pub(crate) async fn install(&self, start: Start) -> io::Result<()> {
        let (send, receive) = oneshot::channel();
        self.jobs.send(Job::Install(Box::new(start), send)).await.map_err(|_| gone())?;
        receive.await.map_err(|_| gone())
    }
}

/// Entries that a command removed.
fn removed(applied: &Applied) -> u64 {
    let evictions = &applied.evictions;
    let over_quota: u64 = evictions.over_quota.values().sum();
    evictions.lru_cap + evictions.lfu_cap + evictions.lru_ttl + evictions.lfu_ttl + over_quota + applied.purged
}

/// What runs on the thread.
pub(crate) struct Worker {
    state: Start,
    published: Arc<Published>,
    counters: Summary,
    /// The walk that is under way, and how many there were.
    walk: Option<u64>,
    walks: u64,
    longest_stop_us: u64,
    queue: mpsc::Receiver<Job>,
}

impl Worker {
    fn new(state: Start, published: Arc<Published>, queue: mpsc::Receiver<Job>) -> Self {
        let counters = Summary { meta_was_set: state.applied.is_some(), ..Summary::default() };
        let worker = Self { state, published, counters, walk: None, walks: 0, longest_stop_us: 0, queue };
        if let Some(pos) = worker.state.applied {
            worker.remember(pos.index);
        }
        worker.publish();
        worker
    }

    fn run(mut self) {
        while let Some(job) = self.queue.blocking_recv() {
            self.work(job);
        }
    }

    /// The same as a task, for simulations: those have one thread.
    #[cfg(test)]
    pub(crate) async fn run_as_task(mut self) {
        while let Some(job) = self.queue.recv().await {
            self.work(job);
        }
    }

    fn work(&mut self, job: Job) {
        // Nobody may be waiting for an answer any more: that is theirs to know.
        match job {
            Job::Apply(entries, reply) => reply.send(self.apply(entries)).unwrap_or_else(drop),
            Job::BeginCut(ask, reply) => {
                if reply.send(self.begin_cut(&ask)).is_err() {
                    self.end_walk();
                }
            }
            Job::Slice(id, max, reply) => reply.send(self.slice(id, max)).unwrap_or_else(drop),
            Job::EndCut(id) if self.walk == Some(id) => self.end_walk(),
            Job::EndCut(_) => {}
            Job::Install(start, reply) => {
                self.install(*start);
                reply.send(()).unwrap_or_else(drop);
            }
        }
    }

    fn apply(&mut self, entries: Vec<Committed>) -> io::Result<Vec<Reply>> {
        let mut replies = Vec::with_capacity(entries.len());
        for entry in entries {
            replies.push(match entry.what {
                What::Blank => Reply::default(),
                What::Members(membership) => {
                    self.state.membership = membership;
                    self.state.membership_at = Some(entry.pos);
                    Reply::default()
                }
                What::Command(proposal) => self.command(entry.pos, &proposal)?,
            });
            self.state.applied = Some(entry.pos);
            self.remember(entry.pos.index);
        }
        self.publish();
        Ok(replies)
    }

    fn command(&mut self, pos: LogPos, proposal: &Proposal) -> io::Result<Reply> {
        let stamped = record::decode_command(&proposal.0).map_err(|error| {
            io::Error::other(format!(
                "log entry {} can't be read by this release ({}): {error}. Start a release that can; \
                 a node never skips an entry",
                pos.index,
                env!("CARGO_PKG_VERSION")
            ))
        })?;
        let applied = self.state.index.apply(pos.index, &stamped);
        match &stamped.command {
            Command::Audit(audit) => self.audit(audit.index, audit.digest),
            Command::Sweep => self.counters.sweeps += 1,
            Command::ClusterMeta(_) => self.counters.meta_was_set = true,
            _ => {}
        }
        self.count(&applied);
        Ok(Reply { removed: removed(&applied), wants_sweep: self.state.index.wants_sweep() })
    }

    fn audit(&mut self, index: u64, digest: u128) {
        match self.published.digest_at(index) {
            Some(ours) if ours != digest => {
                tracing::error!(
                    index,
                    ours = format!("{ours:032x}"),
                    leader = format!("{digest:032x}"),
                    "the digest of this node differs from the leader's: this node answers from a diverged index; \
                     move its data directory away and start it empty with --bootstrap=never"
                );
                self.counters.audit_mismatches += 1;
                self.counters.last_mismatch = Some(index);
            }
            Some(_) | None => {}
        }
    }

    fn count(&mut self, applied: &Applied) {
        let evictions = &mut self.counters.evictions;
        let new = &applied.evictions;
        evictions.lru_cap += new.lru_cap;
        evictions.lfu_cap += new.lfu_cap;
        evictions.lru_ttl += new.lru_ttl;
        evictions.lfu_ttl += new.lfu_ttl;
        for (tenant, prefixes) in &new.over_quota {
            let is_counted =
                evictions.over_quota.len() < MAX_COUNTED_TENANTS || evictions.over_quota.contains_key(tenant);
            // No tenant is called "": there the ones beyond the limit are counted together.
            let tenant = if is_counted { tenant.clone() } else { String::new() };
            *evictions.over_quota.entry(tenant).or_default() += prefixes;
        }
        let repeats = applied.batches.iter().filter(|batch| **batch == BatchOutcome::Duplicate).count();
        self.counters.duplicate_batches += repeats as u64;
    }

    fn remember(&self, index: u64) {
        let mut ring = self.published.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() == DIGEST_RING {
            ring.pop_front();
        }
        ring.push_back((index, self.state.index.digest()));
    }

    fn begin_cut(&mut self, ask: &CutAsk) -> Option<Cut> {
        if self.walk.is_some() && !ask.displaces {
            return None;
        }
        let began_us = self.published.mono_us();
        let info = self.state.index.begin_snapshot(ask.preimage_limit);
        self.walks += 1;
        self.walk = Some(self.walks);
        let start = (self.state.applied, self.state.membership_at, self.state.membership.clone());
        self.longest_stop_us = self.published.mono_us().saturating_sub(began_us);
        Some(Cut::new(self.walks, start, info, self.state.index.meta().feature_level))
    }

    fn slice(&mut self, id: u64, max: usize) -> Result<CutSlice, CutError> {
        if self.walk != Some(id) {
            return Err(CutError::Ended);
        }
        let began_us = self.published.mono_us();
        let slice = self.state.index.snapshot_slice(max);
        self.longest_stop_us = self.longest_stop_us.max(self.published.mono_us().saturating_sub(began_us));
        let longest_stop_us = self.longest_stop_us;
        let slice = match slice {
            Ok(slice) => Ok(CutSlice { records: slice.records, done: slice.done, longest_stop_us }),
            Err(SnapshotOverflow::TooManyChanges { .. }) => Err(CutError::Overflow),
            Err(SnapshotOverflow::NotBegun) => Err(CutError::Ended),
        };
        if slice.as_ref().map_or(true, |slice| slice.done) {
            self.end_walk();
        }
        slice
    }

    fn end_walk(&mut self) {
        self.state.index.abort_snapshot();
        self.walk = None;
    }

    fn install(&mut self, start: Start) {
        self.state = start;
        self.walk = None;
        self.counters.meta_was_set = true;
        self.published.digests.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if let Some(pos) = self.state.applied {
            self.remember(pos.index);
        }
        self.published.view.store(Arc::new(self.state.index.view()));
        self.publish();
    }

    fn publish(&self) {
        let index = &self.state.index;
        self.published.clock.applied(index.time_us(), self.published.mono_us());
        *self.published.summary.lock().unwrap_or_else(PoisonError::into_inner) = Summary {
            applied: self.state.applied,
            membership_at: self.state.membership_at,
            membership: self.state.membership.clone(),
            digest: index.digest(),
            totals: index.totals(),
            meta: index.meta().clone(),
            wants_sweep: index.wants_sweep(),
            ..self.counters.clone()
        };
        let applied = self.state.applied.map_or(0, |pos| pos.index);
        self.published.applied.send_if_modified(|seen| std::mem::replace(seen, applied) != applied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Raft asks for the applied position right after the start; a wrong answer is applied a second time.
    #[test]
    fn what_a_snapshot_gave_is_published_before_the_thread_runs() {
        let at = LogPos { term: 3, index: 402 };
        for _ in 0..200 {
            let index = Index::new(7);
            let digest = index.digest();
            let start = Start { index, applied: Some(at), membership_at: None, membership: Membership::default() };
            let core = Core::start(start, |_| {}).expect("a thread can be started");
            assert_eq!((core.published.summary().applied, core.published.applied_index()), (Some(at), at.index));
            assert_eq!(core.published.digest_at(at.index), Some(digest));
        }
    }
}
