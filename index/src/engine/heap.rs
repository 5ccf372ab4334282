//! What comes first, lazily: a heap of slabs in which each stands where its first entry does, or before. A refresh
//! moves an entry back and leaves the heap alone; only when a slab comes to the top is it asked where it really stands. So
//! refreshes, which are what there is most of, cost no order anything. The order is by value, the heap's shape never
//! shows.

use crate::block_hash::BlockHash;
use crate::store::{First, Rank};
use crate::view::names::Partition;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;

/// Where a slab stands at the earliest: accesses, last-seen and the slab's number as one number, so that it takes little
/// room and one comparison.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Bound(u128);

impl Bound {
    fn new(accesses: u32, seen_us: u64, slab: u32) -> Self {
        Self((when(accesses, seen_us) << u32::BITS) | u128::from(slab))
    }

    fn when(self) -> u128 {
        self.0 >> u32::BITS
    }

    fn slab(self) -> u32 {
        self.0 as u32
    }

    fn rank(self) -> Rank {
        ((self.when() >> u64::BITS) as u32, self.when() as u64, Reverse(i32::MAX))
    }
}

/// What an order goes by first, as one number.
fn when(accesses: u32, seen_us: u64) -> u128 {
    (u128::from(accesses) << u64::BITS) | u128::from(seen_us)
}

/// Where a slab stands exactly: its first entry was this one when it was asked last.
struct Exact {
    // What makes a rank, in less room than a tuple takes.
    seen_us: u64,
    accesses: u32,
    tokens: i32,
    slab: u32,
    partition: Arc<Partition>,
    hash: BlockHash,
}

impl Exact {
    fn new(slab: u32, first: &First, partition: &Arc<Partition>) -> Self {
        let First { accesses, seen_us, tokens, hash, .. } = first;
        let (partition, hash) = (Arc::clone(partition), hash.clone());
        Self { seen_us: *seen_us, accesses: *accesses, tokens: *tokens, slab, partition, hash }
    }

    fn when(&self) -> u128 {
        when(self.accesses, self.seen_us)
    }

    fn rank(&self) -> Rank {
        (self.accesses, self.seen_us, Reverse(self.tokens))
    }

    fn is_of(&self, first: &First, partition: &Arc<Partition>) -> bool {
        let rank = (first.accesses, first.seen_us, Reverse(first.tokens));
        self.rank() == rank && Arc::ptr_eq(&self.partition, partition) && self.hash == first.hash
    }
}

impl Ord for Exact {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_rank = self.rank().cmp(&other.rank());
        by_rank.then_with(|| self.partition.key_order(&other.partition)).then_with(|| self.hash.cmp(&other.hash))
    }
}

impl PartialOrd for Exact {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Exact {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Exact {}

/// Items that a heap has without ever asking whether they are still needed.
const FEW: usize = 64;

/// Slabs by their first entry. Nearly all of them stand there by a bound: one becomes exact when its turn has come, and
/// a bound again when it turns out to have been seen since.
pub(crate) struct Firsts {
    bounds: BinaryHeap<Reverse<Bound>>,
    exact: BinaryHeap<Reverse<Exact>>,
    /// The newest last-seen at which a slab is known to stand exactly: what comes in at a later one needs no new item.
    exact_us: Option<u64>,
    /// So many items are asked whether they are still needed.
    limit: usize,
}

/// The first entry of all.
#[derive(Clone)]
pub(crate) struct Top {
    pub(crate) slab: u32,
    pub(crate) partition: Arc<Partition>,
    pub(crate) first: First,
    /// What ranks first of all other slabs, or before.
    pub(crate) next: Option<Rank>,
}

impl Default for Firsts {
    fn default() -> Self {
        Self { bounds: BinaryHeap::new(), exact: BinaryHeap::new(), exact_us: None, limit: FEW }
    }
}

impl Firsts {
    /// Notes that a slab has, or may have, an entry that stands there.
    pub(crate) fn note(&mut self, accesses: u32, seen_us: u64, slab: u32) {
        // By a quarter at a time: all that is ever noted is copied some five times for it, and little room lies idle.
        if self.bounds.len() == self.bounds.capacity() {
            self.bounds.reserve_exact((self.bounds.len() / 4).max(4));
        }
        self.bounds.push(Reverse(Bound::new(accesses, seen_us, slab)));
    }

    /// True when a slab that has had an entry as old as `had_us` needs an item more for one at `seen_us`.
    pub(crate) fn needs(&self, had_us: Option<u64>, seen_us: u64) -> bool {
        match had_us {
            None => true,
            Some(had_us) => seen_us < had_us || (seen_us == had_us && self.is_exact_at(seen_us)),
        }
    }

    /// True when a slab may be known to stand exactly at `seen_us` or later, so that an entry of that time may have to go
    /// before it.
    pub(crate) fn is_exact_at(&self, seen_us: u64) -> bool {
        self.exact_us.is_some_and(|us| seen_us <= us)
    }

