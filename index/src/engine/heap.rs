//! A heap of slots that knows where each of them is, so that any can be moved or removed in logarithmic time. Four
//! children a node: the order is by value, so its shape never shows.

use super::entries::{Entries, Slot};
use std::cmp::Ordering;
use std::marker::PhantomData;

/// An order of slots and where a slot keeps its place in it.
pub(crate) trait HeapOrder {
    fn compare(entries: &Entries, a: u32, b: u32) -> Ordering;
    fn place(slot: &mut Slot) -> &mut u32;
}

/// [`Entries::by_age`].
pub(crate) struct ByAge;

/// [`Entries::by_use`].
pub(crate) struct ByUse;

impl HeapOrder for ByAge {
    fn compare(entries: &Entries, a: u32, b: u32) -> Ordering {
        entries.by_age(a, b)
    }

    fn place(slot: &mut Slot) -> &mut u32 {
        &mut slot.age_at
    }
}

impl HeapOrder for ByUse {
    fn compare(entries: &Entries, a: u32, b: u32) -> Ordering {
        entries.by_use(a, b)
    }

    fn place(slot: &mut Slot) -> &mut u32 {
        &mut slot.use_at
    }
}

const CHILDREN: usize = 4;

/// The heap.
pub(crate) struct Heap<O> {
    items: Vec<u32>,
    order: PhantomData<O>,
}

impl<O> Default for Heap<O> {
    fn default() -> Self {
        Self { items: Vec::new(), order: PhantomData }
    }
}

impl<O: HeapOrder> Heap<O> {
    /// The slot that comes first.
    pub(crate) fn first(&self) -> Option<u32> {
        self.items.first().copied()
    }

    pub(crate) fn push(&mut self, entries: &mut Entries, slot: u32) {
        self.items.push(slot);
        self.rise(entries, self.items.len() - 1);
    }

    /// Takes a slot out that is in.
    pub(crate) fn remove(&mut self, entries: &mut Entries, slot: u32) {
        let at = *O::place(entries.standing(slot)) as usize;
        self.items.swap_remove(at);
        if at < self.items.len() {
            self.settle(entries, at);
        }
        if self.items.len() * 4 < self.items.capacity() {
            self.items.shrink_to(self.items.len() * 2);
        }
    }

    /// Puts a slot that is in back into its order after a change.
    pub(crate) fn fix(&mut self, entries: &mut Entries, slot: u32) {
        let at = *O::place(entries.standing(slot)) as usize;
        self.settle(entries, at);
    }

    fn settle(&mut self, entries: &mut Entries, at: usize) {
        let slot = self.items[at];
        let stayed = self.rise(entries, at);
        if stayed && self.items[at] == slot {
            self.sink(entries, at);
        }
    }

    /// Returns true when the slot did not move.
    fn rise(&mut self, entries: &mut Entries, mut at: usize) -> bool {
        let (slot, from) = (self.items[at], at);
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            if O::compare(entries, slot, self.items[parent]) != Ordering::Less {
                break;
            }
            self.set(entries, at, self.items[parent]);
            at = parent;
        }
        self.set(entries, at, slot);
        at == from
    }

    fn sink(&mut self, entries: &mut Entries, mut at: usize) {
        let slot = self.items[at];
        loop {
            let begin = at * CHILDREN + 1;
            let end = (begin + CHILDREN).min(self.items.len());
            let Some(least) = (begin..end).min_by(|&a, &b| O::compare(entries, self.items[a], self.items[b])) else {
                break;
            };
            if O::compare(entries, self.items[least], slot) != Ordering::Less {
                break;
            }
            self.set(entries, at, self.items[least]);
            at = least;
        }
        self.set(entries, at, slot);
    }

    fn set(&mut self, entries: &mut Entries, at: usize, slot: u32) {
        self.items[at] = slot;
        // A heap never holds more than there are slots, and those are counted in 32 bits.
        *O::place(entries.standing(slot)) = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_hash::BlockHash;
    use proptest::prelude::*;

    fn slot(last_seen_us: u64, hash: u16) -> Slot {
        let hash = BlockHash::new(&hash.to_be_bytes());
        Slot {
            hash,
            last_seen_us,
            tokens: 0,
            tier: 1,
            accesses: 0,
            member: 0,
            partition: 0,
            age_at: 0,
            use_at: 0,
            leads: false,
        }
    }

    proptest! {
        #[test]
        fn it_gives_out_in_order(steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>(), 0u64..20), 0..300)) {
            let (mut entries, mut heap) = (Entries::default(), Heap::<ByAge>::default());
            let mut held: Vec<u32> = Vec::new();
            for (hash, (what, which, seen_us)) in (0u16..).zip(steps) {
                match what {
                    0 | 1 => {
                        if let Some(at) = entries.add(slot(seen_us, hash)) {
                            heap.push(&mut entries, at);
                            held.push(at);
                        }
                    }
                    2 if !held.is_empty() => {
                        let at = held.swap_remove(which.index(held.len()));
                        heap.remove(&mut entries, at);
                        entries.release(at);
                    }
                    3 if !held.is_empty() => {
                        let at = held[which.index(held.len())];
                        entries.change(at, |slot| slot.last_seen_us = seen_us);
                        heap.fix(&mut entries, at);
                    }
                    _ => {}
                }
                let least = held.iter().copied().min_by(|&a, &b| entries.by_age(a, b));
                prop_assert_eq!(heap.first(), least);
            }
            held.sort_by(|&a, &b| entries.by_age(a, b));
            for at in held {
                prop_assert_eq!(heap.first(), Some(at));
                heap.remove(&mut entries, at);
            }
        }
    }
}
