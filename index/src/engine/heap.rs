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

/// Where a slab stands: exactly, or not after that.
#[derive(Clone)]
struct Item {
    // What makes a rank, in less room than a tuple takes.
    seen_us: u64,
    accesses: u32,
    tokens: i32,
    slab: u32,
    /// The key of the entry that stands there; `None` for what is no more than a bound.
    key: Option<Box<Key>>,
}

type Key = (Arc<Partition>, BlockHash);

impl Item {
    fn bound(accesses: u32, seen_us: u64, slab: u32) -> Self {
        Self { seen_us, accesses, tokens: i32::MAX, slab, key: None }
    }

    fn rank(&self) -> Rank {
        (self.accesses, self.seen_us, Reverse(self.tokens))
    }
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank()).then_with(|| match (self.key.as_deref(), other.key.as_deref()) {
            (Some((own, hash)), Some((others, other_hash))) => own.key_order(others).then_with(|| hash.cmp(other_hash)),
            (own, others) => own.is_some().cmp(&others.is_some()),
        })
    }
}

impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Item {}

/// Items that a heap has without ever asking whether they are still needed.
const FEW: usize = 64;

/// Slabs by their first entry.
pub(crate) struct Firsts {
    items: BinaryHeap<Reverse<Item>>,
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
        Self { items: BinaryHeap::new(), exact_us: None, limit: FEW }
    }
}

impl Firsts {
    /// Notes that a slab has, or may have, an entry that stands there.
    pub(crate) fn note(&mut self, accesses: u32, seen_us: u64, slab: u32) {
        self.items.push(Reverse(Item::bound(accesses, seen_us, slab)));
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
        loop {
            let mut top = self.items.peek_mut()?;
            let slab = top.0.slab;
            let Some((first, partition)) = ask(slab) else {
                PeekMut::pop(top);
                self.shrink();
                continue;
            };
            let rank = (first.accesses, first.seen_us, Reverse(first.tokens));
            let is_key = |(own, hash): &Key| Arc::ptr_eq(own, &partition) && *hash == first.hash;
            let is_same = top.0.rank() == rank && top.0.key.as_deref().is_some_and(is_key);
            if is_same {
                drop(top);
                let others = self.items.as_slice().get(1..).unwrap_or(&[]).iter().take(2);
                let next = others.map(|item| item.0.rank()).chain(first.next).min();
                return Some(Top { slab, partition, first, next });
            }
            self.exact_us = self.exact_us.max(Some(first.seen_us));
            let First { accesses, seen_us, tokens, hash, .. } = first;
            top.0 = Item { seen_us, accesses, tokens, slab, key: Some(Box::new((partition, hash))) };
        }
    }

    /// Takes out the slabs that stand at `seen_us`, which is where the first stands, or before; a few more than `most` at
    /// most.
    pub(crate) fn take_at(&mut self, seen_us: u64, most: u64) -> Vec<u32> {
        let mut slabs = Vec::new();
        while slabs.len() as u64 <= most
            && let Some(top) = self.items.peek_mut().filter(|top| top.0.seen_us <= seen_us)
        {
            slabs.push(PeekMut::pop(top).0.slab);
        }
        self.shrink();
        slabs.sort_unstable();
        slabs.dedup();
        slabs
    }

    /// Gives back room that a fall in the number of slabs has left.
    fn shrink(&mut self) {
        let len = self.items.len();
        if self.items.capacity() > (FEW * 4).max(len * 4) {
            self.items.shrink_to(len * 2);
        }
    }

    /// Notes that so many slabs are gone, so that what it has of them is dropped in time.
    pub(crate) fn lost(&mut self, slabs: u32) {
        self.limit = self.limit.saturating_sub(slabs as usize * 2).max(FEW);
    }

    /// Drops what is no longer needed, if there is much of it.
    pub(crate) fn tidy(&mut self, ask: impl Fn(u32) -> Option<(u32, u64)>) {
        if self.items.len() <= self.limit {
            return;
        }
        let mut slabs: Vec<u32> = self.items.drain().map(|item| item.0.slab).collect();
        slabs.sort_unstable();
        slabs.dedup();
        let bound = |slab: u32| ask(slab).map(|(accesses, seen_us)| Reverse(Item::bound(accesses, seen_us, slab)));
        self.items = slabs.into_iter().filter_map(bound).collect();
        self.exact_us = None;
        self.limit = self.items.len() * 2 + FEW;
    }

    /// All slabs that it knows of, some of them twice.
    pub(crate) fn slabs(&self) -> impl Iterator<Item = u32> + '_ {
        self.items.iter().map(|item| item.0.slab)
    }
}
