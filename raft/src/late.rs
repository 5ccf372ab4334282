//! A node that was started on a full disk. It answers lookups from its newest snapshot, says what it waits for, and opens
//! its log when there is room, as any start would have; only then does it take its place in the cluster. Nothing here
//! writes to a disk that has no room, but for the tries to open.

use crate::membership::pace::Backoff;
use crate::node::Inner;
use crate::reopen::NotOpened;
use crate::room::Room;
use prefixd_storage::{
    DataDirError, Done, Failure, FailureKind, Identity, LogError, LogOptions, LogPos, LogRecord, LogState, LogStats,
    LogStore, RedbLog, Vote,
};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The log of a disk, or a stand-in that refuses everything until there is room for the log to be opened.
pub(crate) fn log_or_none(log: Result<RedbLog, String>, room: &Room) -> Arc<dyn LogStore> {
    match log {
        Ok(log) => Arc::new(log),
        Err(why) => {
            room.ended_full(why.clone());
            Arc::new(NotOpenYet(why))
        }
    }
}

/// Opens the log for the first time in this process, whenever that is.
pub(crate) async fn open(inner: &Inner, backoff: &mut Backoff) -> Result<(), String> {
    let (times, why) = inner.room.last_full();
    let dir = inner.config.data_dir.display();
    tracing::error!(
        why,
        "started on a full disk: lookups are answered from the newest snapshot, and this node goes on by itself when there \
         is room on the file system of {dir}"
    );
    inner.waiting.send_replace(format!("started on a full disk, make room on the file system of {dir}: {why}"));
    let store = loop {
        match first_opening(inner).await {
            Ok(store) => break store,
            Err(NotOpened::Final(why)) => return Err(why),
            Err(NotOpened::Full(why)) => tracing::debug!(why, "no room to open the log yet"),
        }
        let pause = backoff.pause(&mut rand::rng());
        tokio::time::sleep(pause).await;
    };
    let (purged, applied) = (store.state().purged.map_or(0, |pos| pos.index), inner.core.published.applied_index());
    if purged > applied {
        return Err(format!(
            "the log is purged up to index {purged}, and the snapshot that was loaded while the disk was full reaches \
             {applied}: start this node again, now that there is room"
        ));
    }
    inner.log.replace(inner.log.current().succeeded_by(Arc::new(store)));
    inner.room.opened_again(times);
    inner.waiting.send_replace("starting".into());
    inner.log_open.cancel();
    tracing::info!("there is room: the log is open and this node goes on");
    Ok(())
}

async fn first_opening(inner: &Inner) -> Result<RedbLog, NotOpened> {
    let (dir, options) = (inner.config.data_dir.clone(), (inner.log_options)(inner.store_uuid));
    let opened = tokio::task::spawn_blocking(move || load(&dir, options)).await;
    let opened = opened.unwrap_or_else(|e| Err(NotOpened::Final(format!("opening the log did not return: {e}"))));
    let (incarnation, store) = opened?;
    inner.incarnation.store(incarnation, Ordering::Relaxed);
    Ok(store)
}

/// What [`prefixd_storage::DataDir::load`] does, for a directory that this process has already. Blocking.
fn load(dir: &Path, options: LogOptions) -> Result<(u64, RedbLog), NotOpened> {
    let path = dir.join("identity");
    let read = || -> Result<(u64, RedbLog), DataDirError> {
        let found = Identity::read(&path)?;
        let mut identity =
            found.ok_or(DataDirError::WrongState { path: path.clone(), problem: "the identity is gone" })?;
        identity.incarnation += 1;
        identity.write(&path)?;
        Ok((identity.incarnation, RedbLog::open(dir, options)?))
    };
    read().map_err(|error| match error.is_disk_full() {
        true => NotOpened::Full(error.to_string()),
        false => NotOpened::Final(error.to_string()),
    })
}

/// Stands where the log will be.
struct NotOpenYet(String);

impl NotOpenYet {
    fn refuse<T>(&self) -> Result<T, LogError> {
        let failure =
            Failure { kind: FailureKind::DiskFull, operation: "opening the log".into(), detail: self.0.clone() };
        Err(LogError::Failed(Arc::new(failure)))
    }
}

impl LogStore for NotOpenYet {
    fn state(&self) -> LogState {
        LogState::default()
    }

    fn append(&self, _records: Vec<LogRecord>, _done: Done) -> Result<(), LogError> {
        self.refuse()
    }

    fn read(&self, _range: Range<u64>, _max_bytes: usize) -> Result<Vec<LogRecord>, LogError> {
        self.refuse()
    }

    fn save_vote(&self, _vote: Vote) -> Result<(), LogError> {
        self.refuse()
    }

    fn save_committed(&self, _pos: Option<LogPos>) {}

    fn truncate_after(&self, _index: Option<u64>) -> Result<(), LogError> {
        self.refuse()
    }

    fn purge(&self, _upto: LogPos) -> Result<(), LogError> {
        self.refuse()
    }

    fn close(&self) -> Result<(), LogError> {
        Ok(())
    }

    fn stats(&self) -> LogStats {
        LogStats::default()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests {
    use super::*;
    use prefixd_storage::DataDir;

    #[test]
    fn a_log_is_opened_late_as_at_a_start_and_one_that_is_gone_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let identity =
            Identity { cluster_id: Some(5), node_id: 7, incarnation: 3, store_uuid: 9, node_name: "n0".into() };
        let mut data_dir = DataDir::open(dir.path()).unwrap();
        data_dir.create(&identity, &LogOptions::new(9)).unwrap();
        let (incarnation, log) = load(dir.path(), LogOptions::new(9)).ok().unwrap();
        assert_eq!((incarnation, data_dir.peek_identity().unwrap().incarnation), (4, 4));
        drop(log);
        std::fs::remove_file(dir.path().join("log.redb")).unwrap();
        let gone = load(dir.path(), LogOptions::new(9)).err().unwrap();
        assert!(matches!(gone, NotOpened::Final(why) if why.contains("missing")));
    }

    #[test]
    fn until_it_is_open_everything_is_refused_for_want_of_room() {
        let room = Room::new();
        let log = log_or_none(Err("no space".into()), &room);
        assert!(room.is_reopening() && log.state() == LogState::default());
        let refused = |error: LogError| matches!(&error, LogError::Failed(f) if f.kind == FailureKind::DiskFull);
        assert!(refused(log.append(Vec::new(), Box::new(|_| {})).unwrap_err()));
        assert!(refused(log.save_vote(Vote { term: 1, voted_for: Some(1), committed: false }).unwrap_err()));
    }
}
