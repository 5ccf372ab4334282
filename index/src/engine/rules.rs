//! Changes of what governs the state: policies, parameters, and LFU credits, which are only taken where a policy asks
//! for them.

use super::Index;
use super::names::Pins;
use super::orders::TtlClass;
use super::stats;
use crate::command::{ClusterMeta, Credit};
use crate::digest::{self, EntryDigest};
use crate::limits::MAX_ID_BYTES;
use crate::policy::{Eviction, PolicySet, PolicySource};
use crate::view::Settings;
use crate::view::settings;
use std::sync::Arc;

impl Index {
    /// Replaces the policy set. Nothing is trimmed here: quotas and TTLs act at the next update or sweep.
    pub(crate) fn set_policies(&mut self, new: &PolicySet, source: PolicySource) {
        let governs = |tenant: &String| (1..=MAX_ID_BYTES).contains(&tenant.len());
        let mut new = new.clone();
        new.policies.retain(|tenant, _| governs(tenant));
        new.quotas.retain(|tenant, _| governs(tenant));
        let old_digest = digest::policies(&self.policies, self.policy_source);
        let new_digest = digest::policies(&new, source);
        self.digest = self.digest.wrapping_sub(old_digest).wrapping_add(new_digest);

        let changed: Vec<(u32, TtlClass, bool)> = self
            .tenants
            .iter()
            .filter_map(|(at, tenant)| {
                let name = &tenant.shared.name;
                let (ttl, is_lfu) = (TtlClass::of(&new, name), settings::is_lfu(&new, name));
                ((ttl, is_lfu) != (tenant.ttl, tenant.is_lfu)).then_some((at, ttl, is_lfu))
            })
            .collect();
        let is_moving = |tenant: u32| changed.binary_search_by_key(&tenant, |&(at, ..)| at).is_ok();
        let moving: Vec<u32> = self
            .members
            .iter()
            .filter(|(_, member)| member.retirement.is_none() && is_moving(member.shared.domain.tenant.at))
            .map(|(at, _)| at)
            .collect();
        for &member in &moving {
            self.unlink_heads(member);
            self.link_stats(member, false);
        }
        for (at, ttl, is_lfu) in changed {
            let tenant = &mut self.tenants[at];
            (tenant.ttl, tenant.is_lfu) = (ttl, is_lfu);
        }
        for &member in &moving {
            let is_lfu = self.is_lfu(member);
            self.members[member].set_lfu(is_lfu);
            self.soil(member);
            self.link_stats(member, true);
        }
        let without: Vec<u32> =
            self.tenants.iter().filter(|(_, t)| !new.quotas.contains_key(&*t.shared.name)).map(|(at, _)| at).collect();
        without.into_iter().for_each(|at| self.tenants[at].prefixes = None);
        self.has_lfu = new.policies.values().any(|policy| policy.eviction == Eviction::Lfu);
        self.policies = new;
        self.policy_source = source;
        self.publish_settings();
    }

    /// Takes the set of a file, unless somebody pushed one.
    pub(crate) fn offer_policies(&mut self, offered: &PolicySet) {
        if self.policy_source == PolicySource::File {
            self.set_policies(offered, PolicySource::File);
        }
    }

    /// Puts a member's stats row into the order of its tenant's TTL, or takes it out.
    fn link_stats(&mut self, at: u32, is_in: bool) {
        let member = &self.members[at].shared;
        let Some(report) = member.stats.load_full() else { return };
        let (key, ttl) = (stats::key(member, &report), self.tenants[member.domain.tenant.at].ttl);
        match is_in {
            true => self.orders.stats.insert(ttl, key),
            false => self.orders.stats.remove(ttl, &key),
        }
    }

    /// Replaces the parameters. A lower cap is worked off by updates and sweeps.
    pub(crate) fn set_meta(&mut self, meta: &ClusterMeta) {
        self.meta = meta.clone();
        self.publish_settings();
    }

    /// Tells readers what governs lookups.
    pub(crate) fn publish_settings(&self) {
        let settings = Settings {
            policies: self.policies.clone(),
            policy_source: self.policy_source,
            default_ttl_us: self.meta.default_ttl_us,
        };
        self.tables.settings.store(Arc::new(settings));
    }

    /// Adds accesses to entries of LFU tenants that are still there; entries of no tokens gain none.
    pub(crate) fn apply_credit(&mut self, credit: &Credit) {
        if !settings::is_lfu(&self.policies, &credit.tenant) {
            return;
        }
        let tables = Arc::clone(&self.tables);
        let pins = Pins::new(&tables);
        let Some(member) = self.find_member(&pins, &credit.tenant, &credit.model, &credit.replica) else { return };
        let scope = tables.scope(member.domain.id, &credit.scheme, &pins.names);
        let partition = scope.and_then(|scope| tables.partition(scope.id, &credit.adapter, &pins.names));
        let Some(partition) = partition else { return };
        let (at, seat) = (member.at, member.seat);
        let mut digest = EntryDigest::new(&self.members[at].base, &self.partitions[partition.at].base);
        let mut credits = credit.hashes.iter().zip(credit.counts.iter().copied()).peekable();
        while let Some((hash, count)) = credits.next() {
            let Some((slab, position)) = self.store.find(member.domain.id, partition.id, hash) else { continue };
            // Those that follow in the slab as in the credit, and count the same, are credited together.
            let mut end = position + 1;
            while credits.next_if(|&(hash, more)| more == count && self.store.is_at(slab, end, hash)).is_some() {
                end += 1;
            }
            if count == 0 {
                continue;
            }
            let edit = self.store.credit(slab, seat, (position, end), count, &mut digest);
            if let Some(edit) = edit.filter(|edit| edit.changed) {
                self.count(at, partition.at, &edit, 0);
            }
        }
    }
}
