//! A deliberately naive model of the state: ordered maps, full scans and full sorts, written from the contract and
//! docs/FORMATS.md. It shares the types of the log with the engine and no logic. Lookups are in [`super::model_lookup`].

use crate::command::{ClusterMeta, Command, Credit, Probe, Stamped};
use crate::delta::{Delta, Event, EventKind, Stats, Update};
use crate::policy::{Eviction, PolicySet};
use crate::{Applied, BatchOutcome, Totals};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_128;

pub(super) const PROBE: &str = "inferencecache.io/probe";

/// tenant, model, scheme, adapter, hash.
pub(super) type Key = (String, String, String, String, Vec<u8>);
/// tenant, model, replica.
pub(super) type Who = (String, String, String);

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) seen: u64,
    pub(super) tokens: i32,
    pub(super) tier: i32,
    pub(super) accesses: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) stats: Stats,
    pub(super) payload: u64,
    pub(super) liveness: u64,
}

#[derive(Clone, Default)]
pub(super) struct Model {
    pub(super) time: u64,
    pub(super) meta: ClusterMeta,
    pub(super) policies: PolicySet,
    pub(super) was_pushed: bool,
    /// session -> (sequence, stamp)
    sessions: BTreeMap<u128, (u64, u64)>,
    pub(super) live: BTreeMap<(Key, String), Entry>,
    /// retirement -> its entries
    dead: BTreeMap<u64, BTreeMap<(Key, String), Entry>>,
    pub(super) stats: BTreeMap<Who, Row>,
    retirements: u64,
    sweep_was_full: bool,
    digests: BTreeMap<u64, u128>,
}

impl Model {
    pub(super) fn apply(&mut self, index: u64, stamped: &Stamped) -> Applied {
        self.time = self.time.max(stamped.stamp_us);
        let mut out = Applied::default();
        match &stamped.command {
            Command::Deltas(batches) => {
                for batch in batches {
                    let last = self.sessions.get(&batch.session).map(|row| row.0);
                    let fresh = last.is_none() || last.is_some_and(|last| batch.sequence > last);
                    let sequence = last.unwrap_or(0).max(batch.sequence);
                    self.sessions.insert(batch.session, (sequence, self.time));
                    if fresh {
                        batch.deltas.iter().for_each(|delta| self.delta(delta, &mut out));
                        out.batches.push(BatchOutcome::Applied);
                    } else {
                        out.batches.push(BatchOutcome::Duplicate);
                    }
                }
            }
            Command::Sweep => self.sweep(&mut out),
            Command::OfferPolicy(_) if self.was_pushed => {}
            Command::SetPolicy(policies) | Command::OfferPolicy(policies) => {
                self.was_pushed |= matches!(stamped.command, Command::SetPolicy(_));
                self.policies = policies.clone();
                self.policies.policies.retain(|name, _| !name.is_empty() && name.len() <= 1024);
                self.policies.quotas.retain(|name, _| !name.is_empty() && name.len() <= 1024);
            }
            Command::AccessCredits(credits) => credits.iter().for_each(|credit| self.credit(credit)),
            Command::ClusterMeta(meta) => self.meta = meta.clone(),
            Command::Audit(audit) => {
                let ours = self.digests.get(&audit.index).copied();
                out.audit = Some(crate::AuditResult { index: audit.index, expected: audit.digest, ours });
            }
            Command::Probe(probe) => self.probe(probe, &mut out),
        }
        self.digests.insert(index, self.digest());
        out
    }

    fn delta(&mut self, delta: &Delta, out: &mut Applied) {
        let names = match delta {
            Delta::Update(u) => [&u.tenant, &u.replica, &u.model],
            Delta::Event(e) => [&e.tenant, &e.replica, &e.model],
        };
        if names[0] == PROBE {
            return;
        }
        if names.iter().any(|name| name.is_empty() || name.len() > 1024) {
            out.refused += 1;
            return;
        }
        match delta {
            Delta::Update(update) => self.update(update, out),
            Delta::Event(event) => self.event(event, out),
        }
    }

    fn at(&self, timestamp: u64) -> u64 {
        if timestamp == 0 || timestamp > self.time { self.time } else { timestamp }
    }

