//! [`RedbLog`]: the log on redb, with a mark beside it.
//!
//! Calls change the log in memory and queue the change for the writer thread; reads take what is in
//! memory from there and the rest from the store.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use redb::Database;

use super::device::Device;
use super::error::{LogError, OpenError};
use super::mark::MARK_FILE_BYTES;
use super::open;
use super::options::LogOptions;
use super::read::{self, ReadError};
use super::shared::{Change, Inner, Shared};
use super::stats::SyncMeter;
use super::writer::Writer;
use super::{Done, LogPos, LogRecord, LogState, LogStats, LogStore, MAX_RECORD_BYTES, Vote};
use crate::failure::{Failure, FailureKind};

/// The durable log of a node: redb, and a mark that notices when redb shows an older state.
pub struct RedbLog {
    shared: Arc<Shared>,
    engine: Arc<RwLock<Option<Database>>>,
    store: Arc<Device>,
    meter: Arc<SyncMeter>,
    pending_max_bytes: usize,
    writer: Mutex<Option<JoinHandle<()>>>,
    dir: PathBuf,
}

/// Why a change was not even queued.
enum Refused {
    Caller(LogError),
    Store(Failure),
}

impl RedbLog {
    /// Creates the files of an empty log in `dir`; they must not exist. The caller writes the identity
    /// next, and then opens the log.
    pub fn create(dir: &Path, options: &LogOptions) -> Result<(), OpenError> {
        open::create(dir, options)
    }

    /// Opens the log in `dir` and verifies all of it. A log that can't be what was acknowledged is
    /// refused, with a message that tells the operator what to do.
    pub fn open(dir: &Path, options: LogOptions) -> Result<RedbLog, OpenError> {
        let opened = open::open(dir, &options)?;
        let shared = Arc::new(Shared::new(&opened.row, options.tail_max_bytes, options.on_fatal));
        let engine = Arc::new(RwLock::new(Some(opened.engine)));
        let writer = Writer {
            shared: shared.clone(),
            engine: engine.clone(),
            store: opened.store.clone(),
            mark: opened.mark,
            row: opened.row,
            group_max_bytes: options.group_max_bytes,
            group_max_records: options.group_max_records,
            mark_due: None,
        };
        let thread = thread::Builder::new()
            .name("log-writer".into())
            .spawn(move || writer.run())
            .map_err(|error| OpenError::Failed(Failure::io("starting the log's writer thread", &error)))?;
        Ok(RedbLog {
            shared,
            engine,
            store: opened.store,
            meter: opened.meter,
            pending_max_bytes: options.pending_max_bytes,
            writer: Mutex::new(Some(thread)),
            dir: dir.to_owned(),
        })
    }

    /// The directory that holds the files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Queues what `plan` makes of the present state and waits until it is durable. `plan` returns None
    /// when there is nothing to do.
    fn change(&self, plan: impl FnOnce(&mut Inner) -> Result<Option<Change>, Refused>) -> Result<(), LogError> {
        let (sender, receiver) = sync_channel(1);
        let mut inner = self.shared.lock();
        inner.usable()?;
        match plan(&mut inner) {
            Ok(None) => return Ok(()),
            Ok(Some(change)) => {
                let done = Box::new(move |result| drop(sender.send(result)));
                inner.enqueue(change, done);
            }
            Err(Refused::Caller(error)) => return Err(error),
            Err(Refused::Store(failure)) => {
                drop(inner);
                return Err(LogError::Failed(self.shared.fail(failure)));
            }
        }
        drop(inner);
        self.shared.wake_writer();
        receiver.recv().unwrap_or_else(|_| Err(self.gone()))
    }

    /// What to say when the store isn't there any more.
    fn gone(&self) -> LogError {
        self.shared.lock().failure().unwrap_or(LogError::Closed)
    }

