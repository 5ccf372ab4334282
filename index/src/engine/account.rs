//! Counting: what an edit of the store adds to and takes from every sum that depends on it. Dead entries are in none but
//! their own count, the counts of prefixes and their partition's, which keeps the partition's name.

use super::Index;
use super::names::Pins;
use crate::formula;
use crate::store::Edit;
use crate::view::names::{Domain, Member, Scope};
use std::sync::Arc;

impl Index {
    /// Bytes of an entry in a slab.
    pub(crate) fn entry_bytes(&self, slab: u32, partition: u32) -> u64 {
        self.bytes_of(self.store.width_of(slab), partition)
    }

    /// Bytes of an entry with a hash of that width.
    pub(crate) fn bytes_of(&self, width: u64, partition: u32) -> u64 {
        let partition = &self.partitions[partition].shared;
        formula::entry_bytes(width, &partition.scheme, &partition.adapter)
    }

    /// Counts what an edit of a member's entries in a partition came to, each of `bytes`.
    pub(crate) fn count(&mut self, at: u32, partition_at: u32, edit: &Edit, bytes: u64) {
        let (added, removed) = (u64::from(edit.added), u64::from(edit.removed));
        let partition = &mut self.partitions[partition_at];
        partition.entries = partition.entries + added - removed;
        let scope_at = partition.scope;
        let member = &mut self.members[at];
        member.touch();
        member.entries = member.entries + added - removed;
        let shared = Arc::clone(&member.shared);
        if member.retirement.is_some() {
            self.totals.dead_entries = self.totals.dead_entries + added - removed;
        } else {
            member.digest = member.digest.wrapping_add(edit.digest);
            self.digest = self.digest.wrapping_add(edit.digest);
            member.bytes = member.bytes + added * bytes - removed * bytes;
            if added != removed {
                self.count_in_scope(&shared, scope_at, added, removed);
                self.count_visible(&shared.domain, added, added * bytes);
                self.uncount_visible(&shared.domain, removed, removed * bytes);
            }
        }
        if edit.born != edit.died {
            self.count_prefixes(&shared.domain, u64::from(edit.born), u64::from(edit.died));
        }
    }

    fn count_in_scope(&mut self, member: &Arc<Member>, scope_at: u32, added: u64, removed: u64) {
        let in_scope = self.members[member.at].scopes.entry(scope_at).or_insert(0);
        let was = *in_scope;
        *in_scope = was + added - removed;
        let is = *in_scope;
        if is == 0 {
            self.members[member.at].scopes.remove(&scope_at);
        }
        let scope = &self.scopes[scope_at].shared;
        scope.entries.add(added);
        scope.entries.sub(removed);
        if was == 0 {
            serve(scope, member);
        } else if is == 0 {
            unserve(scope, member);
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

    fn count_prefixes(&mut self, domain: &Domain, born: u64, died: u64) {
        self.totals.prefixes = self.totals.prefixes + born - died;
        let model = self.domains[domain.at].model.as_ref().map(|model| &model.prefixes);
        for count in [&domain.prefixes, &domain.tenant.prefixes].into_iter().chain(model) {
            count.add(born);
            count.sub(died);
        }
    }

    /// Forgets a partition and a member that have nothing left.
    pub(crate) fn drop_if_bare(&mut self, pins: &Pins<'_>, member: u32, partition: u32) {
        if self.partitions[partition].entries == 0 {
            self.drop_partition(pins, partition);
        }
        self.drop_if_empty(pins, member);
    }
}

/// Adds a member to those that serve a scope.
fn serve(scope: &Scope, member: &Arc<Member>) {
    let mut serving = (**scope.serving.load()).clone();
    let place = serving.partition_point(|held| held.replica < member.replica);
    serving.insert(place, Arc::clone(member));
    scope.servers.set(serving.len() as u64);
    scope.serving.store(Arc::new(serving));
}

/// Takes a member from those that serve a scope.
pub(crate) fn unserve(scope: &Scope, member: &Arc<Member>) {
    let mut serving = (**scope.serving.load()).clone();
    serving.retain(|held| !Arc::ptr_eq(held, member));
    scope.servers.set(serving.len() as u64);
    scope.serving.store(Arc::new(serving));
}
