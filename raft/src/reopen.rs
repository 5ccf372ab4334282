//! A log that ended on a full disk is opened anew in this process, as at a start and with all its checks, and Raft begins
//! anew over it; the index in memory goes on answering meanwhile. Nothing here tries a failed write or sync again: the
//! store that failed is given up, and what is on disk is read from the disk. Any other failure of the log ends the
//! process.

use crate::late;
use crate::life;
use crate::log::RaftLog;
use crate::membership::pace::{Backoff, Pace};
use crate::node::Inner;
use prefixd_storage::{FailureKind, LogError, LogOptions, LogPos, LogRecord, LogStore, OpenError, RedbLog};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use tokio::time::Instant;

/// Pauses between tries.
pub(crate) const PACE: Pace = Pace {
    call_timeout: Duration::from_millis(500),
    first_pause: Duration::from_millis(100),
    longest_pause: Duration::from_secs(5),
};
/// A log that held for this long was opened for good: the next full disk is another one.
const HELD: Duration = Duration::from_secs(30);

/// Why a log was not opened.
#[derive(Debug)]
pub(crate) enum NotOpened {
    /// There is still no room.
    Full(String),
    /// It can't be gone on with in this process.
    Final(String),
}

/// Opens the log anew whenever it ends on a full disk, until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut backoff = Backoff::new(&PACE);
    let mut opened: Option<Instant> = None;
    let outcome = inner.stopping.run_until_cancelled(async {
        loop {
            inner.room.wait_until_full().await;
            if opened.is_some_and(|at| at.elapsed() >= HELD) {
                backoff.reset();
            }
            reopen(&inner, &mut backoff).await?;
            opened = Some(Instant::now());
        }
    });
    if let Some(Err::<(), String>(why)) = outcome.await {
        inner.fail(why);
    }
}

async fn reopen(inner: &Arc<Inner>, backoff: &mut Backoff) -> Result<(), String> {
    if !inner.log_open.is_cancelled() {
        return late::open(inner, backoff).await;
    }
    let why = inner.room.last_full().1;
    let Some(me) = inner.identity.get().cloned() else {
        return Err(format!("the log failed before this node belonged to a cluster: {why}"));
    };
    tracing::error!(why, "the disk is full: lookups go on, and the log is opened anew when there is room");
    life::end(inner).await?;
    let mut said = String::new();
    loop {
        // Whatever fails from here on is seen as new.
        let times = inner.room.last_full().0;
        match open_again(inner).await {
            Ok(log) => {
                inner.log.replace(log);
                let began = life::begin(inner, me.clone()).await;
                if inner.room.last_full().0 == times {
                    began.map_err(|e| format!("Raft did not start again: {e}"))?;
                    inner.room.opened_again(times);
                    tracing::info!("the log is open again and Raft goes on");
                    return Ok(());
                }
                life::end(inner).await?;
            }
            Err(NotOpened::Final(why)) => return Err(why),
            Err(NotOpened::Full(why)) if why != said => {
                tracing::warn!(why, "no room to open the log yet; said once, tried again and again");
                said = why;
            }
            Err(NotOpened::Full(_)) => {}
        }
        ask_how_far_others_are(inner).await;
        let pause = backoff.pause(&mut rand::rng());
        tokio::time::sleep(pause).await;
    }
}

async fn open_again(inner: &Inner) -> Result<RaftLog, NotOpened> {
    let (dir, options) = (inner.config.data_dir.clone(), (inner.log_options)(inner.store_uuid));
    let before = inner.log.current();
    let reached = inner.core.published.summary().applied.map(|applied| (applied, inner.snapshot_pos()));
    let opened = tokio::task::spawn_blocking(move || {
        let unsaved = before.store().unsaved();
        let store = open_store(dir, options, unsaved, reached)?;
        Ok(before.succeeded_by(Arc::new(store)))
    });
    opened.await.unwrap_or_else(|e| Err(NotOpened::Final(format!("opening the log did not return: {e}"))))
}

/// Opens the store and brings it up to what was applied, and to the snapshot behind that. Blocking.
fn open_store(
    dir: PathBuf,
    options: LogOptions,
    unsaved: Vec<LogRecord>,
    reached: Option<(LogPos, Option<LogPos>)>,
) -> Result<RedbLog, NotOpened> {
    let store = RedbLog::open(&dir, options).map_err(|error| match &error {
        OpenError::Failed(failure) if failure.kind == FailureKind::DiskFull => NotOpened::Full(failure.to_string()),
        OpenError::Failed(_) | OpenError::WrittenByLaterRelease { .. } | OpenError::Refused { .. } => {
            NotOpened::Final(error.to_string())
        }
    })?;
    if let Some((applied, snapshot)) = reached {
        catch_up(&store, unsaved, applied, snapshot)?;
    }
    Ok(store)
}

