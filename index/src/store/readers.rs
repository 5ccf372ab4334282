//! When the memory of what readers can no longer find may be given to something else: once every reader that might
//! still be in it is through. A reader marks a slot on its way in and clears it on its way out, and waits for nobody;
//! the writer compares marks and waits for nobody either. A reader that is stuck holds memory back, nothing more.

use super::word::Word;
#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(not(loom))]
use std::sync::atomic::fence;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many readers can be inside at one instant before they look for a slot again.
const SLOTS: usize = 256;

/// A slot on a cache line of its own.
#[repr(align(64))]
pub(crate) struct Slot<W>(pub(crate) W);

/// The marks of all readers.
pub(crate) struct Readers<W = AtomicU64> {
    /// Rises with each look of the writer.
    epoch: W,
    slots: Box<[Slot<W>]>,
    /// Slots beyond have never been marked.
    reach: W,
}

/// A reader's time inside.
pub(crate) struct Pin<'r, W: Word = AtomicU64> {
    slot: &'r Slot<W>,
}

impl<W: Word> Drop for Pin<'_, W> {
    fn drop(&mut self) {
        self.slot.0.store(0, Ordering::Release);
    }
}

impl<W: Word> Readers<W> {
    /// Marks for as many readers.
    pub(crate) fn with_slots(slots: usize) -> Self {
        let slots = (0..slots.max(1)).map(|_| Slot(W::new(0))).collect();
        Self { epoch: W::new(1), slots, reach: W::new(0) }
    }

    /// Enters. What is found from now on stays what it is until the pin is dropped. `hint` is where to look for a free
    /// slot first.
    #[inline]
    pub(crate) fn pin(&self, hint: usize) -> Pin<'_, W> {
        let mut at = hint;
        loop {
            let place = at % self.slots.len();
            let mut reach = self.reach.load(Ordering::Relaxed);
            while reach <= place as u64 && !self.reach.swap_if(reach, place as u64 + 1) {
                reach = self.reach.load(Ordering::Relaxed);
            }
            let slot = &self.slots[place];
            let epoch = self.epoch.load(Ordering::Acquire);
            // Sequentially consistent: either the writer's look sees this mark, or what comes after it here sees what
            // the writer took away before its look.
            if slot.0.swap_if(0, epoch) {
                after_swap();
                return Pin { slot };
            }
            at = at.wrapping_add(1);
        }
    }

    /// The stamp for what the writer has just made unreachable.
    pub(crate) fn stamp(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// What is stamped below the result is nobody's any more. For the writer alone.
    pub(crate) fn look(&self) -> u64 {
        let epoch = self.epoch.load(Ordering::Relaxed) + 1;
        self.epoch.store(epoch, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let reach = self.reach.load(Ordering::SeqCst);
        let marks = self.slots.iter().take(reach as usize).map(|slot| slot.0.load(Ordering::SeqCst));
        marks.filter(|&mark| mark != 0).min().unwrap_or(epoch)
    }
}

/// A sequentially consistent fence behind a compare-and-swap that is one as well. On x86-64 that is a locked instruction,
/// which nothing passes, so that only the compiler is left to be told; an instruction of its own would cost as much again.
#[inline]
fn after_swap() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
    fence(Ordering::SeqCst);
}

impl Readers {
    pub(crate) fn new() -> Self {
        Self::with_slots(SLOTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_inside_holds_back_what_it_may_see() {
        let readers = Readers::new();
        let before = readers.pin(3);
        let stamp = readers.stamp();
        assert!(readers.look() <= stamp, "the reader was there first");
        let after = readers.pin(3);
        drop(before);
        assert!(readers.look() > stamp, "the later reader can't find it");
        drop(after);
        let pins: Vec<_> = (0..SLOTS).map(|_| readers.pin(250)).collect();
        assert_eq!(pins.len(), SLOTS);
    }
}
