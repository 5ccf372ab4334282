//! The entries as they lie in memory: slabs of hashes, and spans that say whose they are and since when. Semantically
//! it is a flat map from (partition, hash, holder) to an entry; that neighbours of a chain lie side by side is for
//! speed alone. Each key has one current position, and each position of a current slab, held by somebody or not, has
//! its slot in the table. One writer owns [`Store`]; readers have [`Shared`] and a pin. What entries mean, are counted in
//! and are removed for is decided in `engine`.
//!
//! `memory` is what they share, `space` and `readers` say when a piece of it may be reused, `table` finds keys, `slab` and
//! `span` are the layout, `records` what the writer knows of slabs, `edit` and `put` its changes, `runs` what readers ask.

mod absorb;
mod edit;
mod lowest;
#[expect(unsafe_code, reason = "memory that readers and the writer share; everything else is built on its safe face")]
mod memory;
#[cfg(all(test, loom))]
mod models;
mod put;
mod readers;
mod records;
pub(crate) mod runs;
mod slab;
mod space;
mod span;
mod table;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
mod watch;
pub(crate) mod word;

pub(crate) use edit::Edit;
pub(crate) use put::{Block, Last, Place, Said};
pub(crate) use slab::HashBytes;
pub(crate) use span::{SEAT_BITS, Span};
pub(crate) use table::Shared;
pub(crate) use watch::{SlabImage, Watch};

use crate::block_hash::BlockHash;
use records::{Record, Records};
use slab::Slab;
use space::Space;
use std::collections::VecDeque;
use std::sync::Arc;
use table::Keys;

/// All entries, for the single writer.
pub(crate) struct Store {
    shared: Arc<Shared>,
    space: Space,
    keys: Keys,
    records: Records,
    /// Slabs that were put together with others since an edit said so last.
    absorbed: u32,
    /// Pieces that readers may still be in, with the stamp of when they became unreachable.
    limbo: VecDeque<(u64, (u32, u32))>,
    retired: Vec<(u32, u32)>,
    /// The snapshot in the making.
    pub(crate) watch: Option<Watch>,
    old: Vec<Span>,
    new: Vec<Span>,
    hashes: Vec<u64>,
}

/// The first entry of a holder in a slab, in some order of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct First {
    pub(crate) accesses: u32,
    pub(crate) seen_us: u64,
    pub(crate) tokens: i32,
    pub(crate) hash: BlockHash,
    pub(crate) position: u32,
    /// From here to its position, entries follow it in this order, the last first, before any other of theirs.
    pub(crate) start: u32,
    /// What ranks first of the next entry that isn't among those.
    pub(crate) next: Option<Rank>,
}

/// What ranks entries before their keys: accesses if they count, last-seen, then larger token counts first.
pub(crate) type Rank = (u32, u64, std::cmp::Reverse<i32>);

