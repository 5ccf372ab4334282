//! Ingest sessions: the last sequence of each, so that a batch that is retried after a timeout isn't applied twice.
//! Bounded; the one that was quiet longest is forgotten first.

use crate::limits::MAX_SESSIONS;
use crate::snapshot::SessionRow;
use std::collections::{BTreeMap, BTreeSet};

/// The sessions remembered.
#[derive(Clone, Default)]
pub(crate) struct Sessions {
    /// (last sequence, last stamp) by session.
    rows: BTreeMap<u128, (u64, u64)>,
    /// (last stamp, session), for forgetting.
    by_stamp: BTreeSet<(u64, u128)>,
}

impl Sessions {
    pub(crate) fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Notes a batch; true when it is to be applied: its sequence is above the session's last. Either way the
    /// session has been heard of.
    pub(crate) fn admit(&mut self, session: u128, sequence: u64, stamp_us: u64) -> bool {
        let last = self.rows.get(&session).map(|&(last, _)| last);
        let is_new = last.is_none_or(|last| sequence > last);
        let row = SessionRow { session, sequence: last.unwrap_or(sequence).max(sequence), stamp_us };
        self.put(row);
        is_new
    }

    /// Puts a row in, forgetting the quietest while there are too many.
    pub(crate) fn put(&mut self, row: SessionRow) {
        if let Some((_, stamp_us)) = self.rows.insert(row.session, (row.sequence, row.stamp_us)) {
            self.by_stamp.remove(&(stamp_us, row.session));
        }
        self.by_stamp.insert((row.stamp_us, row.session));
        while self.rows.len() > MAX_SESSIONS {
            self.forget_quietest();
        }
    }

    /// Forgets at most `limit` sessions that have been quiet for longer than `ttl_us`; returns how many.
    pub(crate) fn expire(&mut self, now_us: u64, ttl_us: u64, limit: u64) -> u64 {
        let mut forgotten = 0;
        while forgotten < limit
            && self.by_stamp.first().is_some_and(|(stamp_us, _)| now_us.saturating_sub(*stamp_us) > ttl_us)
        {
            self.forget_quietest();
            forgotten += 1;
        }
        forgotten
    }

    /// All sessions, by id.
    pub(crate) fn rows(&self) -> impl Iterator<Item = SessionRow> + '_ {
        self.rows.iter().map(|(&session, &(sequence, stamp_us))| SessionRow { session, sequence, stamp_us })
    }

    fn forget_quietest(&mut self) {
        if let Some((_, session)) = self.by_stamp.pop_first() {
            self.rows.remove(&session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeat_is_not_admitted_and_the_quietest_is_forgotten() {
        let mut sessions = Sessions::default();
        assert!(sessions.admit(7, 3, 10));
        assert!(!sessions.admit(7, 3, 11));
        assert!(!sessions.admit(7, 2, 12));
        assert!(sessions.admit(7, 4, 12));
        for session in 0..MAX_SESSIONS as u128 {
            assert!(sessions.admit(1_000 + session, 0, 13));
        }
        assert_eq!(sessions.len(), MAX_SESSIONS as u64);
        assert!(sessions.admit(7, 1, 14), "7 was quiet longest and is forgotten");
        assert!(sessions.admit(1_000, 0, 14), "then the smallest id of those as quiet as each other");
        assert_eq!(sessions.expire(23, 9, 2), 2);
        assert_eq!(sessions.expire(23, 9, u64::MAX), MAX_SESSIONS as u64 - 4);
        assert_eq!(sessions.expire(23, 9, u64::MAX), 0, "quiet for exactly the TTL is not longer");
    }
}
