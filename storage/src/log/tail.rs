//! The end of the log in memory: all that is pending, and the latest of what is durable.
//!
//! The tail is a contiguous suffix of the log. It must never let go of a record that the store does not
//! hold yet: a record is durable when the operation that brought it is, not when its index is, because a
//! truncation may lie between.

use std::collections::VecDeque;

use super::{LogPos, LogRecord};

#[derive(Default)]
pub(super) struct Tail {
    records: VecDeque<(LogRecord, u64)>,
    bytes: usize,
    limit_bytes: usize,
    /// Operations up to this one are on disk.
    durable_op: u64,
}

impl Tail {
    pub fn new(limit_bytes: usize) -> Tail {
        Tail { limit_bytes, ..Tail::default() }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Index of the first record in memory.
    pub fn first_index(&self) -> Option<u64> {
        self.records.front().map(|(record, _)| record.pos.index)
    }

    pub fn get(&self, index: u64) -> Option<&LogRecord> {
        let at = index.checked_sub(self.first_index()?)?;
        self.records.get(usize::try_from(at).ok()?).map(|(record, _)| record)
    }

    pub fn pos(&self, index: u64) -> Option<LogPos> {
        self.get(index).map(|record| record.pos)
    }

    /// Takes a record that operation `op` brings to the store.
    pub fn push(&mut self, record: LogRecord, op: u64) {
        self.bytes += record.body.len();
        self.records.push_back((record, op));
    }

    /// Drops the records behind `index`, None: all.
    pub fn truncate_after(&mut self, index: Option<u64>) {
        while self.records.back().is_some_and(|(record, _)| index.is_none_or(|index| record.pos.index > index)) {
            if let Some((record, _)) = self.records.pop_back() {
                self.bytes -= record.body.len();
            }
        }
    }

    /// Drops the records up to `index`.
    pub fn purge(&mut self, index: u64) {
        while self.records.front().is_some_and(|(record, _)| record.pos.index <= index) {
            self.pop_front();
        }
    }

    /// The records that the disk is not known to hold, in order.
    pub fn unsaved(&self) -> Vec<LogRecord> {
        let unsaved = self.records.iter().filter(|(_, op)| *op > self.durable_op);
        unsaved.map(|(record, _)| record.clone()).collect()
    }

    /// Notes that operations up to `op` are on disk, and lets go of what is too much.
    pub fn settle(&mut self, op: u64) {
        self.durable_op = op;
        while self.bytes > self.limit_bytes && self.records.front().is_some_and(|(_, op)| *op <= self.durable_op) {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        if let Some((record, _)) = self.records.pop_front() {
            self.bytes -= record.body.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn record(term: u64, index: u64) -> LogRecord {
        LogRecord { pos: LogPos { term, index }, body: Arc::from(vec![0; 10]) }
    }

    #[test]
    fn keeps_what_is_pending_and_a_bounded_rest() {
        let mut tail = Tail::new(30);
        for index in 5..15 {
            tail.push(record(1, index), index);
        }
        tail.settle(8);
        assert_eq!((tail.first_index(), tail.bytes()), (Some(9), 60));
        assert_eq!(tail.unsaved(), (9..15).map(|index| record(1, index)).collect::<Vec<_>>());
        tail.settle(14);
        assert_eq!((tail.first_index(), tail.bytes()), (Some(12), 30));
        assert_eq!(tail.pos(13), Some(LogPos { term: 1, index: 13 }));
        assert_eq!(tail.pos(11), None);
        assert_eq!(tail.pos(15), None);
        assert!(tail.unsaved().is_empty());
    }

    #[test]
    fn a_record_behind_a_pending_truncation_is_not_durable() {
        let mut tail = Tail::new(0);
        tail.push(record(1, 5), 1);
        tail.truncate_after(Some(4));
        tail.push(record(2, 5), 3);
        tail.settle(1);
        assert_eq!(tail.pos(5), Some(LogPos { term: 2, index: 5 }));
        tail.settle(3);
        assert_eq!((tail.pos(5), tail.bytes()), (None, 0));
    }

    #[test]
    fn purge_and_truncate() {
        let mut tail = Tail::new(1000);
        for index in 0..10 {
            tail.push(record(1, index), 1);
        }
        tail.purge(3);
        tail.truncate_after(Some(6));
        assert_eq!((tail.first_index(), tail.pos(7), tail.bytes()), (Some(4), None, 30));
        tail.truncate_after(None);
        assert_eq!((tail.first_index(), tail.bytes()), (None, 0));
    }
}
