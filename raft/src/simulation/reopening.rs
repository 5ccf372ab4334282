//! A log that ended on a full disk is opened anew in the process, as `crate::reopen` does it: the same steps in the same
//! order, with the same code where it decides what may be gone on with, over a simulated disk.

use super::disk::{Change, Disk, Failed};
use super::executor;
use super::node::Member;
use super::world::Invariant;
use crate::reopen::catch_up;
use prefixd_storage::{Done, LogError, LogPos, LogRecord, LogState, LogStats, LogStore, Vote};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Between looks whether the log has ended, and between tries to open it.
const PAUSE: Duration = Duration::from_millis(30);

/// Opens the log anew whenever it ends on a full disk, until the process ends.
pub(super) async fn run(member: Arc<Member>) {
    loop {
        executor::sleep(PAUSE).await;
        if member.disk.failed() != Some(Failed::Full) {
            continue;
        }
        member.is_reopening.store(true, SeqCst);
        if let Err(why) = reopen(&member).await {
            // A disk that can't be read ends the process, which is seen elsewhere.
            if member.disk.failed() == Some(Failed::Broken) {
                return;
            }
            return member.world.broke(Invariant::Alive, format!("node {} does not go on: {why}", member.id));
        }
        member.is_reopening.store(false, SeqCst);
    }
}

async fn reopen(member: &Arc<Member>) -> Result<(), String> {
    member.end_life().await;
    let applied = member.core.published.summary().applied;
    let unsaved = loop {
        match member.disk.reopen() {
            Some(unsaved) => break unsaved,
            None => executor::sleep(PAUSE).await,
        }
    };
    member.disk.check(&member.world);
    if let Some(applied) = applied {
        let generations = member.disk.generations();
        let reached = generations.iter().filter_map(|taken| taken.manifest.last);
        let snapshot = reached.filter(|pos| pos.index <= applied.index).max_by_key(|pos| pos.index);
        let log = Reopened(member.disk.clone());
        catch_up(&log, unsaved, applied, snapshot).map_err(|why| format!("{why:?}"))?;
    }
    member.begin_life().await?;
    member.world.count("log opened anew", member.id, (applied.map_or(0, |pos| pos.index), 0));
    Ok(())
}

/// A log before anybody uses it.
struct Reopened(Arc<Disk>);

impl LogStore for Reopened {
    fn state(&self) -> LogState {
        self.0.seen(|held| LogState {
            purged: held.purged,
            last: held.last(),
            vote: held.vote,
            committed: held.committed,
        })
    }

    fn append(&self, records: Vec<LogRecord>, done: Done) -> Result<(), LogError> {
        self.0.change_at_once(Change::Append(records));
        done(Ok(()));
        Ok(())
    }

    fn read(&self, range: Range<u64>, _max_bytes: usize) -> Result<Vec<LogRecord>, LogError> {
        Ok(self.0.seen(|held| held.records.range(range).map(|(_, record)| record.clone()).collect()))
    }

    fn save_committed(&self, pos: Option<LogPos>) {
        self.0.note_committed(pos);
    }

    fn save_vote(&self, _vote: Vote) -> Result<(), LogError> {
        unreachable!("nobody votes with it")
    }

    fn truncate_after(&self, _index: Option<u64>) -> Result<(), LogError> {
        unreachable!("nothing is taken back")
    }

    fn purge(&self, upto: LogPos) -> Result<(), LogError> {
        self.0.change_at_once(Change::Purge(upto));
        Ok(())
    }

    fn close(&self) -> Result<(), LogError> {
        Ok(())
    }

    fn stats(&self) -> LogStats {
        LogStats::default()
    }
}
