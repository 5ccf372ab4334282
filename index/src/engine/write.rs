//! Entries into and out of the store, with everything that depends on them. Nothing here decides what comes or goes.

use super::Index;
use super::member::Chosen;
use super::names::Pins;
use crate::applied::Applied;
use crate::digest::EntryDigest;
use crate::store::{Block, First, Last, Place, Rank, Said};
use crate::view::names::{Member, Partition};
use std::cmp::Reverse;
use std::sync::Arc;

/// Whose entries are written, and where.
#[derive(Clone)]
pub(crate) struct Spot {
    pub(crate) member: Arc<Member>,
    pub(crate) partition: Arc<Partition>,
}

/// Token counts of neighbours in a chain are at most so far apart, where nothing else says what follows what.
const MAX_BLOCK_TOKENS: i32 = 256;

/// True when a single entry seems to continue the chain whose last entry is `last`.
pub(crate) fn continues(last: &Last, partition_at: u32, tokens: i32) -> bool {
    let step = i64::from(tokens) - i64::from(last.tokens);
    let is_likely = if last.step == 0 { step <= i64::from(MAX_BLOCK_TOKENS) } else { step == i64::from(last.step) };
    last.partition_at == partition_at && step > 0 && is_likely
}

impl Index {
    /// Writes entries or refreshes them; returns how many are new. A refresh keeps the access count. The blocks follow
    /// `last`, if anything.
    pub(crate) fn put(&mut self, spot: &Spot, blocks: &[Block<'_>], said: Said, last: Option<Last>) -> u64 {
        self.put_some(spot, blocks, said, last, false).0
    }

    /// The same where the cap may be owed victims: they are taken before an entry that could be one is refreshed.
    pub(crate) fn put_and_settle(
        &mut self,
        pins: &Pins<'_>,
        spot: &Spot,
        blocks: &[Block<'_>],
        said: Said,
        last: Option<Last>,
        applied: &mut Applied,
    ) -> u64 {
        let (added, done) = self.put_some(spot, blocks, said, last, self.owes());
        match blocks.get(done..) {
            Some(rest) if !rest.is_empty() => {
                // The member has what was just put, so it stays.
                self.settle_owed(pins, applied);
                added + self.put(spot, rest, said, self.members[spot.member.at].last)
            }
            _ => added,
        }
    }

    /// Writes entries, with `spares_older` up to those that the member has from earlier; returns how many are new, and
    /// how many of the blocks were written.
    fn put_some(
        &mut self,
        spot: &Spot,
        blocks: &[Block<'_>],
        said: Said,
        last: Option<Last>,
        spares_older: bool,
    ) -> (u64, usize) {
        let (at, partition_at) = (spot.member.at, spot.partition.at);
        let place =
            Place { domain: spot.member.domain.id, partition: spot.partition.id, partition_at, seat: spot.member.seat };
        let mut digest = EntryDigest::new(&self.members[at].base, &self.partitions[partition_at].base);
        let (mut last, mut edits) = (last, std::mem::take(&mut self.edits));
        edits.clear();
        let done = self.store.put(&place, blocks, said, &mut last, &mut digest, &mut edits, spares_older);
        self.note_fresh(done as u64, said.seen_us);
        self.members[at].last = last;
        let mut added = 0;
        for edit in edits.iter().filter(|edit| edit.changed) {
            // The slab may have been put together with another since.
            let bytes = if edit.added > 0 { self.bytes_of(u64::from(edit.width), partition_at) } else { 0 };
            self.count(at, partition_at, edit, bytes);
            self.note_put(at, edit, said.seen_us);
            self.note_prefixes(&spot.member, edit, said.seen_us);
            added += u64::from(edit.added);
        }
        self.edits = edits;
        (added, done)
    }

    /// Removes a member's entries, dead or alive, at positions of a slab; returns how many there were.
    pub(crate) fn remove(&mut self, pins: &Pins<'_>, at: u32, slab: u32, range: (u32, u32)) -> u64 {
        let Some(partition_at) = self.store.partition_of(slab) else { return 0 };
        let bytes = self.entry_bytes(slab, partition_at);
        let member = &self.members[at];
        let shared = Arc::clone(&member.shared);
        let mut digest = EntryDigest::new(&member.base, &self.partitions[partition_at].base);
        let wanted = member.retirement.is_none().then_some(&mut digest);
        let Some(edit) = self.store.withdraw(slab, shared.seat, range, wanted) else { return 0 };
        self.count(at, partition_at, &edit, bytes);
        if edit.removed > edit.died {
            self.note_lost_lead(&shared, slab);
        }
        self.drop_if_bare(pins, at, partition_at);
        u64::from(edit.removed)
    }

    /// Removes the first entries of a member, the chosen one first, at most `limit` and none that may come after
    /// `bound`; returns how many.
    pub(crate) fn take(
        &mut self,
        pins: &Pins<'_>,
        chosen: Chosen,
        by_use: bool,
        limit: u64,
        bound: Option<Rank>,
    ) -> u64 {
        let Chosen { member, mut top } = chosen;
        let mut taken = 0;
        loop {
            let Some(seat) = self.members.get(member).map(|member| member.shared.seat) else { return taken };
            let first_bound = bound.into_iter().chain(top.next).min();
            let count = self.run(&top.first, (top.slab, seat), limit - taken, first_bound);
            let end = top.first.position + 1;
            let removed = self.remove(pins, member, top.slab, (end - count, end));
            taken += removed;
            if removed == 0 || taken >= limit {
                return taken;
            }
            match self.first_of_member(member, by_use) {
                Some(next) if bound.is_none_or(|bound| rank(&next.first) < bound) => top = next,
                _ => return taken,
            }
        }
    }

    /// How many entries of a span go before `bound`, the first of them counted in any case.
    pub(crate) fn run(&self, first: &First, (slab, seat): (u32, u32), limit: u64, bound: Option<Rank>) -> u32 {
        let Some(span) = self.store.span(slab, seat, first.position) else { return 1 };
        let most = u64::from(first.position - first.start + 1).min(limit.max(1)) as u32;
        let is_before = |position: u32| {
            let rank = (first.accesses, first.seen_us, Reverse(span.tokens(position)));
            bound.is_none_or(|bound| rank < bound)
        };
        (1..most).find(|&count| !is_before(first.position - count)).unwrap_or(most)
    }

    /// Forgets a member that has neither entries nor stats.
    pub(crate) fn drop_if_empty(&mut self, pins: &Pins<'_>, at: u32) {
        let member = &self.members[at];
        if member.entries > 0 || member.shared.stats.load().is_some() {
            return;
        }
        let shared = Arc::clone(&member.shared);
        match member.retirement {
            Some(number) => {
                self.retired.remove(&number);
                self.tenants[shared.domain.tenant.at].retired.remove(&number);
            }
            None => {
                self.unlink_heads(at);
                self.unname_member(pins, &shared);
            }
        }
        self.drop_member(pins, at);
    }
}

/// What ranks an entry before its key.
pub(crate) fn rank(first: &First) -> Rank {
    (first.accesses, first.seen_us, Reverse(first.tokens))
}
