//! A replica in a (tenant, model) as the writer keeps it: sums over its entries, which come first, and which of them
//! stand in the orders over all members. ALL_CLEARED retires a member whole, which is why sums and orders are
//! kept per member at all.

use super::Index;
use super::heap::{Firsts, Top};
use super::orders::{AgeKey, VictimKey};
use crate::digest::NameHash;
use crate::store::{Edit, Last};
use crate::view::names::Member;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A member.
pub(crate) struct MemberState {
    pub(crate) shared: Arc<Member>,
    /// Stands for its names in digests.
    pub(crate) base: NameHash,
    /// The number it was retired under; from then on all its entries are dead.
    pub(crate) retirement: Option<u64>,
    /// How many entries it has.
    pub(crate) entries: u64,
    /// The sum of its entries' digests.
    pub(crate) digest: u128,
    /// The sum of its entries' bytes.
    pub(crate) bytes: u64,
    /// Its entries by scope.
    pub(crate) scopes: BTreeMap<u32, u64>,
    /// Where its last entry was put: a single one that continues it goes there too.
    pub(crate) last: Option<Last>,
    /// The slabs that it has entries in, by age.
    pub(crate) ages: Firsts,
    /// The same by use, while its tenant is LFU.
    uses: Option<Firsts>,
    heads: Heads,
    is_dirty: bool,
}

/// The keys under which a member stands in the orders over all members: where its first entries do, or before.
#[derive(Clone, Default)]
struct Heads {
    age: Option<AgeKey>,
    victim: Option<VictimKey>,
    /// The entry that `victim` is of, while nothing of the member has changed since.
    victim_top: Option<Top>,
}

impl MemberState {
    pub(crate) fn new(shared: Arc<Member>, base: NameHash, is_lfu: bool) -> Self {
        Self {
            shared,
            base,
            retirement: None,
            entries: 0,
            digest: 0,
            bytes: 0,
            scopes: BTreeMap::new(),
            last: None,
            ages: Firsts::default(),
            uses: is_lfu.then(Firsts::default),
            heads: Heads::default(),
            is_dirty: false,
        }
    }

    /// Forgets what is only true while nothing of it changes.
    pub(crate) fn touch(&mut self) {
        self.heads.victim_top = None;
    }

    /// Begins to order its entries by use, or ceases to.
    pub(crate) fn set_lfu(&mut self, is_lfu: bool) {
        self.uses = is_lfu.then(|| {
            let mut uses = Firsts::default();
            self.ages.slabs().for_each(|slab| uses.note(0, 0, slab));
            uses
        });
    }

    /// True when the head of an order may now be behind an entry seen then.
    fn overtakes(&self, seen_us: u64) -> bool {
        let is_first = |key: Option<&AgeKey>| key.is_none_or(|key| seen_us <= key.last_seen_us);
        is_first(self.heads.age.as_ref()) || is_first(self.heads.victim.as_ref().map(|key| &key.age))
    }
}

/// Whose entry is first, and which.
pub(crate) struct Chosen {
    pub(crate) member: u32,
    pub(crate) top: Top,
}

impl Index {
    /// Notes in the orders that an edit brought entries of a member in, or refreshed them, at `seen_us`.
    pub(crate) fn note_put(&mut self, at: u32, edit: &Edit, seen_us: u64) {
        let Self { members, store, orders, .. } = self;
        let member = &mut members[at];
        let seat = (member.shared.domain.id, member.shared.seat);
        let mut is_behind = false;
        if edit.absorbed > 0 {
            member.ages.lost(edit.absorbed);
            member.ages.tidy(|slab| store.first_of(slab, seat, false).map(|first| (0, first.seen_us)));
        }
        if member.ages.needs(edit.had_us, seen_us) {
            member.ages.note(0, seen_us, edit.slab);
            member.ages.tidy(|slab| store.first_of(slab, seat, false).map(|first| (0, first.seen_us)));
            is_behind = member.overtakes(seen_us);
        }
        let may_lower = edit.added > 0 || edit.newest_us.is_none_or(|newest_us| seen_us <= newest_us);
        if let Some(uses) = member.uses.as_mut().filter(|_| may_lower) {
            uses.note(0, 0, edit.slab);
            uses.tidy(|slab| store.first_of(slab, seat, true).map(|first| (first.accesses, first.seen_us)));
            is_behind = true;
        }
        if is_behind && !member.is_dirty && member.retirement.is_none() {
            member.is_dirty = true;
            orders.dirty.push(at);
        }
    }

    /// Notes that a member's first entries may have changed.
    pub(crate) fn soil(&mut self, at: u32) {
        let member = &mut self.members[at];
        if !member.is_dirty && member.retirement.is_none() {
            member.is_dirty = true;
            self.orders.dirty.push(at);
        }
    }

