//! Limits on size: the cap on entries and bytes, and tenants' quotas on prefixes. Victims are chosen by value alone,
//! in the contract's order, each in logarithmic time, and never more of them than a budget.

use super::Index;
use super::names::Pins;
use crate::applied::Applied;
use crate::limits::RESERVED_TENANT;
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
            let Some(victim) = self.orders.victims.first() else { break };
            let slot = victim.age.slot;
            match self.is_lfu(slot) {
                true => applied.evictions.lfu_cap += 1,
                false => applied.evictions.lru_cap += 1,
            }
            self.remove_entry(pins, slot);
            removed += 1;
        }
        removed
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
            } else if let Some(oldest) = state.prefix_heads.first() {
                removed += self.remove_prefix(pins, oldest.slot).max(1);
                prefixes += 1;
            } else {
                break;
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
