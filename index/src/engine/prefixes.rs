//! A tenant's prefixes in the order in which its quota takes them. It is kept for tenants that have been over a quota, and
//! found by a walk over the store when that is needed first.

use super::Index;
use super::heap::{Firsts, Top};
use super::names::Pins;
use crate::store::Edit;
use crate::view::names::{Member, Tenant};
use std::sync::Arc;

impl Index {
    /// Notes that an edit brought entries in, or refreshed them, at `seen_us`.
    pub(crate) fn note_prefixes(&mut self, member: &Member, edit: &Edit, seen_us: u64) {
        let tenant = &member.domain.tenant;
        let Some(prefixes) = &self.tenants[tenant.at].prefixes else { return };
        // A holder as fresh as the one that leads may lead by its tokens, and then the prefix goes earlier.
        let is_older = edit.newest_us.is_some_and(|newest_us| seen_us <= newest_us);
        if edit.born > 0 || is_older || prefixes.is_exact_at(seen_us) {
            self.note_prefix(tenant, edit.slab, seen_us);
        }
    }

    /// Notes that a prefix of a slab has lost a holder and not all.
    pub(crate) fn note_lost_lead(&mut self, member: &Member, slab: u32) {
        let tenant = &member.domain.tenant;
        if self.tenants[tenant.at].prefixes.is_some()
            && let Some(oldest_us) = self.store.oldest_us(slab)
        {
            self.note_prefix(tenant, slab, oldest_us);
        }
    }

    fn note_prefix(&mut self, tenant: &Tenant, slab: u32, seen_us: u64) {
        let Self { tenants, store, .. } = self;
        if let Some(prefixes) = &mut tenants[tenant.at].prefixes {
            prefixes.note(0, seen_us, slab);
            prefixes.tidy(|slab| store.oldest_us(slab).map(|oldest_us| (0, oldest_us)));
        }
    }

    /// The prefix that a tenant's quota takes first.
    fn first_prefix(&mut self, tenant: &Tenant) -> Option<Top> {
        if self.tenants[tenant.at].prefixes.is_none() {
            let mut prefixes = Firsts::default();
            for slab in 0..self.store.slabs() {
                let partition = self.store.partition_of(slab).and_then(|at| self.partitions.get(at));
                if partition.is_some_and(|partition| partition.shared.domain.tenant.id == tenant.id) {
                    prefixes.note(0, self.store.oldest_us(slab).unwrap_or(0), slab);
                }
            }
            self.tenants[tenant.at].prefixes = Some(prefixes);
        }
        let Self { tenants, store, partitions, .. } = self;
        let prefixes = tenants[tenant.at].prefixes.as_mut()?;
        prefixes.first(|slab| {
            let partition = &partitions.get(store.partition_of(slab)?)?.shared;
            let is_own = partition.domain.tenant.id == tenant.id;
            is_own.then(|| store.first_prefix(slab)).flatten().map(|first| (first, Arc::clone(partition)))
        })
    }

    /// Removes a tenant's first prefixes with all their holders, at most `limit` of them and no more once `budget` entries
    /// are gone; returns how many prefixes and entries that were.
    pub(crate) fn take_prefixes(&mut self, pins: &Pins<'_>, tenant: &Tenant, limit: u64, budget: u64) -> (u64, u64) {
        let Some(top) = self.first_prefix(tenant) else { return (0, 0) };
        let holders = self.store.holders(top.slab, top.first.position);
        if let [seat] = holders[..]
            && top.first.start < top.first.position
        {
            let count = self.run(&top.first, (top.slab, seat), limit.min(budget), top.next);
            let end = top.first.position + 1;
            let removed = self.remove_seat(pins, &top, seat, (end - count, end));
            return (removed, removed);
        }
        let position = top.first.position;
        let removed =
            holders.into_iter().map(|seat| self.remove_seat(pins, &top, seat, (position, position + 1))).sum();
        (u64::from(removed > 0), removed)
    }

    fn remove_seat(&mut self, pins: &Pins<'_>, top: &Top, seat: u32, range: (u32, u32)) -> u64 {
        let domain = self.domains.get(top.partition.domain.at);
        let member = domain.and_then(|domain| domain.seats.get(seat as usize).copied());
        match member.filter(|&at| self.members.get(at).is_some()) {
            Some(at) => self.remove(pins, at, top.slab, range),
            None => 0,
        }
    }
}
