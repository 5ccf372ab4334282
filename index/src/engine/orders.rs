//! The orders in which entries and stats go, by value alone: of each member only its first entry takes part here, the
//! rest wait in the member's own heaps. The keys spell every tie-break out, so their derived order is the contract's.

use crate::block_hash::BlockHash;
use crate::policy::PolicySet;
use crate::view::names::{Member, Partition};
use crate::view::settings;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The age order of entries: oldest first, larger token counts first among equals, then key and replica ascending.
#[derive(Clone)]
pub(crate) struct AgeKey {
    pub(crate) last_seen_us: u64,
    pub(crate) tokens: Reverse<i32>,
    pub(crate) partition: Arc<Partition>,
    pub(crate) hash: BlockHash,
    pub(crate) member: Arc<Member>,
}

fn tenant(key: &AgeKey) -> &str {
    &key.partition.domain.tenant.name
}

impl Ord for AgeKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |key: &Self| (key.last_seen_us, key.tokens);
        rank(self).cmp(&rank(other)).then_with(|| {
            let is_one_domain = Arc::ptr_eq(&self.member.domain, &other.member.domain);
            let tenants = if is_one_domain { Ordering::Equal } else { tenant(self).cmp(tenant(other)) };
            tenants
                .then_with(|| self.partition.key_order(&other.partition))
                .then_with(|| self.hash.cmp(&other.hash))
                .then_with(|| self.member.replica.cmp(&other.member.replica))
                .then_with(|| self.member.at.cmp(&other.member.at))
        })
    }
}

impl PartialOrd for AgeKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for AgeKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for AgeKey {}

/// The cap's order: the access count in an LFU tenant, 0 in an LRU one, then age.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VictimKey {
    pub(crate) accesses: u32,
    pub(crate) age: AgeKey,
}

/// The age order of stats rows: longest without a sign of life first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StatsKey {
    pub(crate) liveness_us: u64,
    pub(crate) tenant: Arc<str>,
    pub(crate) model: Arc<str>,
    pub(crate) replica: Arc<str>,
    pub(crate) member: u32,
}

/// Which TTL governs a tenant. Those without their own share a class, so that a new default moves nothing.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TtlClass {
    Default,
    Own(u64),
}

impl TtlClass {
    pub(crate) fn of(policies: &PolicySet, tenant: &str) -> Self {
        settings::policy_ttl_us(policies, tenant).map_or(Self::Default, Self::Own)
    }

    pub(crate) fn ttl_us(self, default_us: u64) -> u64 {
        match self {
            Self::Default => default_us,
            Self::Own(ttl_us) => ttl_us,
        }
    }
}

/// Keys apart by TTL, so that the expired ones of each class are its first.
pub(crate) struct Aging<K>(BTreeMap<TtlClass, BTreeSet<K>>);

impl<K> Default for Aging<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

/// What a key of [`Aging`] ages from.
pub(crate) trait Ages: Ord {
    fn since_us(&self) -> u64;
}

impl Ages for AgeKey {
    fn since_us(&self) -> u64 {
        self.last_seen_us
    }
}

impl Ages for StatsKey {
    fn since_us(&self) -> u64 {
        self.liveness_us
    }
}

impl<K: Ages> Aging<K> {
    pub(crate) fn insert(&mut self, class: TtlClass, key: K) {
        self.0.entry(class).or_default().insert(key);
    }

    pub(crate) fn remove(&mut self, class: TtlClass, key: &K) {
        if let Some(keys) = self.0.get_mut(&class) {
            keys.remove(key);
            if keys.is_empty() {
                self.0.remove(&class);
            }
        }
    }

    /// What follows the first of all keys whose age is at least its TTL among such keys.
    pub(crate) fn second_expired(&self, now_us: u64, default_ttl_us: u64) -> Option<&K> {
        let mut firsts: Vec<&K> = Vec::new();
        for (class, keys) in &self.0 {
            let ttl_us = class.ttl_us(default_ttl_us);
            firsts.extend(keys.iter().take(2).filter(|key| now_us.saturating_sub(key.since_us()) >= ttl_us));
        }
        firsts.sort_unstable();
        firsts.get(1).copied()
    }

    /// The first of all keys whose age is at least its TTL.
    pub(crate) fn first_expired(&self, now_us: u64, default_ttl_us: u64) -> Option<&K> {
        let expired = |(class, keys): (&TtlClass, &'_ BTreeSet<K>)| {
            let ttl_us = class.ttl_us(default_ttl_us);
            keys.first().is_some_and(|key| now_us.saturating_sub(key.since_us()) >= ttl_us)
        };
        self.0.iter().filter(|(class, keys)| expired((class, keys))).filter_map(|(_, keys)| keys.first()).min()
    }
}

impl Aging<AgeKey> {
    /// The members whose first entry was last seen then, and has expired.
    pub(crate) fn expired_at(&self, seen_us: u64, now_us: u64, default_ttl_us: u64) -> Vec<u32> {
        let expired = self.0.iter().filter(|(class, _)| {
            let ttl_us = class.ttl_us(default_ttl_us);
            now_us.saturating_sub(seen_us) >= ttl_us
        });
        let keys = expired.flat_map(|(_, keys)| keys.iter().take_while(|key| key.last_seen_us <= seen_us));
        keys.map(|key| key.member.at).collect()
    }
}

/// All orders.
#[derive(Default)]
pub(crate) struct Orders {
    /// The first victim of each member, for the cap: where it stands, or before.
    pub(crate) victims: BTreeSet<VictimKey>,
    /// The oldest entry of each member, likewise.
    pub(crate) ages: Aging<AgeKey>,
    /// All stats rows.
    pub(crate) stats: Aging<StatsKey>,
    /// Members whose first entries may have changed.
    pub(crate) dirty: Vec<u32>,
}