impl Store {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            space: Space::new(),
            keys: Keys::new(),
            records: Records::default(),
            absorbed: 0,
            limbo: VecDeque::new(),
            retired: Vec::new(),
            watch: None,
            old: Vec::new(),
            new: Vec::new(),
            hashes: Vec::new(),
        }
    }

    /// How many numbers of slabs there are, those of nobody included.
    pub(crate) fn slabs(&self) -> u32 {
        self.records.end()
    }

    /// The partition of a slab, if there is one of this number.
    pub(crate) fn partition_of(&self, number: u32) -> Option<u32> {
        self.record(number).map(|record| record.partition)
    }

    fn record(&self, number: u32) -> Option<&Record> {
        self.records.get(number)
    }

    /// True when there is a slab of this number, of a partition of that domain.
    fn is_of(&self, number: u32, domain: u64) -> bool {
        self.record(number).is_some_and(|record| self.records.domain(record) == domain)
    }

    fn slab(&self, number: u32) -> Option<Slab<'_>> {
        self.record(number).map(|record| Slab::at(&self.shared.memory, record.granule))
    }

    /// Keys, those that nobody holds included.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> u64 {
        self.keys.total()
    }

    /// The bytes of the hash at a position.
    #[cfg(test)]
    pub(crate) fn hash_at(&self, number: u32, position: u32) -> Option<BlockHash> {
        self.slab(number).map(|slab| BlockHash::new(&slab.hash(position)))
    }

    /// The width of a slab's hashes.
    pub(crate) fn width_of(&self, number: u32) -> u64 {
        self.slab(number).map_or(0, |slab| u64::from(slab.shape().width))
    }

    /// Where a key is, if it is anywhere: slab and position.
    pub(crate) fn find(&self, domain: u64, partition: u64, hash: &[u8]) -> Option<(u32, u32)> {
        let Shared { memory, table, .. } = &*self.shared;
        let is_it = |at: table::At| {
            let slab = slab::slab_at(memory, at);
            slab.partition() == partition && slab.holds(at.position, hash)
        };
        let at = table.find(memory, table.hash(domain, hash), is_it)?;
        Some((slab::slab_at(memory, at).number(), at.position))
    }

    /// True when the hash at a position of a slab is this one.
    pub(crate) fn is_at(&self, number: u32, position: u32, hash: &[u8]) -> bool {
        self.slab(number).is_some_and(|slab| slab.holds(position, hash))
    }

    /// Adds to `found` where a hash is in all partitions of a (tenant, model).
    pub(crate) fn find_all(&self, domain: u64, hash: &[u8], found: &mut Vec<(u32, u32)>) {
        let Shared { memory, table, .. } = &*self.shared;
        let _ = table.find(memory, table.hash(domain, hash), |at| {
            let slab = slab::slab_at(memory, at);
            let number = slab.number();
            if slab.holds(at.position, hash) && self.is_of(number, domain) {
                found.push((number, at.position));
            }
            false
        });
    }

    /// Asks for what a later [`Store::find`] or [`Store::find_all`] needs to be brought near.
    pub(crate) fn prefetch(&self, domain: u64, hash: &[u8]) {
        let Shared { memory, table, .. } = &*self.shared;
        table.prefetch(memory, table.hash(domain, hash));
    }

    /// The seats that hold a position.
    pub(crate) fn holders(&self, number: u32, position: u32) -> Vec<u32> {
        let spans = self.slab(number).map_or(&[][..], |slab| slab.spans());
        spans.iter().map(span::read).filter(|span| span.covers(position)).map(|span| span.seat).collect()
    }

    /// The span by which a seat holds a position.
    pub(crate) fn span(&self, number: u32, seat: u32, position: u32) -> Option<Span> {
        self.spans_of(number, seat).find(|span| span.covers(position))
    }

    /// True when a seat has a position in `start..end` that was seen last before `seen_us`.
    pub(crate) fn has_older(&self, number: u32, seat: u32, (start, end): (u32, u32), seen_us: u64) -> bool {
        self.spans_of(number, seat).any(|span| span.seen_us < seen_us && span.start < end && start < span.end)
    }

    fn spans_of(&self, number: u32, seat: u32) -> impl Iterator<Item = Span> + '_ {
        let spans = self.slab(number).map_or(&[][..], |slab| slab.spans());
        let begin = spans.partition_point(|words| span::seat(words) < seat);
        let own = spans.get(begin..).unwrap_or(&[]).iter().map(span::read);
        own.take_while(move |span| span.seat == seat)
    }

    /// The first entry of a seat of a domain in a slab: least used if that counts, then oldest, then the one of most tokens, then by
    /// hash. Within a span that is its last position: what [`put`] makes one span has token counts that rise, or are
    /// equal while hashes fall.
    pub(crate) fn first_of(&self, number: u32, (domain, seat): (u64, u32), by_use: bool) -> Option<First> {
        self.is_of(number, domain).then_some(())?;
        let key = |span: &Span| -> Rank {
            let accesses = if by_use { span.accesses } else { 0 };
            (accesses, span.seen_us, std::cmp::Reverse(span.tokens(span.end - 1)))
        };
        let slab = self.slab(number)?;
        let mut best: Option<Span> = None;
        let mut next: Option<Rank> = None;
        for span in self.spans_of(number, seat) {
            let is_before = best.as_ref().is_none_or(|best| {
                let order = key(&span).cmp(&key(best));
                let by_hash = || (*slab.hash(span.end - 1)).cmp(&*slab.hash(best.end - 1));
                order.then_with(by_hash).is_lt()
            });
            let beaten = if is_before { best.replace(span) } else { Some(span) };
            next = next.into_iter().chain(beaten.as_ref().map(key)).min();
        }
        let span = best?;
        let (position, accesses) = (span.end - 1, key(&span).0);
        let (seen_us, tokens, start) = (span.seen_us, span.tokens(position), span.start);
        let hash = BlockHash::new(&slab.hash(position));
        Some(First { accesses, seen_us, tokens, hash, position, start, next })
    }

    /// The spans of a slab by which a seat of a domain has been seen last at `seen_us`, ascending.
    pub(crate) fn spans_at(
        &self,
        number: u32,
        (domain, seat): (u64, u32),
        seen_us: u64,
    ) -> impl Iterator<Item = Span> + '_ {
        let is_own = self.is_of(number, domain);
        self.spans_of(number, seat).filter(move |span| is_own && span.seen_us == seen_us)
    }

    /// The hash at a position of a slab.
    pub(crate) fn hash_of(&self, number: u32, position: u32) -> Option<HashBytes> {
        self.slab(number).map(|slab| slab.hash(position))
    }

    /// The first prefix of a slab in its tenant's order: a prefix stands where its freshest holder does.
    pub(crate) fn first_prefix(&self, number: u32) -> Option<First> {
        let slab = self.slab(number)?;
        if let [only] = slab.spans() {
            let Span { seat, .. } = span::read(only);
            let domain = self.records.domain(self.record(number)?);
            return self.first_of(number, (domain, seat), false);
        }
        let spans = slab.spans().iter().map(span::read);
        let mut leads: Vec<Option<(u64, i32)>> = vec![None; slab.shape().used as usize];
        for span in spans {
            for position in span.start..span.end {
                let lead = leads.get_mut(position as usize)?;
                *lead = (*lead).max(Some((span.seen_us, span.tokens(position))));
            }
        }
        let held = (0u32..).zip(&leads).filter_map(|(position, lead)| Some((position, (*lead)?)));
        let first = held.min_by(|(a, (seen_a, tokens_a)), (b, (seen_b, tokens_b))| {
            let order = seen_a.cmp(seen_b).then(tokens_b.cmp(tokens_a));
            order.then_with(|| (*slab.hash(*a)).cmp(&*slab.hash(*b)))
        });
        let (position, (seen_us, tokens)) = first?;
        let hash = BlockHash::new(&slab.hash(position));
        Some(First { accesses: 0, seen_us, tokens, hash, position, start: position, next: None })
    }

    /// The oldest last-seen of a slab.
    pub(crate) fn oldest_us(&self, number: u32) -> Option<u64> {
        self.slab(number)?.spans().iter().map(|words| span::read(words).seen_us).min()
    }

    /// What a slab is at the moment.
    pub(crate) fn image(&self, number: u32) -> Option<SlabImage> {
        let (record, slab) = (self.record(number)?, self.slab(number)?);
        Some(SlabImage::of(record.partition, &slab))
    }

    /// Gives back the memory that no reader can be in any more.
    pub(crate) fn reclaim(&mut self) {
        if self.limbo.is_empty() {
            return;
        }
        let until = self.shared.readers.look();
        while let Some(&(stamp, (granule, granules))) = self.limbo.front()
            && stamp < until
        {
            self.limbo.pop_front();
            self.space.give(&self.shared.memory, granule, granules);
        }
    }

    /// The stamp of what became unreachable just now, and the one below which nobody is left.
    pub(crate) fn stamp(&self) -> u64 {
        self.shared.readers.stamp()
    }

    /// See [`readers::Readers::look`].
    pub(crate) fn look(&self) -> u64 {
        self.shared.readers.look()
    }

    fn retire(&mut self, granule: u32, granules: u32) {
        self.limbo.push_back((self.shared.readers.stamp(), (granule, granules)));
    }

    fn retire_tables(&mut self) {
        while let Some((granule, granules)) = self.retired.pop() {
            self.retire(granule, granules);
        }
    }
}
