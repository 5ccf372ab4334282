//! The writer thread: the only one that changes the store and the mark.
//!
//! It drains the queue into one transaction, commits it (one fdatasync), writes the mark, and only then
//! tells the callers; what comes in meanwhile is the next batch. The first error of any kind ends it: a
//! commit or a sync is never tried twice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use redb::Database;

use super::device::Device;
use super::mark::Mark;
use super::shared::{Change, Queued, Shared, Work};
use super::state_row::StateRow;
use super::tables::{RecordTables, STATE, STATE_KEY};
use super::{LogError, LogPos};
use crate::failure::Failure;

/// A mark that was written is synced after this long at the latest, plus one commit: within 100 ms.
const MARK_SYNC_AFTER: Duration = Duration::from_millis(50);

pub(super) struct Writer {
    pub shared: Arc<Shared>,
    /// None once closed or given up.
    pub engine: Arc<RwLock<Option<Database>>>,
    pub store: Arc<Device>,
    pub mark: Mark,
    pub row: StateRow,
    pub group_max_bytes: usize,
    pub group_max_records: usize,
    pub mark_due: Option<Instant>,
}

impl Writer {
    /// Serves until closed or broken.
    pub fn run(mut self) {
        let shared = self.shared.clone();
        let engine = self.engine.clone();
        let outcome = catch_unwind(AssertUnwindSafe(move || self.serve()));
        let failure = match outcome {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure,
            Err(payload) => Failure::panicked("the log's writer thread", payload.as_ref()),
        };
        shared.fail_behind(failure, || let_go(&engine));
    }

    fn serve(&mut self) -> Result<(), Failure> {
        loop {
            match self.shared.next_work(self.group_max_bytes, self.group_max_records, self.mark_due) {
                Work::Stop => {
                    drop(take_engine(&self.engine));
                    return Ok(());
                }
                Work::SyncMark => self.sync_mark()?,
                Work::Commit(batch, committed) => {
                    if self.carry_out(batch, committed)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Makes a batch durable and tells its callers. True when it closed the store.
    fn carry_out(&mut self, batch: Vec<Queued>, committed: Option<LogPos>) -> Result<bool, Failure> {
        let closes = batch.iter().any(|queued| matches!(queued.change, Change::Close));
        let result = catch_unwind(AssertUnwindSafe(|| self.make_durable(&batch, committed, closes)))
            .unwrap_or_else(|payload| Err(Failure::panicked("a commit", payload.as_ref())));
        if let Err(failure) = result {
            let failure = self.shared.fail_behind(failure, || let_go(&self.engine));
            batch.into_iter().for_each(|queued| (queued.done)(Err(LogError::Failed(failure.clone()))));
            return Ok(true);
        }
        self.shared.settle(&batch, &self.row);
        batch.into_iter().for_each(|queued| (queued.done)(Ok(())));
        if self.mark_due.is_some_and(|due| Instant::now() >= due) {
            self.sync_mark()?;
        }
        Ok(closes)
    }

    fn make_durable(&mut self, batch: &[Queued], committed: Option<LogPos>, closes: bool) -> Result<(), Failure> {
        let changes_something = batch.iter().any(|queued| !matches!(queued.change, Change::Close));
        if changes_something || committed != self.row.committed {
            self.commit(batch, committed)?;
        }
        // A vote must not be forgotten even if the store falls back to its last but one commit; the
        // others are rare and simply become as safe. Appends wait for the next round.
        if batch.iter().any(|queued| !matches!(queued.change, Change::Append(_))) {
            self.sync_mark()?;
        }
        if closes && let Some(engine) = take_engine(&self.engine) {
            engine.close().map_err(|error| self.store.failure_or("closing", &error))?;
            self.store_is_sound()?;
        }
        Ok(())
    }

    /// One transaction, synced, and the mark written (not synced).
    fn commit(&mut self, batch: &[Queued], committed: Option<LogPos>) -> Result<(), Failure> {
        let committed = held(batch, &self.row, committed);
        let mut row = StateRow { committed, ..self.row.next() };
        {
            let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
            let engine = engine.as_ref().ok_or_else(|| self.store.failure_or("a commit", &"the engine is closed"))?;
            write_batch(engine, batch, &mut row).map_err(|error| self.store.failure_or("a commit", &error))?;
        }
        self.store_is_sound()?;
        self.row = row;
        self.mark.write(row).map_err(|error| self.mark.device().failure_or("marking", &error))?;
        self.mark_due.get_or_insert_with(|| Instant::now() + MARK_SYNC_AFTER);
        Ok(())
    }

    /// An error that the engine swallowed is an error all the same.
    fn store_is_sound(&self) -> Result<(), Failure> {
        self.store.first_failure().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    fn sync_mark(&mut self) -> Result<(), Failure> {
        self.mark.sync().map_err(|error| self.mark.device().failure_or("a sync", &error))?;
        self.mark_due = None;
        Ok(())
    }
}

/// What is known to be committed of what the log holds once this batch is in it. A quorum may have committed what still waits
/// behind the batch: a row that said so, over a log that ends before, would be one that nobody can start from.
fn held(batch: &[Queued], row: &StateRow, committed: Option<LogPos>) -> Option<LogPos> {
    let end = batch.iter().fold(row.last, |end, queued| match &queued.change {
        Change::Append(new) => new.last().map(|record| record.pos).or(end),
        Change::Truncate { last, .. } | Change::Purge { last, .. } => *last,
        Change::Vote(_) | Change::Close => end,
    });
    let is_held = |pos: &LogPos| end.is_some_and(|end| pos.index <= end.index);
    match committed {
        Some(pos) if !is_held(&pos) => row.committed.filter(is_held),
        known => known,
    }
}

/// Writes changes and the state row that follows from them in one transaction.
pub(super) fn write_batch(engine: &Database, batch: &[Queued], row: &mut StateRow) -> Result<(), redb::Error> {
    let transaction = engine.begin_write()?;
    {
        let mut records = RecordTables::open(&transaction)?;
        for queued in batch {
            apply(&mut records, &queued.change, row)?;
        }
        transaction.open_table(STATE)?.insert(STATE_KEY, row.encode().as_slice())?;
    }
    transaction.commit()?;
    Ok(())
}

fn apply(records: &mut RecordTables<'_>, change: &Change, row: &mut StateRow) -> Result<(), redb::Error> {
    match change {
        Change::Append(new) => {
            for record in new {
                records.insert(record)?;
                row.first.get_or_insert(record.pos.index);
                row.last = Some(record.pos);
            }
        }
        Change::Vote(vote) => row.vote = Some(*vote),
        Change::Truncate { keep, first, last } => {
            records.truncate_after(*keep)?;
            (row.first, row.last) = (*first, *last);
        }
        Change::Purge { upto, first, last } => {
            records.purge(upto.index)?;
            (row.first, row.last, row.purged) = (*first, *last, Some(*upto));
        }
        Change::Close => {}
    }
    Ok(())
}

/// Lets go of the files of a store that has failed: on a full disk the node opens them anew as soon as it is told.
fn let_go(engine: &RwLock<Option<Database>>) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(take_engine(engine))));
}

fn take_engine(engine: &RwLock<Option<Database>>) -> Option<Database> {
    engine.write().unwrap_or_else(PoisonError::into_inner).take()
}
