//! What a snapshot in the making still needs of slabs that change: a slab ahead of the walk is kept as it was at the
//! beginning, before its first change, up to a limit on changed entries.

use super::slab::Slab;
use super::span::{self, Span};
use std::collections::BTreeMap;

/// Hashes and spans that may be kept beyond what the limit on entries stands for: a slab is kept whole.
const SLACK: usize = 65_536;

/// A slab as it was.
#[derive(Clone, Debug)]
pub(crate) struct SlabImage {
    pub(crate) partition: u32,
    width: usize,
    bytes: Vec<u8>,
    pub(crate) spans: Vec<Span>,
}

impl SlabImage {
    pub(super) fn of(partition: u32, slab: &Slab<'_>) -> Self {
        let shape = slab.shape();
        let mut bytes = Vec::with_capacity((shape.used * shape.width) as usize);
        (0..shape.used).for_each(|position| bytes.extend_from_slice(&slab.hash(position)));
        Self { partition, width: shape.width as usize, bytes, spans: slab.spans().iter().map(span::read).collect() }
    }

    /// The hash at a position.
    pub(crate) fn hash(&self, position: u32) -> &[u8] {
        let at = position as usize * self.width;
        self.bytes.get(at..at + self.width).unwrap_or(&[])
    }

    fn weight(&self) -> usize {
        self.bytes.len() / 8 + self.spans.len() * 4
    }
}

/// The writer's side of a walk over all slabs.
pub(crate) struct Watch {
    /// The next number to walk, and the end of those there were at the beginning.
    pub(crate) next: u32,
    pub(crate) end: u32,
    pub(crate) limit: usize,
    pub(crate) overflowed: bool,
    /// Slabs ahead of the walk that have changed, with how many of their entries have; `None` for numbers that were
    /// nobody's.
    pub(crate) kept: BTreeMap<u32, (Option<SlabImage>, usize)>,
    changed: usize,
    weight: usize,
}

impl Watch {
    pub(crate) fn new(end: u32, limit: usize) -> Self {
        Self { next: 0, end, limit, overflowed: false, kept: BTreeMap::new(), changed: 0, weight: 0 }
    }

    /// Keeps what a slab is, before `entries` of it change, if the walk still needs it.
    pub(super) fn keep(&mut self, number: u32, entries: usize, was: impl FnOnce() -> Option<SlabImage>) {
        if number < self.next || number >= self.end || self.overflowed {
            return;
        }
        let weight = &mut self.weight;
        let (was, changed) = self.kept.entry(number).or_insert_with(|| {
            let was = was();
            *weight += was.as_ref().map_or(0, SlabImage::weight);
            (was, 0)
        });
        let all: usize = was.as_ref().map_or(0, |was| was.spans.iter().map(|span| span.len() as usize).sum());
        let more = entries.min(all.saturating_sub(*changed));
        *changed += more;
        self.changed += more;
        if self.changed > self.limit || self.weight > self.limit.saturating_mul(4).saturating_add(SLACK) {
            self.overflowed = true;
            self.kept.clear();
        }
    }
}
