//! Producers' deltas into the state. Every value is possible here: what breaks the contract's limits is refused and
//! counted, and the rest of the update is applied.

use super::Index;
use super::names::Pins;
use super::write::{Spot, continues};
use crate::applied::Applied;
use crate::delta::{Chain, Delta, Event, EventKind, Exact, PrefixEntry, Update};
use crate::limits::{MAX_CHAIN_BLOCKS, MAX_HASH_BYTES, MAX_ID_BYTES, RESERVED_TENANT};
use crate::store::{Block, Last, Said};
use crate::view::names::is_same;

/// Single entries in a row that seem to be blocks of one chain: they are written together, as a chain is, also when
/// each comes in an update of its own.
#[derive(Default)]
pub(crate) struct Row<'u> {
    /// The last update that entries are from, and as of when.
    of: Option<(&'u Update, u64)>,
    /// The spot of the entries, or of the last one.
    spot: Option<Spot>,
    tier: i32,
    /// By how many tokens each is more than the one before; 0 for a row of one.
    step: i32,
    blocks: Vec<(&'u [u8], i32)>,
}

impl<'u> Row<'u> {
    /// True when there are entries in it, and an update says as much of its own.
    fn is_of(&self, update: &Update, at_us: u64) -> bool {
        let says = |of: &Update| {
            is_same(&of.replica, &update.replica)
                && is_same(&of.model, &update.model)
                && is_same(&of.tenant, &update.tenant)
                && is_same(&of.scheme, &update.scheme)
        };
        !self.blocks.is_empty() && self.of.is_some_and(|(of, of_us)| of_us == at_us && says(of))
    }

    /// Takes an entry in that continues the row; false if it doesn't.
    fn takes(&mut self, adapter: &str, tier: i32, exact: &'u Exact) -> bool {
        let (Some(spot), Some(&(_, tokens))) = (&self.spot, self.blocks.last()) else { return false };
        let partition_at = spot.partition.at;
        let last = Last { slab: 0, position: 0, partition_at, tokens, step: self.step };
        let is_next = *spot.partition.adapter == *adapter
            && self.tier == tier
            && continues(&last, partition_at, exact.token_count);
        if is_next {
            self.step = exact.token_count - tokens;
            self.blocks.push((&exact.hash, exact.token_count));
        }
        is_next
    }
}

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
    pub(crate) fn apply_delta<'u>(
        &mut self,
        pins: &Pins<'_>,
        delta: &'u Delta,
        stamp_us: u64,
        row: &mut Row<'u>,
        applied: &mut Applied,
    ) {
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
        match delta {
            Delta::Update(update) => self.apply_update(pins, update, stamp_us, row, applied),
            Delta::Event(event) => {
                self.finish_row(pins, row, applied);
                self.settle_owed(pins, applied);
                self.apply_event(pins, event, stamp_us, applied);
            }
        }
    }

    /// Asks for what an event will need, if it is of the (tenant, model) that was named last.
    pub(crate) fn prefetch(&self, delta: &Delta) {
        if let (Delta::Event(Event { kind: EventKind::PrefixEvicted { hash, .. }, tenant, model, .. }), Some(last)) =
            (delta, &self.last_member)
            && *last.domain.model == **model
            && *last.domain.tenant.name == **tenant
        {
            self.store.prefetch(last.domain.id, hash);
        }
    }

    fn apply_update<'u>(
        &mut self,
        pins: &Pins<'_>,
        update: &'u Update,
        stamp_us: u64,
        row: &mut Row<'u>,
        applied: &mut Applied,
    ) {
        self.finish_evicting(pins);
        let at_us = clamp_us(update.timestamp_us, stamp_us);
        if !self.may_stay_owed(&update.tenant, at_us) {
            self.settle_owed(pins, applied);
        }
        if !row.is_of(update, at_us) {
            self.finish_row(pins, row, applied);
            row.spot = None;
        }
        row.of = Some((update, at_us));
        let mut added = 0;
        if is_id(&update.scheme) {
            for entry in &update.entries {
                added += self.apply_entry(pins, update, entry, at_us, row, applied);
            }
            if update.stats.is_none() && self.is_free_of_limits(&update.tenant, row.blocks.len()) {
                // Nothing has to go, and nothing will for what is in the row.
                return;
            }
            added += self.finish_row(pins, row, applied);
        } else {
            applied.refused += update.entries.len() as u64;
        }
        if let Some(stats) = &update.stats
            && let Some(member) = self.ensure_member(pins, &update.tenant, &update.model, &update.replica)
        {
            self.set_stats(&member, stats, at_us);
        }
        if self.owe(added, &update.tenant, at_us) {
            return;
        }
        // What was cleared is purged at the pace of what comes in, so that it never piles up behind missing sweeps.
        applied.purged += self.purge(pins, added);
        let budget = added.saturating_add(self.slice_entries());
        self.enforce_quota(pins, &update.tenant, budget, applied);
        let owed = self.forget_owed();
        self.enforce_cap(pins, budget.saturating_add(owed), applied);
    }

    /// Writes what one entry stands for, unless it joins the row of single entries; returns how many entries are new.
    fn apply_entry<'u>(
        &mut self,
        pins: &Pins<'_>,
        update: &'u Update,
        entry: &'u PrefixEntry,
        last_seen_us: u64,
        row: &mut Row<'u>,
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
        let tier = if entry.tier == 0 { 1 } else { entry.tier };
        if let (None, Some(exact)) = (&entry.chain, exact)
            && row.takes(&entry.adapter, tier, exact)
        {
            return 0;
        }
        let mut added = self.finish_row(pins, row, applied);
        let mut blocks: Vec<Block<'_>> = Vec::new();
        if let Some(chain) = &entry.chain {
            blocks.reserve_exact(chain.len());
            blocks.extend(chain.blocks());
        }
        let first = blocks.first().map(|(hash, _)| *hash).or(exact.map(|exact| &exact.hash[..]));
        let Some(mut spot) = self.spot(pins, update, &entry.adapter, row.spot.take()) else { return added };
        if self.owes() && first.is_some_and(|first| self.has_older(&spot, first, last_seen_us)) {
            self.settle_owed(pins, applied);
            // Its member or partition may have gone with the last of its entries.
            let Some(anew) = self.spot(pins, update, &entry.adapter, None) else { return added };
            spot = anew;
        }
        if !blocks.is_empty() {
            let said = Said { seen_us: last_seen_us, tier, accesses: 0 };
            added += self.put_and_settle(pins, &spot, &blocks, said, None, applied);
        }
        if let Some(exact) = exact {
            (row.tier, row.step) = (tier, 0);
            row.blocks.push((&exact.hash, exact.token_count));
        }
        row.spot = Some(spot);
        added
    }

    /// True when no limit takes anything from anybody after an update of a tenant, nor would with so many entries more.
    fn is_free_of_limits(&self, tenant: &str, more: usize) -> bool {
        let fits = self.meta.max_entries == 0 || self.capped_entries() + more as u64 <= self.meta.max_entries;
        fits && self.meta.max_bytes == 0 && !self.has_retired() && !self.policies.quotas.contains_key(tenant)
    }

    /// Writes the row of single entries; returns how many are new.
    pub(crate) fn finish_row(&mut self, pins: &Pins<'_>, row: &mut Row<'_>, applied: &mut Applied) -> u64 {
        let (Some(spot), Some(&(_, tokens)), Some((_, seen_us))) = (&row.spot, row.blocks.first(), row.of) else {
            return 0;
        };
        let last = self.members[spot.member.at].last;
        let before = last.filter(|last| continues(last, spot.partition.at, tokens));
        let said = Said { seen_us, tier: row.tier, accesses: 0 };
        let added = self.put_and_settle(pins, spot, &row.blocks, said, before, applied);
        row.blocks.clear();
        added
    }

    /// True when a member has a block that was seen last before `seen_us`.
    fn has_older(&self, spot: &Spot, hash: &[u8], seen_us: u64) -> bool {
        let found = self.store.find(spot.member.domain.id, spot.partition.id, hash);
        found.is_some_and(|(slab, at)| self.store.has_older(slab, spot.member.seat, (at, at + 1), seen_us))
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
        if let EventKind::PrefixEvicted { hash, adapter } = &event.kind {
            self.evict(pins, (&event.tenant, &event.model, &event.replica), hash, adapter);
            return;
        }
        self.finish_evicting(pins);
        let member = self.find_member(pins, &event.tenant, &event.model, &event.replica);
        match &event.kind {
            EventKind::PrefixEvicted { .. } => {}
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
