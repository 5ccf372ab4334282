//! What callers and the writer thread share: the log as callers see it, and the queue between them.
//!
//! One mutex guards all of it and is never held across I/O on the changing side. It owns the first
//! failure: once set, nothing queued is written and everybody is told.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::options::FatalCallback;
use super::state_row::StateRow;
use super::tail::Tail;
use super::{Done, LogError, LogPos, LogRecord, LogState, Vote};
use crate::failure::Failure;

/// A change to the log, as the writer carries it out.
pub(super) enum Change {
    Append(Vec<LogRecord>),
    Vote(Vote),
    /// Remove the records behind `keep` (None: all); the log then spans `first` to `last`.
    Truncate {
        keep: Option<u64>,
        first: Option<u64>,
        last: Option<LogPos>,
    },
    /// Remove the records up to `upto`; the log then spans `first` to `last`.
    Purge {
        upto: LogPos,
        first: Option<u64>,
        last: Option<LogPos>,
    },
    Close,
}

impl Change {
    pub fn body_bytes(&self) -> usize {
        match self {
            Change::Append(records) => records.iter().map(|record| record.body.len()).sum(),
            _ => 0,
        }
    }

    pub fn record_count(&self) -> usize {
        if let Change::Append(records) = self { records.len() } else { 0 }
    }
}

/// A change in the queue.
pub(super) struct Queued {
    pub op: u64,
    pub change: Change,
    pub done: Done,
}

/// What the writer is to do next.
pub(super) enum Work {
    /// Commit these, with this committed position in the state row.
    Commit(Vec<Queued>, Option<LogPos>),
    /// Nothing came in; the mark is due.
    SyncMark,
    /// Somebody found the store broken.
    Stop,
}

pub(super) struct Inner {
    pub log: LogState,
    pub first: Option<u64>,
    pub tail: Tail,
    queue: VecDeque<Queued>,
    next_op: u64,
    pub pending_bytes: usize,
    /// Changes with every truncation and purge: tells a reader that rows may have gone under it.
    pub epoch: u64,
    pub commits: u64,
    /// When the writer took up what it is making durable now.
    pub writing_since: Option<Instant>,
    pub closing: bool,
    failure: Option<Arc<Failure>>,
}

pub(super) struct Shared {
    inner: Mutex<Inner>,
    work: Condvar,
    room: Condvar,
    on_fatal: Option<FatalCallback>,
}

impl Shared {
    pub fn new(row: &StateRow, tail_max_bytes: usize, on_fatal: Option<FatalCallback>) -> Shared {
        let inner = Inner {
            log: row.log_state(),
            first: row.first,
            tail: Tail::new(tail_max_bytes),
            queue: VecDeque::new(),
            next_op: 1,
            pending_bytes: 0,
            epoch: 0,
            commits: 0,
            writing_since: None,
            closing: false,
            failure: None,
        };
        Shared { inner: Mutex::new(inner), work: Condvar::new(), room: Condvar::new(), on_fatal }
    }

    /// The shared state, whatever became of those who held it before.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [`Shared::lock`], when no more than `limit_bytes` are pending.
    pub fn lock_with_room(&self, limit_bytes: usize) -> Result<MutexGuard<'_, Inner>, LogError> {
        let mut inner = self.lock();
        loop {
            inner.usable()?;
            if inner.pending_bytes <= limit_bytes {
                return Ok(inner);
            }
            inner = self.room.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn wake_writer(&self) {
        self.work.notify_one();
    }

    /// Waits for work, or until the mark is due.
    pub fn next_work(&self, max_bytes: usize, max_records: usize, mark_due: Option<Instant>) -> Work {
        let mut inner = self.lock();
        inner.writing_since = None;
        loop {
            if inner.failure.is_some() {
                return Work::Stop;
            }
            if !inner.queue.is_empty() {
                inner.writing_since = Some(Instant::now());
                return Work::Commit(inner.take_batch(max_bytes, max_records), inner.log.committed);
            }
            inner = match mark_due {
                None => self.work.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let now = Instant::now();
                    if now >= due {
                        inner.writing_since = Some(now);
                        return Work::SyncMark;
                    }
                    self.work.wait_timeout(inner, due - now).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Notes that a batch is durable, before its callers are told.
    pub fn settle(&self, batch: &[Queued], row: &StateRow) {
        let mut inner = self.lock();
        inner.log.vote = row.vote;
        inner.commits += 1;
        inner.pending_bytes -= batch.iter().map(|queued| queued.change.body_bytes()).sum::<usize>();
        if let Some(last) = batch.last() {
            inner.tail.settle(last.op);
        }
        drop(inner);
        self.room.notify_all();
    }

    /// Gives the store up: the first failure stands, the node is told once, then everybody who waits.
    pub fn fail(&self, failure: Failure) -> Arc<Failure> {
        self.fail_behind(failure, || {})
    }

    /// [`Shared::fail`], with something to do between the failure of all later calls and word of it: who finds the
    /// engine gone must know why.
    pub fn fail_behind(&self, failure: Failure, let_go: impl FnOnce()) -> Arc<Failure> {
        let mut inner = self.lock();
        let first = inner.failure.clone();
        let failure = inner.failure.get_or_insert_with(|| Arc::new(failure)).clone();
        inner.writing_since = None;
        drop(inner);
        let_go();
        if first.is_some() {
            return failure;
        }
        let waiting = std::mem::take(&mut self.lock().queue);
        if let Some(on_fatal) = &self.on_fatal {
            on_fatal(&failure);
        }
        for queued in waiting {
            (queued.done)(Err(LogError::Failed(failure.clone())));
        }
        self.work.notify_all();
        self.room.notify_all();
        failure
    }
}

impl Inner {
    /// Whether the store takes calls.
    pub fn usable(&self) -> Result<(), LogError> {
        match &self.failure {
            Some(failure) => Err(LogError::Failed(failure.clone())),
            None if self.closing => Err(LogError::Closed),
            None => Ok(()),
        }
    }

    pub fn failure(&self) -> Option<LogError> {
        self.failure.as_ref().map(|failure| LogError::Failed(failure.clone()))
    }

    /// Queues a change and returns its number.
    pub fn enqueue(&mut self, change: Change, done: Done) -> u64 {
        let op = self.next_op;
        self.next_op += 1;
        self.pending_bytes += change.body_bytes();
        self.queue.push_back(Queued { op, change, done });
        op
    }

    /// How many records can be read.
    pub fn record_count(&self) -> u64 {
        match (self.first, self.log.last) {
            (Some(first), Some(last)) => last.index - first + 1,
            _ => 0,
        }
    }

    fn take_batch(&mut self, max_bytes: usize, max_records: usize) -> Vec<Queued> {
        let (mut bytes, mut records, mut count) = (0, 0, 0);
        for queued in &self.queue {
            bytes += queued.change.body_bytes();
            records += queued.change.record_count();
            if count > 0 && (bytes > max_bytes || records > max_records) {
                break;
            }
            count += 1;
        }
        self.queue.drain(..count).collect()
    }
}