    /// The first entry; `ask` says where a slab really stands, if it has anything left.
    pub(crate) fn first(&mut self, ask: impl Fn(u32) -> Option<(First, Arc<Partition>)>) -> Option<Top> {
        // What was asked last, as it is mostly asked again at once.
        let mut known: Option<(u32, First, Arc<Partition>)> = None;
        loop {
            if self.is_bound_first() {
                known = self.settle(&ask).or(known);
                continue;
            }
            let mut top = self.exact.peek_mut()?;
            let slab = top.0.slab;
            let asked = match known.take() {
                Some((of, first, partition)) if of == slab => Some((first, partition)),
                _ => ask(slab),
            };
            let Some((first, partition)) = asked else {
                PeekMut::pop(top);
                self.shrink();
                continue;
            };
            if top.0.is_of(&first, &partition) {
                drop(top);
                let others = self.exact.as_slice().get(1..).unwrap_or(&[]).iter().take(2);
                let bound = self.bounds.peek().map(|bound| bound.0.rank());
                let next = others.map(|item| item.0.rank()).chain(bound).chain(first.next).min();
                return Some(Top { slab, partition, first, next });
            }
            if when(first.accesses, first.seen_us) > top.0.when() {
                PeekMut::pop(top);
                self.note(first.accesses, first.seen_us, slab);
            } else {
                top.0 = Exact::new(slab, &first, &partition);
                drop(top);
                self.exact_us = self.exact_us.max(Some(first.seen_us));
                known = Some((slab, first, partition));
            }
        }
    }

    /// True when what comes first is no more than a bound; one comes before what stands there exactly.
    fn is_bound_first(&self) -> bool {
        match (self.bounds.peek(), self.exact.peek()) {
            (Some(bound), Some(exact)) => bound.0.when() <= exact.0.when(),
            (bound, _) => bound.is_some(),
        }
    }

    /// Asks where the first of the bounds stands: makes that its bound if it is later, and else has it stand there exactly
    /// and says where.
    fn settle(&mut self, ask: impl Fn(u32) -> Option<(First, Arc<Partition>)>) -> Option<(u32, First, Arc<Partition>)> {
        let mut top = self.bounds.peek_mut()?;
        let slab = top.0.slab();
        let Some((first, partition)) = ask(slab) else {
            PeekMut::pop(top);
            self.shrink();
            return None;
        };
        if when(first.accesses, first.seen_us) > top.0.when() {
            top.0 = Bound::new(first.accesses, first.seen_us, slab);
            return None;
        }
        PeekMut::pop(top);
        self.exact_us = self.exact_us.max(Some(first.seen_us));
        self.exact.push(Reverse(Exact::new(slab, &first, &partition)));
        Some((slab, first, partition))
    }

    /// Takes out the slabs that stand at `seen_us`, which is where the first stands, or before; a few more than `most` at
    /// most.
    pub(crate) fn take_at(&mut self, seen_us: u64, most: u64) -> Vec<u32> {
        let mut slabs = Vec::new();
        while slabs.len() as u64 <= most
            && let Some(top) = self.exact.peek_mut().filter(|top| top.0.seen_us <= seen_us)
        {
            slabs.push(PeekMut::pop(top).0.slab);
        }
        while slabs.len() as u64 <= most
            && let Some(top) = self.bounds.peek_mut().filter(|top| top.0.when() <= when(0, seen_us))
        {
            slabs.push(PeekMut::pop(top).0.slab());
        }
        self.shrink();
        slabs.sort_unstable();
        slabs.dedup();
        slabs
    }

    /// Gives back room that a fall in the number of slabs has left.
    fn shrink(&mut self) {
        let is_roomy = |len: usize, room: usize| room > FEW + len * 2;
        if is_roomy(self.bounds.len(), self.bounds.capacity()) {
            self.bounds.shrink_to(self.bounds.len() * 5 / 4);
        }
        if is_roomy(self.exact.len(), self.exact.capacity()) {
            self.exact.shrink_to(self.exact.len() * 5 / 4);
        }
    }

    /// Notes that so many slabs are gone, so that what it has of them is dropped in time.
    pub(crate) fn lost(&mut self, slabs: u32) {
        self.limit = self.limit.saturating_sub(slabs as usize * 2).max(FEW);
    }

    /// Drops what is no longer needed, if there is much of it.
    pub(crate) fn tidy(&mut self, ask: impl Fn(u32) -> Option<(u32, u64)>) {
        if self.bounds.len() + self.exact.len() <= self.limit {
            return;
        }
        let mut slabs: Vec<u32> = self.slabs().collect();
        slabs.sort_unstable();
        slabs.dedup();
        let mut bounds = Vec::with_capacity(slabs.len());
        let bound = |slab: u32| ask(slab).map(|(accesses, seen_us)| Reverse(Bound::new(accesses, seen_us, slab)));
        bounds.extend(slabs.into_iter().filter_map(bound));
        *self = Self { bounds: bounds.into(), ..Self::default() };
        self.shrink();
        self.limit = self.bounds.len() * 2 + FEW;
    }

    /// All slabs that it knows of, some of them twice.
    pub(crate) fn slabs(&self) -> impl Iterator<Item = u32> + '_ {
        let exact = self.exact.iter().map(|item| item.0.slab);
        exact.chain(self.bounds.iter().map(|item| item.0.slab()))
    }
}
