//! What policies, quotas and the cap may have taken, for the model of [`super::truth`]: which entries may be gone, and which
//! limits hold now. It doesn't say who goes first where that depends on more than ages: who may have been taken may be shown
//! or not, and everybody else must be.

use super::truth::tenant;
use prefixd_index::command::ClusterMeta;
use prefixd_index::policy::{Eviction, PolicySet};
use std::collections::{BTreeMap, BTreeSet};

/// What a key holds by the log.
#[derive(Copy, Clone, Debug)]
pub(super) struct Shown {
    pub(super) update: u64,
    pub(super) seen_us: u64,
    /// A quota, the cap or a sweep may have taken it.
    pub(super) may_be_gone: bool,
}

/// Entries by (client, hash).
pub(super) type Entries = BTreeMap<(u64, u8), Shown>;

/// What governs the index by the log.
#[derive(Default)]
pub(super) struct Limits {
    policies: PolicySet,
    is_pushed: bool,
    /// Until the first leader has put its own into the log, the default that every index begins with.
    meta: ClusterMeta,
    /// Tenants whose quota was enforced since it was last changed.
    fits: BTreeSet<&'static str>,
}

const TENANTS: [&str; 2] = ["t0", "t1"];

impl Limits {
    pub(super) fn set_meta(&mut self, meta: ClusterMeta) {
        self.meta = meta;
    }

    /// A set was pushed, or offered by a node's file.
    pub(super) fn set_policies(&mut self, set: &PolicySet, is_pushed: bool) {
        if is_pushed || !self.is_pushed {
            self.policies = set.clone();
            self.is_pushed |= is_pushed;
            self.fits.clear();
        }
    }

    pub(super) fn ttl_us(&self, tenant: &str) -> u64 {
        let own = self.policies.policies.get(tenant).and_then(|policy| policy.ttl_us);
        own.unwrap_or(self.meta.default_ttl_us)
    }

    /// An update of a tenant, by all of it: its quota and the cap are enforced. Gives how many entries may be gone since.
    pub(super) fn after_update(&mut self, of: &'static str, entries: &mut Entries) -> usize {
        self.enforce_quota(of, entries) + self.enforce_cap(entries)
    }

    /// A sweep: what has expired goes, and all limits are enforced.
    pub(super) fn after_sweep(&mut self, now_us: u64, entries: &mut Entries) -> usize {
        let mut taken = 0;
        for ((client, _), shown) in entries.iter_mut() {
            let is_expired = now_us.saturating_sub(shown.seen_us) >= self.ttl_us(tenant(*client));
            taken += usize::from(is_expired && !shown.may_be_gone);
            shown.may_be_gone |= is_expired;
        }
        taken + TENANTS.map(|of| self.enforce_quota(of, entries)).iter().sum::<usize>() + self.enforce_cap(entries)
    }

    /// Prefixes that are not surely among the freshest, so many as the quota lets be, may be gone.
    fn enforce_quota(&mut self, of: &'static str, entries: &mut Entries) -> usize {
        let Some(&quota) = self.policies.quotas.get(of) else { return 0 };
        self.fits.insert(of);
        // A prefix is as fresh as its freshest holder: at most that of all there may be, at least that of those there are.
        let mut freshest: BTreeMap<u8, (u64, Option<u64>)> = BTreeMap::new();
        for ((_, hash), shown) in entries.iter().filter(|((client, _), _)| tenant(*client) == of) {
            let (at_most, at_least) = freshest.entry(*hash).or_default();
            *at_most = shown.seen_us.max(*at_most);
            if !shown.may_be_gone {
                *at_least = Some(shown.seen_us).max(*at_least);
            }
        }
        let is_safe = |hash: u8| {
            let own = freshest[&hash].1;
            let rivals = freshest.iter().filter(|(other, (at_most, _))| **other != hash && Some(*at_most) >= own);
            (rivals.count() as u64) < quota
        };
        mark(entries, |(client, hash), _| tenant(client) == of && !is_safe(hash))
    }