    /// A member's oldest entry, or the one that the cap takes first.
    pub(crate) fn first_of_member(&mut self, at: u32, by_use: bool) -> Option<Top> {
        let Self { members, store, partitions, .. } = self;
        let member = members.get_mut(at)?;
        let seat = (member.shared.domain.id, member.shared.seat);
        let heap = match &mut member.uses {
            Some(uses) if by_use => uses,
            _ => &mut member.ages,
        };
        heap.first(|slab| {
            let first = store.first_of(slab, seat, by_use)?;
            Some((first, Arc::clone(&partitions.get(store.partition_of(slab)?)?.shared)))
        })
    }

    /// Brings the orders over all members up to date with what came in.
    pub(crate) fn sync_heads(&mut self) {
        while let Some(at) = self.orders.dirty.pop() {
            // The position may be somebody else's by now, for whom this is one check too many.
            if self.members.get(at).is_some_and(|member| member.retirement.is_none()) {
                self.members[at].is_dirty = false;
                self.sync_age(at);
                self.sync_victim(at);
            }
        }
    }

    /// The oldest of all entries that have expired.
    pub(crate) fn first_expired(&mut self) -> Option<Chosen> {
        loop {
            self.sync_heads();
            let member = self.orders.ages.first_expired(self.time_us, self.meta.default_ttl_us)?.member.at;
            if let Some(top) = self.sync_age(member) {
                return Some(Chosen { member, top });
            }
        }
    }

    /// The entry that the cap takes first.
    pub(crate) fn first_victim(&mut self) -> Option<Chosen> {
        loop {
            self.sync_heads();
            let member = self.orders.victims.first()?.age.member.at;
            // A slab may have been moved together under it, for what others had there.
            if let Some(top) = self.members.get_mut(member)?.heads.victim_top.take()
                && self.store.is_at(top.slab, top.first.position, top.first.hash.as_bytes())
            {
                return Some(Chosen { member, top });
            }
            if let Some(top) = self.sync_victim(member) {
                return Some(Chosen { member, top });
            }
        }
    }

    /// Puts a member where its oldest entry stands; returns that if it stood there already.
    fn sync_age(&mut self, at: u32) -> Option<Top> {
        let top = self.first_of_member(at, false);
        let Self { members, tenants, orders, .. } = self;
        let member = members.get_mut(at)?;
        let ttl = tenants[member.shared.domain.tenant.at].ttl;
        if let (Some(held), Some(top)) = (&member.heads.age, &top)
            && is_current(held, top)
        {
            return Some(top.clone());
        }
        let new = top.map(|top| age_key(&member.shared, &top));
        if let Some(old) = std::mem::replace(&mut member.heads.age, new) {
            orders.ages.remove(ttl, &old);
        }
        if let Some(new) = &member.heads.age {
            orders.ages.insert(ttl, new.clone());
        }
        None
    }

    /// The same for the entry that the cap takes first. The reserved tenant has none.
    fn sync_victim(&mut self, at: u32) -> Option<Top> {
        let tenant = &self.members.get(at)?.shared.domain.tenant;
        if tenant.reserved {
            return None;
        }
        let is_lfu = self.tenants[tenant.at].is_lfu;
        let top = self.first_of_member(at, is_lfu);
        let Self { members, orders, .. } = self;
        let member = members.get_mut(at)?;
        if let (Some(held), Some(top)) = (&member.heads.victim, &top)
            && held.accesses == top.first.accesses
            && is_current(&held.age, top)
        {
            return Some(top.clone());
        }
        let new = top.as_ref().map(|top| VictimKey { accesses: top.first.accesses, age: age_key(&member.shared, top) });
        member.heads.victim_top = top;
        if let Some(old) = std::mem::replace(&mut member.heads.victim, new) {
            orders.victims.remove(&old);
        }
        orders.victims.extend(member.heads.victim.clone());
        None
    }

    /// Takes a member out of the orders over all members, as it is about to vanish, retire or change its rules.
    pub(crate) fn unlink_heads(&mut self, at: u32) {
        let Self { members, tenants, orders, .. } = self;
        let member = &mut members[at];
        let ttl = tenants[member.shared.domain.tenant.at].ttl;
        let heads = std::mem::take(&mut member.heads);
        if let Some(key) = heads.age {
            orders.ages.remove(ttl, &key);
        }
        if let Some(key) = heads.victim {
            orders.victims.remove(&key);
        }
    }
}

/// True when a key says what an entry is.
fn is_current(key: &AgeKey, top: &Top) -> bool {
    key.last_seen_us == top.first.seen_us
        && key.tokens.0 == top.first.tokens
        && Arc::ptr_eq(&key.partition, &top.partition)
        && key.hash == top.first.hash
}

fn age_key(member: &Arc<Member>, top: &Top) -> AgeKey {
    AgeKey {
        last_seen_us: top.first.seen_us,
        tokens: Reverse(top.first.tokens),
        partition: Arc::clone(&top.partition),
        hash: top.first.hash.clone(),
        member: Arc::clone(member),
    }
}
