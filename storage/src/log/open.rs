//! Creating a log, and opening one: everything is verified before anything is believed.
//!
//! Creation order is mark, directory sync, store (then the identity, by the caller), so that a crash
//! leaves something that can be told from a log that lost a part. Opening never repairs beyond what the
//! engine does by itself, and refuses by name when the result isn't what was acknowledged.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use redb::{Database, ReadTransaction, ReadableDatabase};

use super::LogPos;
use super::device::{Device, EngineBackend, LogFile};
use super::error::{OpenError, Refusal};
use super::mark::{MARK_FILE_NAME, Mark};
use super::options::LogOptions;
use super::state_row::StateRow;
use super::stats::SyncMeter;
use super::tables::{RecordReader, STATE, STATE_KEY, STORE_FILE_NAME};
use super::writer::write_batch;
use crate::codec::CodecError;
use crate::durable::sync_dir;
use crate::failure::{Failure, FailureKind, panic_text};

/// The engine never makes a file shorter than its header.
const SHORTEST_STORE_BYTES: u64 = 4096;

/// A log that was verified.
pub(super) struct Opened {
    pub engine: Database,
    pub store: Arc<Device>,
    pub mark: Mark,
    pub row: StateRow,
    pub meter: Arc<SyncMeter>,
}

/// Creates the files of an empty log in `dir`, durable on return.
pub(super) fn create(dir: &Path, options: &LogOptions) -> Result<(), OpenError> {
    let meter = Arc::new(SyncMeter::default());
    let row = StateRow::newborn(options.store_uuid);
    let create = |name: &str, file| {
        let path = dir.join(name);
        Device::create(&path, file, options, &meter).map(Arc::new).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => refused(dir, name, Refusal::Exists),
            _ => failed(format!("creating {}", path.display()), &error),
        })
    };
    let sync = || sync_dir(dir).map_err(|error| failed(format!("a sync of {}", dir.display()), &error));
    let mark_device = create(MARK_FILE_NAME, LogFile::Mark)?;
    Mark::create(mark_device, row).map_err(|error| failed(format!("filling {MARK_FILE_NAME}"), &error))?;
    sync()?;
    let store = create(STORE_FILE_NAME, LogFile::Store)?;
    guarded(dir, &store, || {
        let engine = open_engine(&store, options)?;
        write_batch(&engine, &[], &mut row.clone())?;
        engine.close()?;
        Ok(Ok(()))
    })?;
    sync()
}

/// Opens and verifies the log in `dir`; the result has been committed and marked once more.
pub(super) fn open(dir: &Path, options: &LogOptions) -> Result<Opened, OpenError> {
    let meter = Arc::new(SyncMeter::default());
    let open = |name: &str, file| {
        let path = dir.join(name);
        Device::open(&path, file, options, &meter).map(Arc::new).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => refused(dir, name, Refusal::Missing),
            _ => failed(format!("opening {}", path.display()), &error),
        })
    };
    let mark_device = open(MARK_FILE_NAME, LogFile::Mark)?;
    let store = open(STORE_FILE_NAME, LogFile::Store)?;
    let mark = Mark::open(mark_device)
        .map_err(|error| failed(format!("reading {MARK_FILE_NAME}"), &error))?
        .map_err(|refusal| refused(dir, MARK_FILE_NAME, refusal))?;
    check_uuid(mark.row(), options).map_err(|refusal| refused(dir, MARK_FILE_NAME, refusal))?;
    let found = store.len_bytes().map_err(|error| failed("reading the store's length", &error))?;
    if found < SHORTEST_STORE_BYTES {
        return Err(refused(dir, STORE_FILE_NAME, Refusal::StoreTooShort { found }));
    }
    let (engine, row) = guarded(dir, &store, || {
        let engine = open_engine(&store, options)?;
        let verified = verify(&engine, &mark, options)?;
        Ok(verified.map(|row| (engine, row)))
    })?;
    let mut opened = Opened { engine, store, mark, row, meter };
    opened.confirm(dir)?;
    Ok(opened)
}

impl Opened {
    /// Commits the state once more under the next sequence, and syncs the mark over it.
    fn confirm(&mut self, dir: &Path) -> Result<(), OpenError> {
        let mut row = self.row.next();
        guarded(dir, &self.store, || {
            write_batch(&self.engine, &[], &mut row)?;
            Ok(Ok(()))
        })?;
        self.mark
            .write(row)
            .and_then(|()| self.mark.sync())
            .map_err(|error| failed(format!("marking in {MARK_FILE_NAME}"), &error))?;
        self.row = row;
        Ok(())
    }
}