    /// Entries that are not surely among the freshest, so many as the cap lets be, may be gone. Where a tenant counts
    /// accesses, any may.
    fn enforce_cap(&self, entries: &mut Entries) -> usize {
        let Some(cap) = self.most_entries() else { return 0 };
        if entries.len() as u64 <= cap {
            return 0;
        }
        let counts_accesses = self.policies.policies.values().any(|policy| policy.eviction == Eviction::Lfu);
        let seen: Vec<u64> = entries.values().map(|shown| shown.seen_us).collect();
        let is_safe = |own: u64| (seen.iter().filter(|other| **other >= own).count() as u64) <= cap;
        mark(entries, |_, shown| counts_accesses || !is_safe(shown.seen_us))
    }

    /// What a node that has applied everything may show at most: prefixes of a tenant, and entries of all.
    pub(super) fn most_prefixes(&self, of: &str) -> Option<u64> {
        self.fits.contains(of).then(|| self.policies.quotas[of])
    }

    /// Entries that there may be at most.
    pub(super) fn most_entries(&self) -> Option<u64> {
        Some(self.meta.max_entries).filter(|cap| *cap > 0)
    }
}

fn mark(entries: &mut Entries, is_taken: impl Fn((u64, u8), &Shown) -> bool) -> usize {
    let mut marked = 0;
    for (key, shown) in entries.iter_mut() {
        if !shown.may_be_gone && is_taken(*key, shown) {
            shown.may_be_gone = true;
            marked += 1;
        }
    }
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(seen: &[((u64, u8), u64)]) -> Entries {
        let shown = |seen_us| Shown { update: 1, seen_us, may_be_gone: false };
        seen.iter().map(|(key, seen_us)| (*key, shown(*seen_us))).collect()
    }

    fn gone(entries: &Entries) -> Vec<(u64, u8)> {
        entries.iter().filter(|(_, shown)| shown.may_be_gone).map(|(key, _)| *key).collect()
    }

    #[test]
    fn a_quota_may_take_all_but_the_freshest_prefixes_of_its_tenant() {
        let mut limits = Limits::default();
        limits.set_policies(&PolicySet { quotas: [("t0".into(), 2)].into(), ..PolicySet::default() }, true);
        assert_eq!(limits.most_prefixes("t0"), None, "nothing was enforced yet");
        // Clients 0 and 2 are of t0 and share the hash 1, which is as fresh as the fresher of the two.
        let mut held = entries(&[((0, 1), 10), ((2, 1), 40), ((0, 2), 20), ((2, 3), 30), ((1, 1), 1)]);
        limits.after_update("t0", &mut held);
        assert_eq!((gone(&held), limits.most_prefixes("t0")), (vec![(0, 2)], Some(2)));
        // Of equals any may go.
        let mut held = entries(&[((0, 1), 10), ((0, 2), 20), ((0, 3), 20), ((0, 4), 20)]);
        limits.after_update("t0", &mut held);
        assert_eq!(gone(&held).len(), 4);
        limits.set_policies(&PolicySet::default(), false);
        assert_eq!(limits.most_prefixes("t0"), Some(2), "an offer does not replace what was pushed");
    }

    #[test]
    fn the_cap_may_take_the_oldest_and_a_sweep_what_has_expired() {
        let mut limits = Limits::default();
        limits.set_meta(ClusterMeta { max_entries: 2, default_ttl_us: 1_000, ..ClusterMeta::default() });
        let mut held = entries(&[((0, 1), 10), ((1, 2), 20), ((2, 3), 30)]);
        limits.after_update("t0", &mut held);
        assert_eq!(gone(&held), vec![(0, 1)]);
        let mut held = entries(&[((0, 1), 10), ((1, 2), 20)]);
        limits.after_sweep(1_015, &mut held);
        assert_eq!(gone(&held), vec![(0, 1)]);
    }
}
