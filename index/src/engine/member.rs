//! A replica in a (tenant, model) as the writer keeps it: sums over its entries, its entries in order, and which of
//! them stand in the orders over all members. ALL_CLEARED retires a member whole, which is why sums and orders are
//! kept per member at all.

use super::Index;
use super::entries::Entries;
use super::heap::{ByAge, ByUse, Heap};
use super::orders::{AgeKey, VictimKey};
use crate::digest::NameHash;
use crate::view::names::{Domain, Member};
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
    /// Its entries by age, apart by whether they have been used and whether they lead their prefix.
    ages: [Heap<ByAge>; 4],
    /// Its used entries by use.
    uses: Heap<ByUse>,
    heads: Heads,
    is_dirty: bool,
}

/// The keys under which a member stands in the orders over all members.
#[derive(Clone, Default)]
struct Heads {
    age: Option<AgeKey>,
    prefix: Option<AgeKey>,
    victim: Option<VictimKey>,
}

impl MemberState {
    pub(crate) fn new(shared: Arc<Member>, base: NameHash) -> Self {
        Self {
            shared,
            base,
            retirement: None,
            entries: 0,
            digest: 0,
            bytes: 0,
            scopes: BTreeMap::new(),
            ages: Default::default(),
            uses: Heap::default(),
            heads: Heads::default(),
            is_dirty: false,
        }
    }

    /// Puts a new entry of this member into its orders.
    pub(crate) fn push(&mut self, entries: &mut Entries, slot: u32) {
        let class = entries[slot].class();
        self.ages[class].push(entries, slot);
        if entries[slot].accesses > 0 {
            self.uses.push(entries, slot);
        }
    }

    /// Takes an entry out of its orders.
    pub(crate) fn remove(&mut self, entries: &mut Entries, slot: u32) {
        let class = entries[slot].class();
        self.ages[class].remove(entries, slot);
        if entries[slot].accesses > 0 {
            self.uses.remove(entries, slot);
        }
    }

    /// Puts an entry whose age has changed back into order.
    pub(crate) fn fix(&mut self, entries: &mut Entries, slot: u32) {
        let class = entries[slot].class();
        self.ages[class].fix(entries, slot);
        if entries[slot].accesses > 0 {
            self.uses.fix(entries, slot);
        }
    }

    /// Makes an entry lead its prefix, or no longer.
    pub(crate) fn set_leads(&mut self, entries: &mut Entries, slot: u32, leads: bool) {
        if entries[slot].leads != leads {
            self.ages[entries[slot].class()].remove(entries, slot);
            entries.standing(slot).leads = leads;
            self.ages[entries[slot].class()].push(entries, slot);
        }
    }

    /// The oldest entry.
    pub(crate) fn oldest(&self, entries: &Entries) -> Option<u32> {
        self.first_of(entries, [0, 1, 2, 3])
    }

    /// The oldest entry that leads its prefix.
    pub(crate) fn oldest_prefix(&self, entries: &Entries) -> Option<u32> {
        self.first_of(entries, [1, 3])
    }

    /// The entry that the cap takes first, with the count that it goes by.
    pub(crate) fn victim(&self, entries: &Entries, is_lfu: bool) -> Option<(u32, u32)> {
        if !is_lfu {
            return Some((0, self.oldest(entries)?));
        }
        let unused = self.first_of(entries, [0, 1]).map(|slot| (0, slot));
        unused.or_else(|| self.uses.first().map(|slot| (entries[slot].accesses, slot)))
    }

    fn first_of<const N: usize>(&self, entries: &Entries, classes: [usize; N]) -> Option<u32> {
        let firsts = classes.into_iter().filter_map(|class| self.ages[class].first());
        firsts.min_by(|&a, &b| entries.by_age(a, b))
    }
}

/// True when a slot still is what a key says.
fn is_current(entries: &Entries, key: &AgeKey, slot: u32) -> bool {
    let held = &entries[slot];
    let partition = &entries.partitions[held.partition].shared;
    key.slot == slot
        && key.last_seen_us == held.last_seen_us
        && key.tokens.0 == held.tokens
        && Arc::ptr_eq(&key.scheme, &partition.scheme)
        && Arc::ptr_eq(&key.adapter, &partition.adapter)
        && key.hash == held.hash
}

