//! Entries that producers say they have evicted. Engines evict chains block by block, so the events of a batch that take
//! neighbours of one stretch are gathered and taken together: the state after the batch is the same, and what comes
//! between them is applied after what was gathered before it.

use super::Index;
use super::names::Pins;
use crate::view::names::{Member, is_same};
use std::sync::Arc;

/// A stretch that is to be taken from a member, in one span of a slab.
#[derive(Copy, Clone)]
pub(crate) struct Evicting {
    /// The member.
    at: u32,
    slab: u32,
    start: u32,
    end: u32,
    /// The span that it is in.
    low: u32,
    high: u32,
    /// True when the slab's partition is the only one of the (tenant, model): its hashes are nowhere else then.
    is_alone: bool,
}

impl Evicting {
    /// Takes a position in that is next to the stretch; false if it isn't.
    fn takes(&mut self, position: u32) -> bool {
        if position >= self.low && position + 1 == self.start {
            self.start = position;
            true
        } else if position < self.high && position == self.end {
            self.end = position + 1;
            true
        } else {
            false
        }
    }
}

impl Index {
    /// Takes a hash from a replica; from one adapter alone, if one is named.
    pub(crate) fn evict(
        &mut self,
        pins: &Pins<'_>,
        (tenant, model, replica): (&str, &str, &str),
        hash: &[u8],
        adapter: &str,
    ) {
        if self.is_next_evicted((tenant, model, replica), hash, adapter) {
            return;
        }
        let Some(member) = self.find_member(pins, tenant, model, replica) else { return };
        let mut places = std::mem::take(&mut self.places);
        self.find_evicted(&member, hash, adapter, &mut places);
        let is_joined = match (&places[..], &mut self.evicting) {
            (&[(slab, position)], Some(evicting)) => {
                evicting.at == member.at && evicting.slab == slab && evicting.takes(position)
            }
            _ => false,
        };
        if !is_joined {
            let is_moved = self.evicting.is_some_and(|evicting| places.iter().any(|place| place.0 == evicting.slab));
            self.finish_evicting(pins);
            if is_moved {
                self.find_evicted(&member, hash, adapter, &mut places);
            }
            match places[..] {
                [(slab, position)] => self.evicting = self.begin_evicting(&member, slab, position),
                _ => places.iter().for_each(|&(slab, position)| {
                    self.remove(pins, member.at, slab, (position, position + 1));
                }),
            }
            self.last_member = self.members.get(member.at).map(|state| Arc::clone(&state.shared));
        }
        places.clear();
        self.places = places;
    }

    /// Takes what was gathered.
    pub(crate) fn finish_evicting(&mut self, pins: &Pins<'_>) {
        if let Some(Evicting { at, slab, start, end, .. }) = self.evicting.take() {
            self.remove(pins, at, slab, (start, end));
        }
    }

    /// True when a hash is beside what was gathered last, and now gathered too: then nothing has to be looked for.
    fn is_next_evicted(&mut self, (tenant, model, replica): (&str, &str, &str), hash: &[u8], adapter: &str) -> bool {
        let Some(evicting) = self.evicting.as_mut().filter(|evicting| evicting.is_alone && adapter.is_empty()) else {
            return false;
        };
        let Some(member) = &self.last_member else { return false };
        if member.at != evicting.at
            || !is_same(&member.replica, replica)
            || !is_same(&member.domain.model, model)
            || !is_same(&member.domain.tenant.name, tenant)
        {
            return false;
        }
        let Evicting { slab, start, end, .. } = *evicting;
        let store = &self.store;
        let before = start.checked_sub(1).filter(|&before| store.is_at(slab, before, hash));
        let position = before.or_else(|| store.is_at(slab, end, hash).then_some(end));
        position.is_some_and(|position| evicting.takes(position))
    }

    /// Where a member has a hash, in one adapter alone if one is named.
    fn find_evicted(&self, member: &Member, hash: &[u8], adapter: &str, places: &mut Vec<(u32, u32)>) {
        places.clear();
        self.store.find_all(member.domain.id, hash, places);
        places.retain(|&(slab, position)| {
            let partition = self.store.partition_of(slab).and_then(|at| self.partitions.get(at));
            let is_named = partition.is_some_and(|p| adapter.is_empty() || *p.shared.adapter == *adapter);
            is_named && self.store.span(slab, member.seat, position).is_some()
        });
    }

    fn begin_evicting(&self, member: &Member, slab: u32, position: u32) -> Option<Evicting> {
        let span = self.store.span(slab, member.seat, position)?;
        let is_alone = self.domains.get(member.domain.at).is_some_and(|domain| domain.partitions == 1);
        let (low, high) = (span.start, span.end);
        Some(Evicting { at: member.at, slab, start: position, end: position + 1, low, high, is_alone })
    }
}