    fn read_store(&self, range: Range<u64>, max_bytes: usize) -> Result<Result<Vec<LogRecord>, Failure>, LogError> {
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        match engine.as_ref() {
            Some(engine) => {
                let read = || read::read_store(engine, range, max_bytes).map_err(|error| self.read_failure(error));
                Ok(guarded_read(read))
            }
            None => {
                drop(engine);
                Err(self.gone())
            }
        }
    }

    fn read_failure(&self, error: ReadError) -> Failure {
        match error {
            ReadError::Engine(error) => self.store.failure_or("a read", &error),
            damaged => {
                let operation = format!("a read of {}", self.store.path().display());
                Failure::new(FailureKind::Corrupt, operation, damaged)
            }
        }
    }

    /// Position of a record that exists.
    fn pos_of(&self, inner: &Inner, index: u64) -> Result<LogPos, Refused> {
        if let Some(pos) = inner.tail.pos(index) {
            return Ok(pos);
        }
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        let engine = engine.as_ref().ok_or(Refused::Caller(inner.failure().unwrap_or(LogError::Closed)))?;
        let read = || {
            read::read_store(engine, index..index.saturating_add(1), 0)
                .and_then(|records| records.first().map(|record| record.pos).ok_or(ReadError::Missing { index }))
                .map_err(|error| self.read_failure(error))
        };
        guarded_read(read).map_err(Refused::Store)
    }

    fn plan_truncation(&self, inner: &mut Inner, index: Option<u64>) -> Result<Option<Change>, Refused> {
        let (Some(first), Some(last)) = (inner.first, inner.log.last) else { return Ok(None) };
        let keep = index.filter(|index| *index >= first);
        let (new_first, new_last) = match keep {
            Some(keep) if keep >= last.index => return Ok(None),
            Some(keep) => (Some(first), Some(self.pos_of(inner, keep)?)),
            None => (None, inner.log.purged),
        };
        inner.tail.truncate_after(keep);
        (inner.first, inner.log.last) = (new_first, new_last);
        inner.epoch += 1;
        Ok(Some(Change::Truncate { keep, first: new_first, last: new_last }))
    }

    fn is_writer_thread(&self) -> bool {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.as_ref().is_some_and(|handle| handle.thread().id() == thread::current().id())
    }

    fn join_writer(&self) {
        if self.is_writer_thread() {
            return;
        }
        let handle = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = handle {
            // It catches its own panics, and told the node.
            let _ = handle.join();
        }
    }
}

impl LogStore for RedbLog {
    fn state(&self) -> LogState {
        self.shared.lock().log
    }

    fn has_room(&self) -> bool {
        self.shared.lock().pending_bytes <= self.pending_max_bytes
    }

    fn append(&self, records: Vec<LogRecord>, done: Done) -> Result<(), LogError> {
        let mut inner = self.shared.lock_with_room(self.pending_max_bytes)?;
        let mut wanted = match inner.log.last {
            Some(last) => last.index.checked_add(1),
            None => records.first().map(|record| record.pos.index),
        };
        for record in &records {
            let (got, bytes) = (record.pos.index, record.body.len());
            if wanted != Some(got) {
                return Err(LogError::NotContiguous { wanted: wanted.unwrap_or(u64::MAX), got });
            }
            if bytes > MAX_RECORD_BYTES {
                return Err(LogError::TooLarge { pos: record.pos, bytes, limit: MAX_RECORD_BYTES });
            }
            wanted = got.checked_add(1);
        }
        let op = inner.enqueue(Change::Append(records.clone()), done);
        for record in records {
            inner.first.get_or_insert(record.pos.index);
            inner.log.last = Some(record.pos);
            inner.tail.push(record, op);
        }
        drop(inner);
        self.shared.wake_writer();
        Ok(())
    }

    fn read(&self, range: Range<u64>, max_bytes: usize) -> Result<Vec<LogRecord>, LogError> {
        loop {
            let plan = {
                let inner = self.shared.lock();
                inner.usable()?;
                read::plan(&inner, &range, max_bytes)
            };
            if plan.stored.is_empty() {
                return Ok(plan.in_memory);
            }
            let stored = self.read_store(plan.stored, max_bytes)?;
            // Each round needs a truncation or a purge that ran meanwhile, so this ends.
            if self.shared.lock().epoch != plan.epoch {
                continue;
            }
            let stored = stored.map_err(|failure| LogError::Failed(self.shared.fail(failure)))?;
            return Ok(read::take_bytes(stored.into_iter().chain(plan.in_memory), max_bytes));
        }
    }

