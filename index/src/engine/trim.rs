//! Limits on size: the cap on entries and bytes, and tenants' quotas on prefixes. Victims are chosen by value alone,
//! in the contract's order, each in logarithmic time, and never more of them than a budget.

use super::Index;
use super::names::Pins;
use crate::applied::Applied;
use crate::limits::RESERVED_TENANT;
use std::cmp::Reverse;
use std::sync::Arc;

impl Index {
    /// Most entries removed by one sweep.
    pub(crate) fn slice_entries(&self) -> u64 {
        u64::from(self.meta.slice_entries).max(1)
    }

    /// True when the cap is exceeded.
    pub(crate) fn is_over_cap(&self) -> bool {
        let entries = self.totals.entries - self.totals.reserved_entries;
        let over = |value: u64, cap: u64| cap > 0 && value > cap;
        over(entries, self.meta.max_entries) || over(self.totals.bytes, self.meta.max_bytes)
    }

    /// Removes victims until the cap holds, at most `budget`; returns how many.
    pub(crate) fn enforce_cap(&mut self, pins: &Pins<'_>, budget: u64, applied: &mut Applied) -> u64 {
        let mut removed = 0;
        while removed < budget && self.is_over_cap() {
            self.sync_heads();
            let mut firsts = self.orders.victims.iter();
            let Some(first) = firsts.next() else { break };
            let (mut slot, at) = (first.age.slot, self.entries[first.age.slot].member);
            // Victims come in runs of one member, as its chains do. While its next one is before everybody else's the
            // orders over all members need not be brought up to date.
            let bound = firsts.next().map(|next| (next.accesses, next.age.last_seen_us, next.age.tokens));
            let is_lfu = self.is_lfu(slot);
            loop {
                match is_lfu {
                    true => applied.evictions.lfu_cap += 1,
                    false => applied.evictions.lru_cap += 1,
                }
                self.remove_entry(pins, slot);
                removed += 1;
                if removed == budget || !self.is_over_cap() {
                    break;
                }
                let next = self.members.get(at).and_then(|member| member.victim(&self.entries, is_lfu));
                match next.filter(|&(accesses, next)| self.is_before(accesses, next, bound)) {
                    Some((_, next)) => slot = next,
                    None => break,
                }
            }
        }
        removed
    }

    /// True when an entry is before the rest by what ranks first; a tie is for the whole key to decide.
    fn is_before(&self, accesses: u32, slot: u32, bound: Option<(u32, u64, Reverse<i32>)>) -> bool {
        let held = &self.entries[slot];
        bound.is_none_or(|bound| (accesses, held.last_seen_us, Reverse(held.tokens)) < bound)
    }

    /// Removes a tenant's oldest prefixes until its quota holds; stops once `budget` entries are gone and returns how
    /// many that were. What is dead goes first, so that nothing visible makes room for it.
    pub(crate) fn enforce_quota(&mut self, pins: &Pins<'_>, tenant: &str, budget: u64, applied: &mut Applied) -> u64 {
        if tenant == RESERVED_TENANT {
            return 0;
        }
        let Some(&quota) = self.policies.quotas.get(tenant) else { return 0 };
        let Some(tenant) = pins.tables.tenant(tenant, &pins.names).map(Arc::clone) else { return 0 };
        let (mut removed, mut prefixes) = (0, 0);
        while removed < budget && tenant.prefixes.get() > quota {
            self.sync_heads();
            let state = &self.tenants[tenant.at];
            if let Some(&number) = state.retired.first() {
                if !self.purge_one(pins, number) {
                    break;
                }
                applied.purged += 1;
                removed += 1;
                continue;
            }
            let mut firsts = state.prefix_heads.iter();
            let Some(first) = firsts.next() else { break };
            let (mut slot, at) = (first.slot, self.entries[first.slot].member);
            let bound = firsts.next().map(|next| (0, next.last_seen_us, next.tokens));
            // As with the cap: prefixes that one member leads go in runs. Other holders don't lead, so the first
            // prefixes of other members stay what they are.
            loop {
                removed += self.remove_prefix(pins, slot).max(1);
                prefixes += 1;
                if removed >= budget || tenant.prefixes.get() <= quota {
                    break;
                }
                let next = self.members.get(at).and_then(|member| member.oldest_prefix(&self.entries));
                match next.filter(|&next| self.is_before(0, next, bound)) {
                    Some(next) => slot = next,
                    None => break,
                }
            }
        }
        if prefixes > 0 {
            *applied.evictions.over_quota.entry(tenant.name.to_string()).or_insert(0) += prefixes;
        }
        removed
    }

    /// True when an entry belongs to an LFU tenant.
    pub(crate) fn is_lfu(&self, slot: u32) -> bool {
        let member = &self.members[self.entries[slot].member].shared;
        self.tenants[member.domain.tenant.at].is_lfu
    }
}
