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
