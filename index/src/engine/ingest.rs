//! Producers' deltas into the state. Every value is possible here: what breaks the contract's limits is refused and
//! counted, and the rest of the update is applied.

use super::Index;
use super::names::Pins;
use super::write::{Spot, continues};
use crate::applied::Applied;
use crate::delta::{Chain, Delta, Event, EventKind, Exact, PrefixEntry, Update};
use crate::limits::{MAX_CHAIN_BLOCKS, MAX_HASH_BYTES, MAX_ID_BYTES, RESERVED_TENANT};
use crate::store::Said;
use std::sync::Arc;

/// True for an id that may name something.
fn is_id(id: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&id.len())
}

/// True for a hash that may be a key.
fn is_hash(hash: &[u8]) -> bool {
    (1..=MAX_HASH_BYTES).contains(&hash.len())
}

impl Index {
    /// One delta as of `stamp_us`.
    pub(crate) fn apply_delta(&mut self, delta: &Delta, stamp_us: u64, applied: &mut Applied) {
        let (replica, tenant, model) = match delta {
            Delta::Update(update) => (&update.replica, &update.tenant, &update.model),
            Delta::Event(event) => (&event.replica, &event.tenant, &event.model),
        };
        if tenant == RESERVED_TENANT {
            return;
        }
        if ![replica, tenant, model].into_iter().all(|id| is_id(id)) {
            applied.refused += 1;
            return;
        }
        let tables = Arc::clone(&self.tables);
        let pins = Pins::new(&tables);
        match delta {
            Delta::Update(update) => self.apply_update(&pins, update, stamp_us, applied),
            Delta::Event(event) => self.apply_event(&pins, event, stamp_us, applied),
        }
    }

    fn apply_update(&mut self, pins: &Pins<'_>, update: &Update, stamp_us: u64, applied: &mut Applied) {
        let at_us = clamp_us(update.timestamp_us, stamp_us);
        let mut added = 0;
        if is_id(&update.scheme) {
            let mut last = None;
            for entry in &update.entries {
                added += self.apply_entry(pins, update, entry, at_us, &mut last, applied);
            }
        } else {
            applied.refused += update.entries.len() as u64;
        }
        if let Some(stats) = &update.stats
            && let Some(member) = self.ensure_member(pins, &update.tenant, &update.model, &update.replica)
        {
            self.set_stats(&member, stats, at_us);
        }
        // What was cleared is purged at the pace of what comes in, so that it never piles up behind missing sweeps.
        applied.purged += self.purge(pins, added);
        let budget = added.saturating_add(self.slice_entries());
        self.enforce_quota(pins, &update.tenant, budget, applied);
        self.enforce_cap(pins, budget, applied);
    }

    /// Writes what one entry stands for; returns how many entries are new. `last` is the spot of the entry before.
    fn apply_entry(
        &mut self,
        pins: &Pins<'_>,
        update: &Update,
        entry: &PrefixEntry,
        last_seen_us: u64,
        last: &mut Option<Spot>,
        applied: &mut Applied,
    ) -> u64 {
        let is_sound = |chain: &Chain| chain.is_sound(MAX_HASH_BYTES, MAX_CHAIN_BLOCKS);
        let is_good = |exact: &&Exact| is_hash(&exact.hash) && exact.token_count >= 0;
        let exact = entry.exact.as_ref().filter(is_good);
        if exact.is_none() && (entry.exact.is_some() || entry.chain.is_none()) {
            applied.refused += 1;
        }
        let is_bad = entry.adapter.len() > MAX_ID_BYTES || entry.chain.as_ref().is_some_and(|chain| !is_sound(chain));
        if is_bad {
            applied.refused += 1;
        }
        if is_bad || (exact.is_none() && entry.chain.is_none()) {
            return 0;
        }
        let Some(spot) = self.spot(pins, update, &entry.adapter, last.take()) else { return 0 };
        let tier = if entry.tier == 0 { 1 } else { entry.tier };
        let said = Said { seen_us: last_seen_us, tier, accesses: 0 };
        let mut added = 0;
        if let Some(chain) = &entry.chain {
            let blocks: Vec<(&[u8], i32)> = chain.blocks().collect();
            added += self.put(&spot, &blocks, said, None);
        }
        if let Some(exact) = exact {
            let tokens = exact.token_count;
            let before = self.members[spot.member.at].last.filter(|last| continues(last, spot.partition.at, tokens));
            added += self.put(&spot, &[(&exact.hash, tokens)], said, before);
        }
        *last = Some(spot);
        added
    }

    fn spot(&mut self, pins: &Pins<'_>, update: &Update, adapter: &str, last: Option<Spot>) -> Option<Spot> {
        match last {
            Some(last) if *last.partition.adapter == *adapter => Some(last),
            last => {
                let member = match last {
                    Some(last) => last.member,
                    None => self.ensure_member(pins, &update.tenant, &update.model, &update.replica)?,
                };
                let partition = self.ensure_partition(pins, &member.domain, &update.scheme, adapter)?;
                Some(Spot { member, partition })
            }
        }
    }

    fn apply_event(&mut self, pins: &Pins<'_>, event: &Event, stamp_us: u64, applied: &mut Applied) {
        let member = self.find_member(pins, &event.tenant, &event.model, &event.replica);
        match &event.kind {
            EventKind::PrefixEvicted { hash, adapter } => {
                let Some(member) = member else { return };
                for (slab, position) in self.store.find_all(member.domain.id, hash) {
                    let partition = self.store.partition_of(slab).and_then(|at| self.partitions.get(at));
                    let is_named = partition.is_some_and(|p| adapter.is_empty() || *p.shared.adapter == **adapter);
                    if is_named && self.store.span(slab, member.seat, position).is_some() {
                        self.remove(pins, member.at, slab, (position, position + 1));
                    }
                }
            }
            EventKind::AllCleared => {
                if let Some(member) = member {
                    self.retire(pins, &member);
                }
                applied.purged += self.purge(pins, self.slice_entries());
            }
            EventKind::ReplicaUpdated { timestamp_us } => {
                if let Some(member) = member {
                    self.touch_stats(&member, clamp_us(*timestamp_us, stamp_us));
                }
            }
        }
    }
}

/// A producer's timestamp as the state takes it: none means the stamp, and nothing is later than the stamp.
fn clamp_us(timestamp_us: u64, stamp_us: u64) -> u64 {
    if timestamp_us == 0 { stamp_us } else { timestamp_us.min(stamp_us) }
}