/// A quorum may have committed, and this node applied, what its own disk never held. The state must not run ahead of its
/// log: those records are appended again, as they are in memory still. A snapshot that was installed may have been kept and
/// the purge that follows it lost: then a log that ends before it begins behind it, as it would at a start.
pub(crate) fn catch_up(
    store: &impl LogStore,
    unsaved: Vec<LogRecord>,
    applied: LogPos,
    snapshot: Option<LogPos>,
) -> Result<(), NotOpened> {
    let end = store.state().last.map(|last| last.index);
    if let Some(snapshot) = snapshot.filter(|snapshot| end < Some(snapshot.index)) {
        store.purge(snapshot).map_err(not_appended)?;
    }
    let next = store.state().last.map_or(0, |last| last.index + 1);
    if next <= applied.index {
        let lost: Vec<LogRecord> =
            unsaved.into_iter().filter(|record| (next..=applied.index).contains(&record.pos.index)).collect();
        let (send, receive) = sync_channel(1);
        store.append(lost, Box::new(move |result| drop(send.send(result)))).map_err(not_appended)?;
        let ended = || NotOpened::Final("the log ended while it was brought up to date".into());
        receive.recv().map_err(|_| ended())?.map_err(not_appended)?;
    }
    let state = store.state();
    let found = match state.purged {
        Some(purged) if purged.index >= applied.index => Some(purged),
        _ => {
            let read = store.read(applied.index..applied.index.saturating_add(1), 0).map_err(not_appended)?;
            read.first().map(|record| record.pos)
        }
    };
    match found {
        Some(pos) if pos == applied => {
            store.save_committed(Some(applied));
            Ok(())
        }
        other => Err(NotOpened::Final(format!(
            "the log was opened anew, but it holds {other:?} where {applied:?} was applied; the next start brings the \
             two together"
        ))),
    }
}

fn not_appended(error: LogError) -> NotOpened {
    match &error {
        LogError::Failed(failure) if failure.kind == FailureKind::DiskFull => NotOpened::Full(failure.to_string()),
        _ => NotOpened::Final(format!("the log was opened anew and could not be brought up to date: {error}")),
    }
}

/// Without Raft no leader is heard. What the others have committed decides whether this node is still ready.
async fn ask_how_far_others_are(inner: &Inner) {
    let Some(me) = inner.identity.get() else { return };
    for peer in inner.config.peers.iter().filter(|peer| peer.name != inner.config.node_name) {
        let asked = tokio::time::timeout(PACE.call_timeout, inner.calls.raw_status(&peer.addr)).await;
        if let Ok(Ok(status)) = asked
            && status.cluster_id == me.cluster_id.to_be_bytes()[..]
        {
            inner.note_commit(status.committed_index);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests {
    use super::*;
    use prefixd_storage::{FaultHook, LogFile};
    use std::io;

    fn pos(index: u64) -> LogPos {
        LogPos { term: 3, index }
    }

    fn records(indexes: impl Iterator<Item = u64>) -> Vec<LogRecord> {
        indexes.map(|index| LogRecord { pos: pos(index), body: vec![7; 50].into() }).collect()
    }

    /// A log that holds the records 1 to 5.
    fn log_of_five() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        RedbLog::create(dir.path(), &LogOptions::new(7)).unwrap();
        let log = RedbLog::open(dir.path(), LogOptions::new(7)).unwrap();
        let (send, receive) = sync_channel(1);
        log.append(records(1..=5), Box::new(move |result| send.send(result).unwrap())).unwrap();
        receive.recv().unwrap().unwrap();
        dir
    }

    fn reopened(dir: &tempfile::TempDir, unsaved: Vec<LogRecord>, applied: LogPos) -> Result<RedbLog, NotOpened> {
        open_store(dir.path().to_owned(), LogOptions::new(7), unsaved, Some((applied, Some(pos(3)))))
    }

    #[test]
    fn what_was_applied_and_never_written_is_appended_again_and_nothing_else() {
        for (applied, last) in [(3, 5), (5, 5), (6, 6), (8, 8)] {
            let dir = log_of_five();
            let log = reopened(&dir, records(4..=9), pos(applied)).ok().unwrap();
            assert_eq!(log.state().last, Some(pos(last)), "applied {applied}");
            assert_eq!(log.read(1..100, usize::MAX).unwrap(), records(1..=last));
        }
    }

    #[test]
    fn a_log_that_lost_the_purge_behind_a_snapshot_begins_behind_it() {
        for (applied, first) in [(8, None), (10, Some(9))] {
            let dir = log_of_five();
            let reached = Some((pos(applied), Some(pos(8))));
            let log = open_store(dir.path().to_owned(), LogOptions::new(7), records(9..=12), reached).ok().unwrap();
            let state = log.state();
            assert_eq!(
                (state.purged, state.last, state.committed),
                (Some(pos(8)), Some(pos(applied)), Some(pos(applied)))
            );
            assert_eq!(log.read(0..100, usize::MAX).unwrap().first().map(|record| record.pos.index), first);
        }
    }

    #[test]
    fn a_log_that_can_not_be_brought_up_to_what_was_applied_is_not_gone_on_with() {
        let cases = [
            (Vec::new(), pos(8)),
            (records(6..=7), pos(8)),
            (records(7..=8), pos(8)),
            (Vec::new(), LogPos { term: 4, index: 4 }),
        ];
        for (unsaved, applied) in cases {
            let dir = log_of_five();
            let outcome = reopened(&dir, unsaved, applied);
            assert!(matches!(outcome, Err(NotOpened::Final(_))), "{applied:?}");
        }
    }

    struct NoRoom;

    impl FaultHook for NoRoom {
        fn write(&self, _file: LogFile, _offset: u64, _data: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    struct Broken;

    impl FaultHook for Broken {
        fn sync(&self, _file: LogFile) -> io::Result<()> {
            Err(io::Error::other("a broken disk"))
        }
    }

    #[test]
    fn want_of_room_is_waited_for_and_a_broken_disk_is_not() {
        let dir = log_of_five();
        let with = |hook: Arc<dyn FaultHook>| LogOptions { fault_hook: Some(hook), ..LogOptions::new(7) };
        let open = |options| open_store(dir.path().to_owned(), options, Vec::new(), Some((pos(5), None)));
        assert!(matches!(open(with(Arc::new(NoRoom))), Err(NotOpened::Full(_))));
        assert!(matches!(open(with(Arc::new(Broken))), Err(NotOpened::Final(_))));
        assert!(open(LogOptions::new(7)).is_ok());
    }
}