    fn read_from_memory(&self, range: Range<u64>, max_bytes: usize) -> Option<Vec<LogRecord>> {
        let inner = self.shared.lock();
        inner.usable().ok()?;
        let plan = read::plan(&inner, &range, max_bytes);
        plan.stored.is_empty().then_some(plan.in_memory)
    }

    fn save_vote(&self, vote: Vote) -> Result<(), LogError> {
        self.change(|_| Ok(Some(Change::Vote(vote))))
    }

    fn save_committed(&self, pos: Option<LogPos>) {
        self.shared.lock().log.committed = pos;
    }

    fn truncate_after(&self, index: Option<u64>) -> Result<(), LogError> {
        self.change(|inner| self.plan_truncation(inner, index))
    }

    fn purge(&self, upto: LogPos) -> Result<(), LogError> {
        self.change(|inner| plan_purge(inner, upto))
    }

    fn unsaved(&self) -> Vec<LogRecord> {
        self.shared.lock().tail.unsaved()
    }

    fn close(&self) -> Result<(), LogError> {
        let (sender, receiver) = sync_channel(1);
        let is_first = {
            let mut inner = self.shared.lock();
            let is_first = !inner.closing && inner.failure().is_none();
            if is_first {
                inner.closing = true;
                let done = Box::new(move |result| drop(sender.send(result)));
                inner.enqueue(Change::Close, done);
            }
            is_first
        };
        self.shared.wake_writer();
        if is_first && !self.is_writer_thread() {
            let result = receiver.recv().unwrap_or_else(|_| Err(self.gone()));
            self.join_writer();
            return result;
        }
        self.join_writer();
        self.shared.lock().failure().map_or(Ok(()), Err)
    }

    fn stats(&self) -> LogStats {
        let store_sync_latency = self.meter.store_latency();
        let inner = self.shared.lock();
        LogStats {
            disk_bytes: self.store.len_bytes().unwrap_or(0) + MARK_FILE_BYTES as u64,
            records: inner.record_count(),
            pending_bytes: inner.pending_bytes as u64,
            tail_bytes: inner.tail.bytes() as u64,
            writing_for: inner.writing_since.map(|since| since.elapsed()),
            commits: inner.commits,
            store_syncs: store_sync_latency.count,
            mark_syncs: self.meter.mark_syncs(),
            store_sync_latency,
        }
    }
}

impl Drop for RedbLog {
    fn drop(&mut self) {
        // Whoever wants to know the outcome calls `close`; a failure was told to `on_fatal`.
        let _ = self.close();
    }
}

/// Damage that came after opening may still make the engine panic; that must not reach the caller.
fn guarded_read<T>(read: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|payload| Err(Failure::panicked("a read", payload.as_ref())))
}

fn plan_purge(inner: &mut Inner, upto: LogPos) -> Result<Option<Change>, Refused> {
    if inner.log.purged.is_some_and(|purged| upto.index <= purged.index) {
        return Ok(None);
    }
    if let Some(first) = inner.first
        && first > upto.index.saturating_add(1)
    {
        // The records would no longer begin right behind the purge point.
        return Err(Refused::Caller(LogError::NotContiguous { wanted: first - 1, got: upto.index }));
    }
    let keeps_records = inner.first.is_some() && inner.log.last.is_some_and(|last| last.index > upto.index);
    let (first, last) = if keeps_records { (Some(upto.index + 1), inner.log.last) } else { (None, Some(upto)) };
    inner.tail.purge(upto.index);
    (inner.first, inner.log.last, inner.log.purged) = (first, last, Some(upto));
    inner.epoch += 1;
    Ok(Some(Change::Purge { upto, first, last }))
}