    fn update(&mut self, update: &Update, out: &mut Applied) {
        let seen = self.at(update.timestamp_us);
        let mut added = 0;
        for entry in &update.entries {
            let good_hash = |hash: &[u8]| !hash.is_empty() && hash.len() <= 128;
            let good_exact = entry.exact.as_ref().is_some_and(|e| good_hash(&e.hash) && e.token_count >= 0);
            let blocks: Vec<(Vec<u8>, i32)> =
                entry.chain.iter().flat_map(|chain| chain.blocks()).map(|(h, t)| (h.to_vec(), t)).collect();
            let mut before = 0i32;
            let mut negative = false;
            for (_, sum) in &blocks {
                negative |= *sum < before;
                before = *sum;
            }
            let bad_chain = entry.chain.is_some()
                && (blocks.is_empty() || blocks.len() > 65_536 || negative || blocks.iter().any(|b| !good_hash(&b.0)));
            if update.scheme.is_empty() || update.scheme.len() > 1024 {
                out.refused += 1;
                continue;
            }
            if (entry.exact.is_some() || entry.chain.is_none()) && !good_exact {
                out.refused += 1;
            }
            if bad_chain || entry.adapter.len() > 1024 {
                out.refused += 1;
                continue;
            }
            let mut write = blocks;
            if good_exact {
                let exact = entry.exact.as_ref().unwrap();
                write.push((exact.hash.clone(), exact.token_count));
            }
            let tier = if entry.tier == 0 { 1 } else { entry.tier };
            for (hash, tokens) in write {
                let key =
                    (update.tenant.clone(), update.model.clone(), update.scheme.clone(), entry.adapter.clone(), hash);
                let id = (key, update.replica.clone());
                let accesses = self.live.get(&id).map(|e| e.accesses);
                added += u64::from(accesses.is_none());
                self.live.insert(id, Entry { seen, tokens, tier, accesses: accesses.unwrap_or(0) });
            }
        }
        if let Some(stats) = &update.stats {
            let clean = |v: f32| if v.is_nan() || v.is_infinite() { 0.0 } else { v };
            let mut stats = *stats;
            (stats.hit_rate, stats.pressure) = (clean(stats.hit_rate), clean(stats.pressure));
            let who = (update.tenant.clone(), update.model.clone(), update.replica.clone());
            let liveness = self.stats.get(&who).map_or(seen, |row| row.liveness.max(seen));
            self.stats.insert(who, Row { stats, payload: seen, liveness });
        }
        out.purged += self.purge(added);
        let budget = added + self.slice();
        self.quota(&update.tenant, budget, out);
        self.cap(budget, out);
    }

    fn event(&mut self, event: &Event, out: &mut Applied) {
        let is_it =
            |key: &Key, replica: &String| key.0 == event.tenant && key.1 == event.model && *replica == event.replica;
        match &event.kind {
            EventKind::PrefixEvicted { hash, adapter } => self.live.retain(|(key, replica), _| {
                let named = is_it(key, replica) && key.4 == *hash && (adapter.is_empty() || key.3 == *adapter);
                !named
            }),
            EventKind::AllCleared => {
                let who = (event.tenant.clone(), event.model.clone(), event.replica.clone());
                self.stats.remove(&who);
                let gone: BTreeMap<_, _> =
                    self.live.iter().filter(|((k, r), _)| is_it(k, r)).map(|(k, v)| (k.clone(), v.clone())).collect();
                self.live.retain(|(key, replica), _| !is_it(key, replica));
                if !gone.is_empty() {
                    self.dead.insert(self.retirements, gone);
                    self.retirements += 1;
                }
                out.purged += self.purge(self.slice());
            }
            EventKind::ReplicaUpdated { timestamp_us } => {
                let at = self.at(*timestamp_us);
                let who = (event.tenant.clone(), event.model.clone(), event.replica.clone());
                if let Some(row) = self.stats.get_mut(&who) {
                    row.liveness = row.liveness.max(at);
                }
            }
        }
    }

