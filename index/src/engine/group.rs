//! Entries that were last seen at the same instant, of all members, removed together. Where all of them go, which goes
//! first doesn't show; where only some do, it is by token counts and keys, and is found by those alone. Either way whole
//! stretches are removed at a time instead of entries in turn.

use super::Index;
use super::names::Pins;
use crate::store::Span;
use crate::view::names::{Member, Partition};
use std::cmp::Ordering;
use std::sync::Arc;

/// A group that is so many times what is to go is not looked through for it.
const MAX_SHARE: u64 = 16;
/// A group up to this size is looked through in any case, and so are as many slabs.
const SMALL: u64 = 64;

/// A stretch of one member's entries in a slab, with one last-seen.
struct Source {
    member: u32,
    slab: u32,
    seat: (u64, u32),
    /// It is the one of that number among those of the member in the slab with this last-seen, ascending.
    number: usize,
    span: Span,
    /// How many of its entries go: the last ones.
    count: u32,
}

impl Source {
    /// Its entries in the order in which they go.
    fn tokens(&self) -> impl Iterator<Item = i32> + '_ {
        (self.span.start..self.span.end).rev().map(|at| self.span.tokens(at))
    }
}

impl Index {
    /// Removes the first entries of the members that were last seen at `seen_us`, which none of theirs was before, at most
    /// `limit`; returns how many of whom there were, or nothing if the members have too many.
    pub(crate) fn take_group(
        &mut self,
        pins: &Pins<'_>,
        members: &[u32],
        seen_us: u64,
        limit: u64,
    ) -> Option<Vec<(u32, u64)>> {
        let mut sources = Vec::new();
        let (most, most_slabs) = (limit.saturating_mul(MAX_SHARE).max(SMALL), limit.max(SMALL));
        let mut total = 0;
        for &member in members {
            let state = self.members.get_mut(member)?;
            let seat = (state.shared.domain.id, state.shared.seat);
            let slabs = state.ages.take_at(seen_us, most_slabs);
            let are_few = slabs.len() as u64 <= most_slabs;
            for slab in slabs {
                for (number, span) in self.store.spans_at(slab, seat, seen_us).enumerate() {
                    total += u64::from(span.len());
                    sources.push(Source { member, slab, seat, number, span, count: span.len() });
                }
                // What else there is in the slab still has to be found, and all of it if nothing is removed.
                self.members[member].ages.note(0, seen_us, slab);
            }
            if !are_few || total > most || sources.len() as u64 > most_slabs {
                return None;
            }
        }
        if total > limit {
            self.share_out(&mut sources, limit);
        }
        let mut taken = Vec::new();
        // From the end on, so that the others of a slab keep their numbers. Where they are is asked anew: the slab may have
        // been moved together.
        for Source { member, slab, seat, number, count, .. } in sources.into_iter().rev().filter(|s| s.count > 0) {
            let span = self.store.spans_at(slab, seat, seen_us).nth(number);
            let Some(span) = span else { break };
            match self.remove(pins, member, slab, (span.end.saturating_sub(count), span.end)) {
                0 => break,
                removed => taken.push((member, removed)),
            }
        }
        Some(taken)
    }

    /// Says how many go of each source, so that `limit` go in all: entries with more tokens first, then by their keys.
    fn share_out(&self, sources: &mut [Source], limit: u64) {
        let mut tokens: Vec<i32> = sources.iter().flat_map(Source::tokens).collect();
        let Some(last) = usize::try_from(limit).ok().and_then(|limit| limit.checked_sub(1)) else { return };
        if last >= tokens.len() {
            return;
        }
        let (_, &mut least, _) = tokens.select_nth_unstable_by(last, |a, b| b.cmp(a));
        let mut left = limit;
        // Those that have as many as the last that goes.
        let mut equal: Vec<(Tie<'_>, usize)> = Vec::new();
        for (at, source) in sources.iter_mut().enumerate() {
            let more = source.tokens().take_while(|&tokens| tokens > least).count();
            let ties = source.tokens().skip(more).take_while(|&tokens| tokens == least).count();
            source.count = more as u32;
            left = left.saturating_sub(more as u64);
            let end = source.span.end - source.count;
            let ties = (end.saturating_sub(ties as u32)..end).rev().filter_map(|position| self.tie(source, position));
            equal.extend(ties.map(|tie| (tie, at)));
        }
        let before = |(a, _): &(Tie<'_>, usize), (b, _): &(Tie<'_>, usize)| a.cmp(b);
        if let Some(last) = usize::try_from(left).ok().and_then(|left| left.checked_sub(1))
            && last < equal.len()
        {
            equal.select_nth_unstable_by(last, before);
        }
        // Within a source those that go first are its last ones, as its hashes fall where tokens are equal.
        for (_, at) in equal.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            if let Some(source) = sources.get_mut(*at) {
                source.count += 1;
            }
        }
    }

    fn tie(&self, source: &Source, position: u32) -> Option<Tie<'_>> {
        let partition = &self.partitions.get(self.store.partition_of(source.slab)?)?.shared;
        let member = &self.members.get(source.member)?.shared;
        Some(Tie { partition, member, hash: self.store.hash_of(source.slab, position)? })
    }
}

/// What decides between entries that are equally old and have as many tokens.
struct Tie<'i> {
    partition: &'i Arc<Partition>,
    member: &'i Arc<Member>,
    hash: crate::store::HashBytes,
}

impl Tie<'_> {
    /// As the orders over all members have it.
    fn cmp(&self, other: &Self) -> Ordering {
        let (own, others) = (&self.partition.domain, &other.partition.domain);
        let tenants = if Arc::ptr_eq(own, others) { Ordering::Equal } else { own.tenant.name.cmp(&others.tenant.name) };
        tenants
            .then_with(|| self.partition.key_order(other.partition))
            .then_with(|| (*self.hash).cmp(&*other.hash))
            .then_with(|| self.member.replica.cmp(&other.member.replica))
            .then_with(|| self.member.at.cmp(&other.member.at))
    }
}
