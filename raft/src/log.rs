//! openraft's log over the disk's. It converts and moves blocking calls off the async workers; what is durable when
//! is decided in the storage crate.

use crate::record;
use crate::types::{Entry, LogId, RaftVote, TypeConfig, log_id, log_pos, raft_vote, stored_vote};
use arc_swap::ArcSwap;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{OptionalSend, RaftTypeConfig};
use prefixd_storage::{LogError, LogRecord, LogStore};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of entries that one AppendEntries carries at most (a single larger entry still goes alone).
const READ_BYTES: usize = 4 << 20;

/// The log as openraft sees it; clones share the store.
#[derive(Clone)]
pub(crate) struct RaftLog {
    store: Arc<dyn LogStore>,
    appended_bytes: Arc<AtomicU64>,
}

impl RaftLog {
    pub(crate) fn new(store: Arc<dyn LogStore>) -> Self {
        Self { store, appended_bytes: Arc::default() }
    }

    /// This one over another store, for the next Raft; what belongs to the last one keeps the store that failed.
    pub(crate) fn succeeded_by(&self, store: Arc<dyn LogStore>) -> Self {
        Self { store, appended_bytes: self.appended_bytes.clone() }
    }

    /// Bytes of record bodies appended since this process started.
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.appended_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn store(&self) -> &Arc<dyn LogStore> {
        &self.store
    }

    async fn blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn LogStore) -> Result<T, LogError> + Send + 'static,
    ) -> io::Result<T> {
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || call(&*store))
            .await
            .map_err(|e| io::Error::other(format!("a log call did not return: {e}")))?
            .map_err(failed)
    }

    async fn read(&self, start: u64, end: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let records = match self.store.read_from_memory(start..end, max_bytes) {
            Some(records) => records,
            None => self.blocking(move |store| store.read(start..end, max_bytes)).await?,
        };
        records.into_iter().map(record::from_record).collect()
    }
}

/// The log of this node, whichever store it is in now.
pub(crate) struct PresentLog(ArcSwap<RaftLog>);

impl PresentLog {
    pub(crate) fn new(log: RaftLog) -> Self {
        Self(ArcSwap::from_pointee(log))
    }

    pub(crate) fn current(&self) -> RaftLog {
        self.0.load().as_ref().clone()
    }

    pub(crate) fn replace(&self, log: RaftLog) {
        self.0.store(Arc::new(log));
    }

    pub(crate) fn store(&self) -> Arc<dyn LogStore> {
        self.0.load().store.clone()
    }

    pub(crate) fn appended_bytes(&self) -> u64 {
        self.0.load().appended_bytes()
    }
}

fn failed(error: LogError) -> io::Error {
    io::Error::other(error.to_string())
}

impl RaftLogReader<TypeConfig> for RaftLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.read(start, end, usize::MAX).await
    }

    async fn read_vote(&mut self) -> Result<Option<RaftVote>, io::Error> {
        Ok(self.store.state().vote.and_then(raft_vote))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.read(start, end, READ_BYTES).await
    }
}

impl RaftLogStorage<TypeConfig> for RaftLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let state = self.store.state();
        Ok(LogState { last_purged_log_id: state.purged.map(log_id), last_log_id: state.last.map(log_id) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> Result<(), io::Error> {
        let vote = stored_vote(vote);
        self.blocking(move |store| store.save_vote(vote)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.store.save_committed(committed.as_ref().map(log_pos));
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        // An earlier release may have written more than its log holds: the leader says again what is committed.
        let state = self.store.state();
        let is_held = state.committed.map(|pos| pos.index) <= state.last.map(|pos| pos.index);
        Ok(state.committed.filter(|_| is_held).map(log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = <TypeConfig as RaftTypeConfig>::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut bytes = 0;
        let records = entries
            .into_iter()
            .map(|entry| {
                let body = record::body(&entry.payload)?;
                bytes += body.len() as u64;
                Ok(LogRecord { pos: log_pos(&entry.log_id), body })
            })
            .collect::<io::Result<Vec<_>>>()?;
        self.appended_bytes.fetch_add(bytes, Ordering::Relaxed);
        let done = Box::new(move |result: Result<(), LogError>| callback.io_completed(result.map_err(failed)));
        if self.store.has_room() {
            return self.store.append(records, done).map_err(failed);
        }
        // Waiting for the disk is the only backpressure there is, and must hold up nothing but Raft.
        self.blocking(move |store| store.append(records, done)).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        let index = last.map(|id| id.index());
        self.blocking(move |store| store.truncate_after(index)).await
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        let upto = log_pos(&upto);
        self.blocking(move |store| store.purge(upto)).await
    }
}
