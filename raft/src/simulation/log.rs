//! openraft's log over a simulated disk, with the real encoding of records.

use super::SimConfig;
use super::disk::{Change, Disk};
use super::world::{Invariant, World};
use crate::record;
use crate::types::{Entry, LogId, RaftVote, log_id, log_pos, raft_vote, stored_vote};
use openraft::OptionalSend;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use prefixd_storage::LogRecord;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// The log of one node.
#[derive(Clone)]
pub(super) struct SimLog {
    pub(super) disk: Arc<Disk>,
    pub(super) world: Arc<World>,
    /// The opening of the log that this is; an ended Raft keeps the one that failed.
    pub(super) opening: u64,
}

impl SimLog {
    fn entries(&self, start: u64, end: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        self.disk.read(start..end.max(start), max_bytes)?.into_iter().map(record::from_record).collect()
    }
}

impl RaftLogReader<SimConfig> for SimLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        self.entries(start, end, usize::MAX)
    }

    async fn read_vote(&mut self) -> Result<Option<RaftVote>, io::Error> {
        Ok(self.disk.seen(|content| content.vote).and_then(raft_vote))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.entries(start, end, self.world.shape.read_bytes)
    }
}

impl RaftLogStorage<SimConfig> for SimLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<SimConfig>, io::Error> {
        let (purged, last) = self.disk.seen(|content| (content.purged, content.last()));
        Ok(LogState { last_purged_log_id: purged.map(log_id), last_log_id: last.map(log_id) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> Result<(), io::Error> {
        self.disk.write_through(&self.world, self.opening, Change::Vote(stored_vote(vote))).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.disk.note_committed(committed.as_ref().map(log_pos));
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.disk.seen(|content| content.committed).map(log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<SimConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records = entries
            .into_iter()
            .map(|entry| Ok(LogRecord { pos: log_pos(&entry.log_id), body: record::body(&entry.payload)? }))
            .collect::<io::Result<Vec<_>>>()?;
        let last = self.disk.seen(|content| content.last());
        if let (Some(last), Some(first)) = (last, records.first()) {
            self.world.holds(Invariant::Positions, first.pos.index == last.index + 1, || {
                format!("a record {:?} is appended after {last:?}", first.pos)
            });
        }
        let done = Box::new(move |synced| callback.io_completed(synced));
        self.disk.write(&self.world, self.opening, Change::Append(records), done)
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        self.disk.write_through(&self.world, self.opening, Change::Truncate(last.map(|id| id.index()))).await
    }

    async fn purge(&mut self, upto: LogId) -> Result<(), io::Error> {
        self.disk.write_through(&self.world, self.opening, Change::Purge(log_pos(&upto))).await
    }
}
