//! Limits on size: the cap on entries and bytes, and tenants' quotas on prefixes. Victims are chosen by value alone,
//! in the contract's order, each in logarithmic time, and never more of them than a budget.

use super::Index;
use super::member::Chosen;
use super::names::Pins;
use crate::applied::Applied;
use crate::formula;
use crate::limits::{MAX_HASH_BYTES, MAX_ID_BYTES, RESERVED_TENANT};
use std::sync::Arc;

impl Index {
    /// Most entries removed by one sweep.
    pub(crate) fn slice_entries(&self) -> u64 {
        u64::from(self.meta.slice_entries).max(1)
    }

    /// Entries that the cap counts: the reserved tenant's are left out.
    pub(crate) fn capped_entries(&self) -> u64 {
        self.totals.entries - self.totals.reserved_entries
    }

    /// By how many entries the cap is exceeded.
    pub(crate) fn excess_entries(&self) -> u64 {
        excess(self.capped_entries(), self.meta.max_entries)
    }

    /// By how many bytes it is.
    pub(crate) fn excess_bytes(&self) -> u64 {
        excess(self.totals.bytes, self.meta.max_bytes)
    }

    /// True when the cap is exceeded.
    pub(crate) fn is_over_cap(&self) -> bool {
        self.excess_entries() > 0 || self.excess_bytes() > 0
    }

    /// Removes victims until the cap holds, at most `budget`; returns how many.
    pub(crate) fn enforce_cap(&mut self, pins: &Pins<'_>, budget: u64, applied: &mut Applied) -> u64 {
        let mut removed = 0;
        // What is too many once is too many for what is left of the budget, too.
        let mut too_many_us = None;
        while removed < budget && self.is_over_cap() {
            let Some(chosen) = self.first_victim() else { break };
            let is_lfu = self.is_lfu(chosen.member);
            let next = self.orders.victims.iter().nth(1);
            let bound = next.map(|next| (next.accesses, next.age.last_seen_us, next.age.tokens));
            let seen_us = Some(chosen.top.first.seen_us);
            if too_many_us != seen_us {
                if let Some(taken) = self.take_victims(pins, &chosen, budget - removed) {
                    applied.evictions.lru_cap += taken;
                    removed += taken;
                    continue;
                }
                too_many_us = seen_us;
            }
            // As many as are too many by either cap, so that no more go than one by one would.
            let limit = self.entries_over_cap(&chosen).clamp(1, budget - removed);
            let taken = self.take(pins, chosen, is_lfu, limit, bound);
            match is_lfu {
                true => applied.evictions.lfu_cap += taken,
                false => applied.evictions.lru_cap += taken,
            }
            removed += taken;
            if taken == 0 {
                break;
            }
        }
        removed
    }

    /// Removes all victims as old as the chosen one, if so many must go by the cap on entries, and their tenants are
    /// LRU; returns how many.
    fn take_victims(&mut self, pins: &Pins<'_>, chosen: &Chosen, budget: u64) -> Option<u64> {
        let over = self.excess_entries();
        let seen_us = chosen.top.first.seen_us;
        let as_old = self.orders.victims.iter().take_while(|key| key.age.last_seen_us <= seen_us && key.accesses == 0);
        let members: Vec<u32> = as_old.map(|key| key.age.member.at).collect();
        if over < 2 || members.is_empty() || members.iter().any(|&member| self.is_lfu(member)) {
            return None;
        }
        let taken = self.take_group(pins, &members, seen_us, over.min(budget))?;
        Some(taken.iter().map(|(_, removed)| removed).sum())
    }

    /// How many entries like the chosen one must go at least until the cap holds.
    fn entries_over_cap(&self, chosen: &Chosen) -> u64 {
        let (entries, bytes) = (self.excess_entries(), self.excess_bytes());
        if bytes == 0 {
            return entries;
        }
        // Entries of other widths may follow: by bytes, one at a time is what surely isn't too many.
        let each = self.store.partition_of(chosen.top.slab).map_or(1, |at| self.entry_bytes(chosen.top.slab, at));
        let largest = each.max(formula::ENTRY_BYTES + (MAX_HASH_BYTES + 2 * MAX_ID_BYTES) as u64);
        entries.max(bytes / largest)
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
            if let Some(&number) = self.tenants[tenant.at].retired.first() {
                if self.purge_some(pins, number, 1) == 0 {
                    break;
                }
                applied.purged += 1;
                removed += 1;
                continue;
            }
            let too_many = tenant.prefixes.get() - quota;
            let (gone, entries) = self.take_prefixes(pins, &tenant, too_many, budget - removed);
            prefixes += gone;
            removed += entries;
            if gone == 0 {
                break;
            }
        }
        if prefixes > 0 {
            *applied.evictions.over_quota.entry(tenant.name.to_string()).or_insert(0) += prefixes;
        }
        removed
    }

    /// True when a member's tenant is LFU.
    pub(crate) fn is_lfu(&self, member: u32) -> bool {
        self.tenants[self.members[member].shared.domain.tenant.at].is_lfu
    }
}

/// What is above a cap; a cap of 0 is none.
fn excess(value: u64, cap: u64) -> u64 {
    if cap > 0 { value.saturating_sub(cap) } else { 0 }
}
