//! ALL_CLEARED: a member is retired at once, at a cost that doesn't grow with its entries. They are dead from then on
//! (no lookup, count, scope, digest or cap sees them) and are purged in slices: retirements in the order of the log,
//! each in the age order of its entries. Until then they count as prefixes.

use super::Index;
use super::account::unserve;
use super::member::Chosen;
use super::names::Pins;
use crate::view::names::Member;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Index {
    /// Retires a member and removes its stats.
    pub(crate) fn retire(&mut self, pins: &Pins<'_>, member: &Arc<Member>) {
        self.put_report(member, None);
        let state = &self.members[member.at];
        if state.entries == 0 {
            self.drop_if_empty(pins, member.at);
            return;
        }
        member.retired.store(true, Ordering::Relaxed);
        self.unlink_heads(member.at);
        self.unname_member(pins, member);
        let state = &mut self.members[member.at];
        let scopes = std::mem::take(&mut state.scopes);
        let (digest, bytes) = (std::mem::take(&mut state.digest), std::mem::take(&mut state.bytes));
        let entries = state.entries;
        self.digest = self.digest.wrapping_sub(digest);
        self.uncount_visible(&member.domain, entries, bytes);
        for (scope, in_scope) in scopes {
            let scope = &self.scopes[scope].shared;
            scope.entries.sub(in_scope);
            unserve(scope, member);
        }
        self.totals.dead_entries += entries;
        self.number_retired(member, self.next_retirement);
        self.next_retirement = self.next_retirement.wrapping_add(1);
    }

    /// Gives a member its number among the retired.
    pub(crate) fn number_retired(&mut self, member: &Member, number: u64) {
        self.members[member.at].retirement = Some(number);
        self.retired.insert(number, member.at);
        self.tenants[member.domain.tenant.at].retired.insert(number);
    }

    /// True when there are dead entries.
    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Purges at most `limit` dead entries; returns how many.
    pub(crate) fn purge(&mut self, pins: &Pins<'_>, limit: u64) -> u64 {
        let mut purged = 0;
        while purged < limit
            && let Some((&number, _)) = self.retired.first_key_value()
        {
            match self.purge_group(pins, number, limit - purged) {
                0 => break,
                some => purged += some,
            }
        }
        purged
    }

    /// The same, as many as have the same age if that is within the limit.
    fn purge_group(&mut self, pins: &Pins<'_>, number: u64, limit: u64) -> u64 {
        let Some(&member) = self.retired.get(&number) else { return 0 };
        let Some(top) = self.first_of_member(member, false) else { return 0 };
        match self.take_group(pins, &[member], top.first.seen_us, limit) {
            Some(taken) => taken.iter().map(|(_, removed)| removed).sum(),
            None => self.purge_some(pins, number, limit),
        }
    }

    /// Purges the next dead entries of one retirement, at most `limit`; returns how many.
    pub(crate) fn purge_some(&mut self, pins: &Pins<'_>, number: u64, limit: u64) -> u64 {
        let Some(&member) = self.retired.get(&number) else { return 0 };
        match self.first_of_member(member, false) {
            Some(top) => self.take(pins, Chosen { member, top }, false, limit, None),
            None => 0,
        }
    }
}