fn age_key(entries: &Entries, member: &Member, slot: u32) -> AgeKey {
    let held = &entries[slot];
    let partition = &entries.partitions[held.partition].shared;
    let Domain { tenant, model, .. } = &*member.domain;
    AgeKey {
        last_seen_us: held.last_seen_us,
        tokens: Reverse(held.tokens),
        tenant: Arc::clone(&tenant.name),
        model: Arc::clone(model),
        scheme: Arc::clone(&partition.scheme),
        adapter: Arc::clone(&partition.adapter),
        hash: held.hash.clone(),
        replica: Arc::clone(&member.replica),
        slot,
    }
}

impl Index {
    /// Notes that a member's first entries may have changed.
    pub(crate) fn soil(&mut self, at: u32) {
        let member = &mut self.members[at];
        if !member.is_dirty && member.retirement.is_none() {
            member.is_dirty = true;
            self.orders.dirty.push(at);
        }
    }

    /// Brings the orders over all members up to date.
    pub(crate) fn sync_heads(&mut self) {
        while let Some(at) = self.orders.dirty.pop() {
            // The position may be somebody else's by now, for whom this is one check too many.
            if self.members.get(at).is_some_and(|member| member.retirement.is_none()) {
                self.members[at].is_dirty = false;
                self.sync_member(at);
            }
        }
    }

    fn sync_member(&mut self, at: u32) {
        let Self { members, entries, tenants, orders, .. } = self;
        let member = &mut members[at];
        let shared = Arc::clone(&member.shared);
        let tenant = &mut tenants[shared.domain.tenant.at];
        let key = |slot| age_key(entries, &shared, slot);
        let same = |held: &Option<AgeKey>, slot: Option<u32>| match (held, slot) {
            (Some(held), Some(slot)) => is_current(entries, held, slot),
            (None, None) => true,
            _ => false,
        };

        let oldest = member.oldest(entries);
        if !same(&member.heads.age, oldest) {
            if let Some(old) = std::mem::replace(&mut member.heads.age, oldest.map(key)) {
                orders.ages.remove(tenant.ttl, &old);
            }
            if let Some(new) = &member.heads.age {
                orders.ages.insert(tenant.ttl, new.clone());
            }
        }
        if shared.domain.tenant.reserved {
            return;
        }
        let prefix = member.oldest_prefix(entries);
        if !same(&member.heads.prefix, prefix) {
            if let Some(old) = std::mem::replace(&mut member.heads.prefix, prefix.map(key)) {
                tenant.prefix_heads.remove(&old);
            }
            tenant.prefix_heads.extend(member.heads.prefix.clone());
        }
        let victim = member.victim(entries, tenant.is_lfu);
        let is_same = match (&member.heads.victim, victim) {
            (Some(held), Some((accesses, slot))) => held.accesses == accesses && is_current(entries, &held.age, slot),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            let new = victim.map(|(accesses, slot)| VictimKey { accesses, age: key(slot) });
            if let Some(old) = std::mem::replace(&mut member.heads.victim, new) {
                orders.victims.remove(&old);
            }
            orders.victims.extend(member.heads.victim.clone());
        }
    }

    /// Takes a member out of the orders over all members, as it is about to vanish, retire or change its rules.
    pub(crate) fn unlink_heads(&mut self, at: u32) {
        let Self { members, tenants, orders, .. } = self;
        let member = &mut members[at];
        let tenant = &mut tenants[member.shared.domain.tenant.at];
        let heads = std::mem::take(&mut member.heads);
        if let Some(key) = heads.age {
            orders.ages.remove(tenant.ttl, &key);
        }
        if let Some(key) = heads.prefix {
            tenant.prefix_heads.remove(&key);
        }
        if let Some(key) = heads.victim {
            orders.victims.remove(&key);
        }
    }
}