    fn credit(&mut self, credit: &Credit) {
        if !self.is_lfu(&credit.tenant) {
            return;
        }
        for (hash, count) in credit.hashes.iter().zip(&credit.counts) {
            let key = (
                credit.tenant.clone(),
                credit.model.clone(),
                credit.scheme.clone(),
                credit.adapter.clone(),
                hash.to_vec(),
            );
            if let Some(entry) = self.live.get_mut(&(key, credit.replica.clone()))
                && entry.tokens != 0
            {
                entry.accesses = entry.accesses.saturating_add(*count);
            }
        }
    }

    fn probe(&mut self, probe: &Probe, out: &mut Applied) {
        let ids = [&probe.replica, &probe.model, &probe.scheme];
        if ids.iter().any(|id| id.is_empty() || id.len() > 1024) || probe.hash.is_empty() || probe.hash.len() > 128 {
            out.refused += 1;
            return;
        }
        let key = (PROBE.to_owned(), probe.model.clone(), probe.scheme.clone(), String::new(), probe.hash.clone());
        let id = (key, probe.replica.clone());
        if probe.present {
            self.live.insert(id, Entry { seen: self.time, tokens: 1, tier: 1, accesses: 0 });
        } else {
            self.live.remove(&id);
        }
    }

    // --- limits ---------------------------------------------------------------------------------------------------

    fn slice(&self) -> u64 {
        u64::from(self.meta.slice_entries.max(1))
    }

    pub(super) fn ttl(&self, tenant: &str) -> u64 {
        let own = match tenant {
            PROBE => None,
            _ => self.policies.policies.get(tenant).and_then(|p| p.ttl_us),
        };
        own.filter(|ttl| *ttl > 0).unwrap_or(self.meta.default_ttl_us)
    }

    pub(super) fn is_lfu(&self, tenant: &str) -> bool {
        tenant != PROBE && self.policies.policies.get(tenant).is_some_and(|p| p.eviction == Eviction::Lfu)
    }

    /// Purges dead entries: retirements in order, each oldest first, larger counts first, then by key.
    fn purge(&mut self, limit: u64) -> u64 {
        let mut purged = 0;
        while purged < limit {
            let Some(number) = self.dead.keys().next().copied() else { break };
            self.purge_one(number);
            purged += 1;
        }
        purged
    }

    fn purge_one(&mut self, number: u64) {
        let entries = self.dead.get_mut(&number).unwrap();
        let first = entries.iter().min_by_key(|((key, _), e)| (e.seen, Reverse(e.tokens), (*key).clone()));
        let first = first.map(|(id, _)| id.clone()).unwrap();
        entries.remove(&first);
        if entries.is_empty() {
            self.dead.remove(&number);
        }
    }

    /// All prefixes, those of dead entries too.
    pub(super) fn prefixes(&self) -> BTreeSet<&Key> {
        let dead = self.dead.values().flat_map(|entries| entries.keys());
        self.live.keys().chain(dead).map(|(key, _)| key).collect()
    }

    fn tenant_prefixes(&self, tenant: &str) -> u64 {
        self.prefixes().iter().filter(|key| key.0 == tenant).count() as u64
    }

    fn quota(&mut self, tenant: &str, budget: u64, out: &mut Applied) -> u64 {
        let Some(&quota) = self.policies.quotas.get(tenant).filter(|_| tenant != PROBE) else { return 0 };
        let (mut removed, mut gone) = (0, 0);
        while removed < budget && self.tenant_prefixes(tenant) > quota {
            let retirement = self.dead.iter().find(|(_, entries)| entries.keys().any(|(key, _)| key.0 == tenant));
            if let Some((&number, _)) = retirement {
                self.purge_one(number);
                out.purged += 1;
                removed += 1;
                continue;
            }
            // The freshest holder stands for its prefix, of equally fresh ones the one with the largest count.
            let mut ages: BTreeMap<&Key, (u64, i32)> = BTreeMap::new();
            for ((key, _), entry) in self.live.iter().filter(|((key, _), _)| key.0 == tenant) {
                let age = ages.entry(key).or_insert((entry.seen, entry.tokens));
                *age = (*age).max((entry.seen, entry.tokens));
            }
            let oldest = ages.into_iter().min_by_key(|(key, (seen, tokens))| (*seen, Reverse(*tokens), *key));
            let oldest = oldest.map(|(key, _)| key.clone()).unwrap();
            let before = self.live.len();
            self.live.retain(|(key, _), _| *key != oldest);
            removed += (before - self.live.len()) as u64;
            gone += 1;
        }
        if gone > 0 {
            *out.evictions.over_quota.entry(tenant.to_owned()).or_default() += gone;
        }
        removed
    }