fn open_engine(store: &Arc<Device>, options: &LogOptions) -> Result<Database, redb::Error> {
    let mut builder = Database::builder();
    builder.set_cache_size(options.cache_bytes).set_check_integrity_on_open(true);
    Ok(builder.create_with_backend(EngineBackend(store.clone()))?)
}

/// Runs engine code that may meet a damaged file: its panics and its complaints become refusals, but
/// what the disk itself refused stays a failure.
fn guarded<T>(
    dir: &Path,
    store: &Device,
    work: impl FnOnce() -> Result<Result<T, Refusal>, redb::Error>,
) -> Result<T, OpenError> {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    if let Some(failure) = store.first_failure()
        && failure.kind != FailureKind::Corrupt
    {
        return Err(OpenError::Failed(failure.clone()));
    }
    let refusal = match outcome {
        Ok(Ok(Ok(value))) => return Ok(value),
        Ok(Ok(Err(refusal))) => refusal,
        Ok(Err(error)) => Refusal::EngineRefused(error.to_string()),
        Err(payload) => Refusal::EnginePanicked(panic_text(payload.as_ref())),
    };
    Err(refused(dir, STORE_FILE_NAME, refusal))
}

fn verify(engine: &Database, mark: &Mark, options: &LogOptions) -> Result<Result<StateRow, Refusal>, redb::Error> {
    let transaction = engine.begin_read()?;
    let stored = match transaction.open_table(STATE) {
        Ok(table) => table.get(STATE_KEY)?.map(|row| StateRow::decode(row.value())),
        Err(redb::TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let row = match stored {
        None => return Ok(Err(Refusal::NoStateRow)),
        Some(Err(later @ CodecError::UnsupportedVersion { .. })) => return Ok(Err(Refusal::UnsupportedVersion(later))),
        Some(Err(error)) => return Ok(Err(Refusal::BadStateRow(error))),
        Some(Ok(row)) => row,
    };
    if let Err(refusal) = check_uuid(&row, options).and_then(|()| check_against_mark(&row, mark.row())) {
        return Ok(Err(refusal));
    }
    Ok(check_records(&transaction, &row)?.map(|()| row))
}

fn check_uuid(row: &StateRow, options: &LogOptions) -> Result<(), Refusal> {
    if row.store_uuid == options.store_uuid {
        return Ok(());
    }
    Err(Refusal::ForeignStore { found: row.store_uuid, expected: options.store_uuid })
}

fn check_against_mark(row: &StateRow, marked: &StateRow) -> Result<(), Refusal> {
    if row.seq < marked.seq {
        return Err(Refusal::BehindMark { found: row.seq, marked: marked.seq });
    }
    if row.seq == marked.seq && row != marked {
        return Err(Refusal::ContradictsMark { seq: row.seq });
    }
    Ok(())
}

/// Reads every record: each must be whole, and together they must be what the state row says.
fn check_records(transaction: &ReadTransaction, row: &StateRow) -> Result<Result<(), Refusal>, redb::Error> {
    let (mut first, mut last) = (None, None::<LogPos>);
    let mut reader = RecordReader::new(transaction, 0, u64::MAX)?;
    let mut body = Vec::new();
    while let Some(found) = reader.next(&mut body)? {
        let pos = match found {
            Err((index, reason)) => return Ok(Err(Refusal::BadRecord { index, reason })),
            Ok(pos) => pos,
        };
        if let Some(before) = last
            && before.index.checked_add(1) != Some(pos.index)
        {
            return Ok(Err(Refusal::Hole { after: before.index, found: pos.index }));
        }
        first.get_or_insert(pos.index);
        last = Some(pos);
    }
    let after_purge = row.purged.and_then(|purged| purged.index.checked_add(1));
    let expected = if row.first.is_some() { after_purge.or(row.first) } else { None };
    if first != row.first || first != expected {
        return Ok(Err(Refusal::WrongFirst { found: first, expected }));
    }
    let found = last.or(row.purged);
    if found != row.last {
        return Ok(Err(Refusal::WrongLast { found, expected: row.last }));
    }
    Ok(Ok(()))
}

fn refused(dir: &Path, name: &str, refusal: Refusal) -> OpenError {
    let file = dir.join(name);
    match refusal {
        Refusal::UnsupportedVersion(version) => OpenError::WrittenByLaterRelease { file, version },
        refusal => OpenError::Refused { file, data_dir: dir.to_owned(), refusal },
    }
}

fn failed(operation: impl Into<String>, error: &io::Error) -> OpenError {
    OpenError::Failed(Failure::io(operation, error))
}
