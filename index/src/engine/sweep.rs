//! One slice of background removal. In this order, and of entries never more than a slice in all: dead ones, expired
//! ones, prefixes over quota, victims of the cap; beside them expired stats and sessions, a slice of each.

use super::Index;
use super::names::Pins;
use crate::applied::Applied;
use std::sync::Arc;

impl Index {
    pub(crate) fn sweep(&mut self, applied: &mut Applied) {
        let tables = Arc::clone(&self.tables);
        let pins = Pins::new(&tables);
        let slice = self.slice_entries();
        let purged = self.purge(&pins, slice);
        applied.purged += purged;
        let mut left = slice - purged;
        left -= self.expire_entries(&pins, left, applied);
        let tenants: Vec<String> = match left {
            0 => Vec::new(),
            _ => self.policies.quotas.keys().cloned().collect(),
        };
        for tenant in tenants {
            // The last prefix removed may have more holders than were left.
            left = left.saturating_sub(self.enforce_quota(&pins, &tenant, left, applied));
        }
        left -= self.enforce_cap(&pins, left, applied);
        let stats = self.expire_all_stats(&pins, slice);
        applied.expired_stats += stats;
        let sessions = self.sessions.expire(self.time_us, self.meta.session_ttl_us, slice);
        self.sweep_was_full = left == 0 || stats == slice || sessions == slice;
    }

    fn expire_entries(&mut self, pins: &Pins<'_>, limit: u64, applied: &mut Applied) -> u64 {
        let mut expired = 0;
        while expired < limit {
            self.sync_heads();
            let first = self.orders.ages.first_expired(self.time_us, self.meta.default_ttl_us);
            let Some(slot) = first.map(|key| key.slot) else { break };
            match self.is_lfu(slot) {
                true => applied.evictions.lfu_ttl += 1,
                false => applied.evictions.lru_ttl += 1,
            }
            self.remove_entry(pins, slot);
            expired += 1;
        }
        expired
    }

    fn expire_all_stats(&mut self, pins: &Pins<'_>, limit: u64) -> u64 {
        let mut expired = 0;
        while expired < limit {
            let first = self.orders.stats.first_expired(self.time_us, self.meta.default_ttl_us);
            let Some(member) = first.map(|key| key.member) else { break };
            self.expire_stats(pins, member);
            expired += 1;
        }
        expired
    }
}
