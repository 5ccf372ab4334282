//! Counting: what an entry adds to and takes from every sum that depends on it. Dead entries are in none but their
//! own count, the counts of prefixes and their partition's, which keeps the partition's name.

use super::Index;
use super::entries::Slot;
use super::names::Pins;
use crate::digest;
use crate::formula;
use crate::view::names::{Domain, Member, Scope};
use std::sync::Arc;

impl Index {
    /// The digest of an entry as it is.
    pub(crate) fn entry_digest(&self, slot: &Slot) -> u128 {
        let fields = digest::EntryFields {
            hash: slot.hash.as_bytes(),
            last_seen_us: slot.last_seen_us,
            tokens: slot.tokens,
            tier: slot.tier,
            accesses: slot.accesses,
        };
        digest::entry(&self.members[slot.member].base, &self.entries.partitions[slot.partition].base, &fields)
    }

    fn entry_bytes(&self, slot: &Slot) -> u64 {
        let partition = &self.entries.partitions[slot.partition].shared;
        formula::entry_bytes(slot.hash.as_bytes(), &partition.scheme, &partition.adapter)
    }

    /// Replaces one digest in the sums of a member.
    pub(crate) fn swap_digest(&mut self, member: u32, old: u128, new: u128) {
        let change = new.wrapping_sub(old);
        let member = &mut self.members[member];
        member.digest = member.digest.wrapping_add(change);
        self.digest = self.digest.wrapping_add(change);
    }

    /// Counts an entry that has just got its slot.
    pub(crate) fn count_entry(&mut self, at: u32) {
        let slot = self.entries[at].clone();
        let (digest, bytes) = (self.entry_digest(&slot), self.entry_bytes(&slot));
        let partition = &mut self.entries.partitions[slot.partition];
        partition.entries += 1;
        let scope_at = partition.scope;
        let member = &mut self.members[slot.member];
        member.entries += 1;
        if member.retirement.is_some() {
            self.totals.dead_entries += 1;
            return;
        }
        member.digest = member.digest.wrapping_add(digest);
        member.bytes += bytes;
        let in_scope = member.scopes.entry(scope_at).or_insert(0);
        *in_scope += 1;
        let (is_first, shared) = (*in_scope == 1, Arc::clone(&member.shared));
        let scope = &self.scopes[scope_at].shared;
        scope.entries.add(1);
        if is_first {
            serve(scope, &shared);
        }
        self.digest = self.digest.wrapping_add(digest);
        self.count_visible(&shared.domain, 1, bytes);
    }

    /// Uncounts an entry that is about to lose its slot, and forgets names that nothing else needs.
    pub(crate) fn uncount_entry(&mut self, pins: &Pins<'_>, slot: &Slot) {
        let (digest, bytes) = (self.entry_digest(slot), self.entry_bytes(slot));
        let scope_at = self.entries.partitions[slot.partition].scope;
        let member = &mut self.members[slot.member];
        member.entries -= 1;
        if member.retirement.is_some() {
            self.totals.dead_entries -= 1;
        } else {
            member.digest = member.digest.wrapping_sub(digest);
            member.bytes -= bytes;
            let in_scope = member.scopes.entry(scope_at).or_insert(1);
            *in_scope -= 1;
            let is_last = *in_scope == 0;
            if is_last {
                member.scopes.remove(&scope_at);
            }
            let shared = Arc::clone(&member.shared);
            let scope = &self.scopes[scope_at].shared;
            scope.entries.sub(1);
            if is_last {
                unserve(scope, &shared);
            }
            self.digest = self.digest.wrapping_sub(digest);
            self.uncount_visible(&shared.domain, 1, bytes);
        }
        let partition = &mut self.entries.partitions[slot.partition];
        partition.entries -= 1;
        if partition.entries == 0 {
            self.drop_partition(pins, slot.partition);
        }
    }

    fn count_visible(&mut self, domain: &Domain, entries: u64, bytes: u64) {
        domain.entries.add(entries);
        domain.tenant.entries.add(entries);
        self.totals.entries += entries;
        if domain.tenant.reserved {
            self.totals.reserved_entries += entries;
        } else {
            self.totals.bytes += bytes;
            self.tables.entries.add(entries);
        }
    }

    /// Uncounts entries that are no longer visible.
    pub(crate) fn uncount_visible(&mut self, domain: &Domain, entries: u64, bytes: u64) {
        domain.entries.sub(entries);
        domain.tenant.entries.sub(entries);
        self.totals.entries -= entries;
        if domain.tenant.reserved {
            self.totals.reserved_entries -= entries;
        } else {
            self.totals.bytes -= bytes;
            self.tables.entries.sub(entries);
        }
    }

    /// Counts a new prefix.
    pub(crate) fn count_prefix(&mut self, domain: &Domain) {
        self.totals.prefixes += 1;
        domain.prefixes.add(1);
        domain.tenant.prefixes.add(1);
        if let Some(model) = &self.domains[domain.at].model {
            model.prefixes.add(1);
        }
    }

    /// Uncounts a prefix without holders.
    pub(crate) fn uncount_prefix(&mut self, domain: &Domain) {
        self.totals.prefixes -= 1;
        domain.prefixes.sub(1);
        domain.tenant.prefixes.sub(1);
        if let Some(model) = &self.domains[domain.at].model {
            model.prefixes.sub(1);
        }
    }
}

/// Adds a member to those that serve a scope.
fn serve(scope: &Scope, member: &Arc<Member>) {
    let mut serving = (**scope.serving.load()).clone();
    let place = serving.partition_point(|held| held.replica < member.replica);
    serving.insert(place, Arc::clone(member));
    scope.serving.store(Arc::new(serving));
}

/// Takes a member from those that serve a scope.
pub(crate) fn unserve(scope: &Scope, member: &Arc<Member>) {
    let mut serving = (**scope.serving.load()).clone();
    serving.retain(|held| !Arc::ptr_eq(held, member));
    scope.serving.store(Arc::new(serving));
}