    fn is_over_cap(&self) -> bool {
        let totals = self.totals();
        (self.meta.max_entries > 0 && totals.entries - totals.reserved_entries > self.meta.max_entries)
            || (self.meta.max_bytes > 0 && totals.bytes > self.meta.max_bytes)
    }

    fn cap(&mut self, budget: u64, out: &mut Applied) -> u64 {
        let mut removed = 0;
        while removed < budget && self.is_over_cap() {
            let order = |((key, replica), e): &(&(Key, String), &Entry)| {
                let accesses = if self.is_lfu(&key.0) { e.accesses } else { 0 };
                (accesses, e.seen, Reverse(e.tokens), key.clone(), replica.clone())
            };
            let Some((id, _)) = self.live.iter().filter(|((key, _), _)| key.0 != PROBE).min_by_key(order) else {
                break;
            };
            let id = id.clone();
            *(if self.is_lfu(&id.0.0) { &mut out.evictions.lfu_cap } else { &mut out.evictions.lru_cap }) += 1;
            self.live.remove(&id);
            removed += 1;
        }
        removed
    }

    fn sweep(&mut self, out: &mut Applied) {
        let slice = self.slice();
        let mut left = slice;
        let purged = self.purge(left);
        out.purged += purged;
        left -= purged;
        while left > 0 {
            let expired = |((key, _), e): &(&(Key, String), &Entry)| self.time - e.seen >= self.ttl(&key.0);
            let order = |((key, replica), e): &(&(Key, String), &Entry)| {
                (e.seen, Reverse(e.tokens), key.clone(), replica.clone())
            };
            let Some((id, _)) = self.live.iter().filter(expired).min_by_key(order) else { break };
            let id = id.clone();
            *(if self.is_lfu(&id.0.0) { &mut out.evictions.lfu_ttl } else { &mut out.evictions.lru_ttl }) += 1;
            self.live.remove(&id);
            left -= 1;
        }
        for tenant in self.policies.quotas.keys().cloned().collect::<Vec<_>>() {
            left = left.saturating_sub(self.quota(&tenant, left, out));
        }
        left -= self.cap(left, out);
        let mut rows: Vec<(u64, Who)> = self
            .stats
            .iter()
            .filter(|(who, row)| self.time - row.liveness >= self.ttl(&who.0))
            .map(|(who, row)| (row.liveness, who.clone()))
            .collect();
        rows.sort();
        rows.truncate(slice as usize);
        for (_, who) in &rows {
            self.stats.remove(who);
        }
        out.expired_stats += rows.len() as u64;
        let mut quiet: Vec<(u64, u128)> = self
            .sessions
            .iter()
            .filter(|(_, (_, stamp))| self.time - stamp > self.meta.session_ttl_us)
            .map(|(session, (_, stamp))| (*stamp, *session))
            .collect();
        quiet.sort();
        quiet.truncate(slice as usize);
        self.sessions.retain(|session, (_, stamp)| !quiet.contains(&(*stamp, *session)));
        self.sweep_was_full = left == 0 || rows.len() as u64 == slice || quiet.len() as u64 == slice;
    }

    // --- what can be seen -----------------------------------------------------------------------------------------

    pub(super) fn wants_sweep(&self) -> bool {
        let victims = self.live.keys().any(|(key, _)| key.0 != PROBE);
        !self.dead.is_empty() || self.sweep_was_full || (self.is_over_cap() && victims)
    }

