//! The two files of a log, and the only code that reads, writes or syncs them.
//!
//! Everything goes through a [`Device`], so that every sync is counted and timed and that tests can put
//! faults between the log and the disk. A device remembers the first error, because the engine above it
//! answers later calls with "previous I/O error" alone.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::options::{LogOptions, SyncObserver};
use super::stats::SyncMeter;
use crate::durable::settle;
use crate::failure::{Failure, FailureKind};

/// One of the files of a log.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogFile {
    /// The mark: what was made durable, kept apart from the store.
    Mark,
    /// The engine's file.
    Store,
}

/// Stands between a log and its files, for tests: sees every change before it is made and may refuse it.
/// An error returned here is what the log sees instead of the system's.
pub trait FaultHook: Send + Sync {
    /// Before bytes are written.
    fn write(&self, _file: LogFile, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Ok(())
    }
    /// Before a file is made longer or shorter.
    fn set_len(&self, _file: LogFile, _len_bytes: u64) -> io::Result<()> {
        Ok(())
    }
    /// Before a file is synced.
    fn sync(&self, _file: LogFile) -> io::Result<()> {
        Ok(())
    }
    /// After a file was synced.
    fn synced(&self, _file: LogFile) {}
}

/// One file of a log.
pub(super) struct Device {
    file: File,
    kind: LogFile,
    path: PathBuf,
    hook: Option<Arc<dyn FaultHook>>,
    observer: Option<SyncObserver>,
    meter: Arc<SyncMeter>,
    first_failure: OnceLock<Failure>,
}

impl Device {
    /// Creates the file; it must not exist.
    pub fn create(path: &Path, kind: LogFile, options: &LogOptions, meter: &Arc<SyncMeter>) -> io::Result<Device> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Device::new(file, path, kind, options, meter))
    }

    /// Opens the file, which must exist, and makes sure that what is read from it is what the disk holds.
    pub fn open(path: &Path, kind: LogFile, options: &LogOptions, meter: &Arc<SyncMeter>) -> io::Result<Device> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let device = Device::new(file, path, kind, options, meter);
        device.timed_sync(|| settle(&device.file))?;
        Ok(device)
    }

    fn new(file: File, path: &Path, kind: LogFile, options: &LogOptions, meter: &Arc<SyncMeter>) -> Device {
        Device {
            file,
            kind,
            path: path.to_owned(),
            hook: options.fault_hook.clone(),
            observer: options.on_sync.clone(),
            meter: meter.clone(),
            first_failure: OnceLock::new(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    pub fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let result = self.file.read_exact_at(out, offset);
        self.remember(|| format!("a read of {} bytes at {offset} of {}", out.len(), self.path.display()), result)
    }

    pub fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let hooked = self.hook.as_ref().map_or(Ok(()), |hook| hook.write(self.kind, offset, data));
        let result = hooked.and_then(|()| self.file.write_all_at(data, offset));
        self.remember(|| format!("a write of {} bytes at {offset} of {}", data.len(), self.path.display()), result)
    }

    pub fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        let hooked = self.hook.as_ref().map_or(Ok(()), |hook| hook.set_len(self.kind, len_bytes));
        let result = hooked.and_then(|()| self.file.set_len(len_bytes));
        self.remember(|| format!("setting the length of {} to {len_bytes}", self.path.display()), result)
    }

    /// Fdatasync. After an error the caller must give the store up: the next one may say ok although the
    /// pages of the first are gone.
    pub fn sync(&self) -> io::Result<()> {
        self.timed_sync(|| self.file.sync_data())
    }

    fn timed_sync(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let begun = Instant::now();
        let hooked = self.hook.as_ref().map_or(Ok(()), |hook| hook.sync(self.kind));
        let result = hooked.and_then(|()| sync());
        if result.is_ok() {
            let took = begun.elapsed();
            self.meter.record(self.kind, took);
            if let Some(observer) = &self.observer {
                observer(self.kind, took);
            }
            if let Some(hook) = &self.hook {
                hook.synced(self.kind);
            }
        }
        self.remember(|| format!("a sync of {}", self.path.display()), result)
    }

    fn remember<T>(&self, operation: impl Fn() -> String, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result {
            let _ = self.first_failure.set(Failure::io(operation(), error));
        }
        result
    }

    /// The first thing that went wrong on this device, else what the engine says.
    pub fn failure_or(&self, operation: &str, said: &dyn fmt::Display) -> Failure {
        match self.first_failure.get() {
            Some(first) => first.clone(),
            None => Failure::new(FailureKind::Corrupt, format!("{operation} of {}", self.path.display()), said),
        }
    }

    /// The first thing that went wrong on this device.
    pub fn first_failure(&self) -> Option<&Failure> {
        self.first_failure.get()
    }
}

/// A device in the shape that the engine wants.
pub(super) struct EngineBackend(pub Arc<Device>);

impl fmt::Debug for EngineBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineBackend({})", self.0.path.display())
    }
}

impl redb::StorageBackend for EngineBackend {
    fn len(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}