    pub(super) fn totals(&self) -> Totals {
        let mut members: BTreeSet<(&str, &str, &str)> =
            self.stats.keys().map(|(t, m, r)| (t.as_str(), m.as_str(), r.as_str())).collect();
        members.extend(self.live.keys().map(|(key, replica)| (key.0.as_str(), key.1.as_str(), replica.as_str())));
        let ours = |tenant: &str| tenant != PROBE;
        let of_entries: usize = self
            .live
            .keys()
            .filter(|(key, _)| ours(&key.0))
            .map(|(key, _)| 192 + key.2.len() + key.3.len() + key.4.len())
            .sum();
        let of_members: usize =
            members.iter().filter(|who| ours(who.0)).map(|who| 1024 + who.0.len() + who.1.len() + who.2.len()).sum();
        Totals {
            entries: self.live.len() as u64,
            reserved_entries: self.live.keys().filter(|(key, _)| !ours(&key.0)).count() as u64,
            prefixes: self.prefixes().len() as u64,
            bytes: (of_entries + of_members) as u64,
            dead_entries: self.dead.values().map(|entries| entries.len() as u64).sum(),
            stats_rows: self.stats.len() as u64,
            members: members.len() as u64,
            sessions: self.sessions.len() as u64,
        }
    }

    pub(super) fn digest(&self) -> u128 {
        let text = |tag: u8, names: &[&String]| {
            let mut bytes = vec![tag, 1];
            for name in names {
                bytes.extend((name.len() as u32).to_le_bytes());
                bytes.extend(name.as_bytes());
            }
            bytes
        };
        let mut sum = 0u128;
        let mut add = |bytes: Vec<u8>| sum = sum.wrapping_add(xxh3_128(&bytes));
        for (((tenant, model, scheme, adapter, hash), replica), e) in &self.live {
            let mut bytes = vec![1, 1];
            bytes.extend(xxh3_128(&text(5, &[tenant, model, replica])).to_le_bytes());
            bytes.extend(xxh3_128(&text(6, &[scheme, adapter])).to_le_bytes());
            bytes.extend(e.seen.to_le_bytes());
            bytes.extend(e.tokens.to_le_bytes());
            bytes.extend(e.tier.to_le_bytes());
            bytes.extend(e.accesses.to_le_bytes());
            bytes.extend(hash);
            add(bytes);
        }
        for ((tenant, model, replica), row) in &self.stats {
            let mut bytes = vec![2, 1];
            bytes.extend(xxh3_128(&text(5, &[tenant, model, replica])).to_le_bytes());
            bytes.extend(row.stats.cache_memory_bytes.to_le_bytes());
            bytes.extend(row.stats.hit_rate.to_le_bytes());
            bytes.extend(row.stats.pressure.to_le_bytes());
            bytes.extend(row.stats.t2_hit_tokens.to_le_bytes());
            bytes.extend(row.stats.t2_query_tokens.to_le_bytes());
            bytes.extend(row.payload.to_le_bytes());
            bytes.extend(row.liveness.to_le_bytes());
            add(bytes);
        }
        for (tenant, p) in &self.policies.policies {
            let mut bytes = text(3, &[tenant]);
            let mut maybe = |value: Option<Vec<u8>>| {
                bytes.push(u8::from(value.is_some()));
                bytes.extend(value.unwrap_or_default());
            };
            maybe(p.ttl_us.map(|v| v.to_le_bytes().to_vec()));
            maybe(p.minimum_prefix_tokens.map(|v| v.to_le_bytes().to_vec()));
            maybe(p.minimum_matched_tokens.map(|v| v.to_le_bytes().to_vec()));
            maybe(p.routing_floor_score.map(|v| v.to_le_bytes().to_vec()));
            maybe(p.lookup_timeout_ms.map(|v| v.to_le_bytes().to_vec()));
            maybe(Some(vec![u8::from(p.eviction == Eviction::Lfu)]));
            maybe(p.affinity_routing.map(|v| vec![u8::from(v)]));
            maybe(p.strategy.map(|s| {
                vec![u8::from(s.enable_chain_matching), u8::from(s.require_chain), u8::from(s.enable_tenant_hot)]
            }));
            add(bytes);
        }
        for (tenant, quota) in &self.policies.quotas {
            let mut bytes = text(4, &[tenant]);
            bytes.extend(quota.to_le_bytes());
            add(bytes);
        }
        if self.was_pushed {
            add(vec![7, 1]);
        }
        sum
    }
}
