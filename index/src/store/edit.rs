//! The writer's changes to who holds what in a slab. Each makes a seat's new list of spans from its old one; what is
//! published is one word in place where that says it, else a new array by one store of its address. It says what changed, and counts
//! nothing itself.

use super::Store;
use super::memory::GRANULE_WORDS;
use super::slab::{self, SHAPE, SPANS, Shape, Slab};
use super::span::{self, SPAN_WORDS, Span};
use super::table::{At, Shared};
use crate::digest::EntryDigest;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What an edit came to.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Edit {
    pub(crate) slab: u32,
    /// The width of its hashes.
    pub(crate) width: u32,
    /// Entries that are new, and that are gone.
    pub(crate) added: u32,
    pub(crate) removed: u32,
    /// Positions that nobody held before, and that nobody holds now.
    pub(crate) born: u32,
    pub(crate) died: u32,
    /// What the digest of the seat's entries changed by.
    pub(crate) digest: u128,
    /// The oldest last-seen of the seat in the slab before, if it was there.
    pub(crate) had_us: Option<u64>,
    /// The newest last-seen of the seat in the slab before.
    pub(crate) newest_us: Option<u64>,
    /// Slabs of the seat that were put together with this one before.
    pub(crate) absorbed: u32,
    /// True when anything changed.
    pub(crate) changed: bool,
}

/// A set of positions.
pub(super) type Positions = [u64; 4];

pub(super) fn positions(span: &Span) -> Positions {
    std::array::from_fn(|at| {
        let low = 64 * at as u32;
        let below = |end: u32| match end.saturating_sub(low) {
            64.. => u64::MAX,
            bits => (1u64 << bits) - 1,
        };
        below(span.end) & !below(span.start)
    })
}

fn count(set: Positions) -> u32 {
    set.iter().map(|word| word.count_ones()).sum()
}

fn zip(a: Positions, b: Positions, f: impl Fn(u64, u64) -> u64) -> Positions {
    std::array::from_fn(|at| f(a[at], b[at]))
}

fn union<'s>(spans: impl IntoIterator<Item = &'s Span>) -> Positions {
    spans.into_iter().fold([0; 4], |set, span| zip(set, positions(span), |a, b| a | b))
}

impl Store {
    /// Replaces what a seat has in a slab by what `change` makes of it; outside of `start..end` it changes nothing. With
    /// `digest`, of the seat and the slab's partition, sums up what that changes. `None` when there is no such
    /// slab, or no memory.
    pub(super) fn edit(
        &mut self,
        number: u32,
        seat: u32,
        (start, end): (u32, u32),
        digest: Option<&mut EntryDigest>,
        change: impl FnOnce(&Slab<'_>, &[Span], &mut Vec<Span>),
    ) -> Option<Edit> {
        let shared = Arc::clone(&self.shared);
        let slab = Slab::at(&shared.memory, self.record(number)?.granule);
        let spans = slab.spans();
        let low = spans.partition_point(|words| span::seat(words) < seat);
        let own = spans.get(low..).unwrap_or(&[]).iter().map(span::read).take_while(|span| span.seat == seat);
        let (mut old, mut new) = (std::mem::take(&mut self.old), std::mem::take(&mut self.new));
        old.clear();
        new.clear();
        old.extend(own);
        change(&slab, &old, &mut new);
        let edit = self.replace(number, &slab, (low, &old, &new), (start, end), digest);
        (self.old, self.new) = (old, new);
        edit
    }

    fn replace(
        &mut self,
        number: u32,
        slab: &Slab<'_>,
        (low, old, new): (usize, &[Span], &[Span]),
        (start, end): (u32, u32),
        digest: Option<&mut EntryDigest>,
    ) -> Option<Edit> {
        let had_us = old.iter().map(|span| span.seen_us).min();
        let newest_us = old.iter().map(|span| span.seen_us).max();
        let mut edit = Edit { slab: number, width: slab.shape().width, had_us, newest_us, ..Edit::default() };
        if old == new {
            return Some(edit);
        }
        self.keep(number, slab, (end - start) as usize);
        let (was, is) = (union(old), union(new));
        let (added, removed) = (zip(is, was, |is, was| is & !was), zip(was, is, |was, is| was & !is));
        let other = others(slab, (low, low + old.len()), zip(added, removed, |a, b| a | b));
        (edit.added, edit.removed) = (count(added), count(removed));
        edit.born = count(zip(added, other, |set, other| set & !other));
        edit.died = count(zip(removed, other, |set, other| set & !other));
        edit.changed = true;
        edit.absorbed = std::mem::take(&mut self.absorbed);
        if let Some(digest) = digest {
            let sum = |digest: &mut EntryDigest, spans: &[Span]| sum(slab, spans, (start, end), digest);
            edit.digest = sum(digest, new).wrapping_sub(sum(digest, old));
        }
        let record = self.records.get_mut(number)?;
        let held = record.held + edit.born - edit.died;
        if held == 0 {
            self.kill(number, slab);
            return Some(edit);
        }
        self.publish(slab, (low, old, new))?;
        if let Some(record) = self.records.get_mut(number) {
            record.held = held;
        }
        let used = slab.shape().used;
        if edit.died > 0 && held * 3 < used {
            self.compact(number, slab);
        }
        Some(edit)
    }

    /// Lets readers find the new spans of a seat.
    pub(super) fn publish(&mut self, slab: &Slab<'_>, (low, old, new): (usize, &[Span], &[Span])) -> Option<()> {
        let spans = slab.spans();
        if old.len() == new.len() {
            let mut changed = old.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new);
            if let (Some((at, (_, new))), None) = (changed.next(), changed.next())
                && spans.get(low + at).is_some_and(|words| span::change(words, new))
            {
                return Some(());
            }
        }
        let (granule, len) = slab.spans_word();
        if let ([], [only], (0, 0)) = (old, new, (granule, len)) {
            // A slab that never had a span: the one in the header, which is written this once.
            let words = slab.header.get(1..1 + SPAN_WORDS).and_then(|words| words.as_chunks().0.first())?;
            span::write(words, only);
            slab.header[SPANS].store(1, Ordering::Release);
            return Some(());
        }
        let (head, tail) = (spans.get(..low)?, spans.get(low + old.len()..)?);
        let count = head.len() + new.len() + tail.len();
        let place = self.space.take(&self.shared.memory, array_granules(count))?;
        let shared = Arc::clone(&self.shared);
        let (places, _) = shared.memory.words(place, 0, count * SPAN_WORDS).as_chunks::<SPAN_WORDS>();
        let all = head.iter().map(span::read).chain(new.iter().copied()).chain(tail.iter().map(span::read));
        places.iter().zip(all).for_each(|(words, span)| span::write(words, &span));
        slab.header[SPANS].store((u64::from(place) << 32) | count as u64, Ordering::Release);
        if granule != 0 {
            self.retire(granule, array_granules(len));
        }
        Some(())
    }

    /// Removes a slab that nobody holds anything of any more, with its keys. Readers that are in it see it as it was.
    fn kill(&mut self, number: u32, slab: &Slab<'_>) {
        let Some(record) = self.records.remove(number) else { return };
        let (domain, granule) = (self.records.domain(&record), record.granule);
        let shape = slab.shape();
        let shared = Arc::clone(&self.shared);
        let Shared { memory, table, .. } = &*shared;
        self.hashes.clear();
        for position in 0..shape.used {
            let hash = table.hash(domain, &slab.hash(position));
            table.prefetch(memory, hash);
            self.hashes.push(hash);
        }
        for (position, &hash) in (0..).zip(&self.hashes) {
            let parts = (table, memory, &mut self.space);
            self.keys.remove(parts, hash, At { granule, position }, &mut self.retired);
        }
        self.retire_tables();
        self.retire_slab(slab);
    }

    /// Gives the memory of a slab up that nothing leads to any more.
    pub(super) fn retire_slab(&mut self, slab: &Slab<'_>) {
        let shape = slab.shape();
        let (array, len) = slab.spans_word();
        if array != 0 {
            self.retire(array, array_granules(len));
        }
        self.retire(slab.granule, slab::granules(shape.room, shape.width));
    }

    /// Moves a slab of whose positions most are nobody's to a smaller one without those, if it then is smaller.
    fn compact(&mut self, number: u32, slab: &Slab<'_>) -> Option<()> {
        let record = *self.record(number)?;
        let shape = slab.shape();
        let spans: Vec<Span> = slab.spans().iter().map(span::read).collect();
        let held = union(&spans);
        let (before, after) = (slab::granules(shape.room, shape.width), slab::granules(record.held, shape.width));
        if self.space.rounded(after) >= self.space.rounded(before) {
            return None;
        }
        let is_held = |at: u32| held[at as usize / 64] >> (at % 64) & 1 == 1;
        // Where each position goes: nobody's go nowhere.
        let mut to = Vec::with_capacity(shape.used as usize);
        let mut next = 0;
        for at in 0..shape.used {
            to.push(is_held(at).then_some(next));
            next += u32::from(is_held(at));
        }
        let domain = self.records.domain(&record);
        let target = self.blank(number, &record, shape.width, record.held)?;
        let shared = Arc::clone(&self.shared);
        let Shared { memory, table, .. } = &*shared;
        let new = Slab::at(memory, target);
        for (at, to) in (0..).zip(&to) {
            if let Some(to) = to {
                copy_hash(slab, at, &new, *to, shape.width);
            }
        }
        new.header[SHAPE].store(Shape { used: next, ..new.shape() }.encode(), Ordering::Release);
        // A span has no position of nobody's in it, so it stays in one piece.
        let moved: Vec<Span> = spans.iter().filter_map(|span| shifted(span, *to.get(span.start as usize)?)).collect();
        if moved.len() != spans.len() || self.publish(&new, (0, &[], &moved)).is_none() {
            self.space.give(memory, target, slab::granules(new.shape().room, shape.width));
            return None;
        }
        if let Some(record) = self.records.get_mut(number) {
            record.granule = target;
        }
        for (position, to) in (0..).zip(&to) {
            let hash = table.hash(domain, &slab.hash(position));
            let old = At { granule: record.granule, position };
            match *to {
                Some(to) => self.keys.repoint(table, memory, hash, (old, At { granule: target, position: to })),
                None => self.keys.remove((table, memory, &mut self.space), hash, old, &mut self.retired),
            }
        }
        self.retire_tables();
        self.retire_slab(slab);
        Some(())
    }

    /// Takes `start..end` away from a seat.
    pub(crate) fn withdraw(
        &mut self,
        number: u32,
        seat: u32,
        (start, end): (u32, u32),
        digest: Option<&mut EntryDigest>,
    ) -> Option<Edit> {
        self.edit(number, seat, (start, end), digest, |_, old, new| {
            for span in old {
                let pieces = [(span.start, span.end.min(start)), (span.start.max(end), span.end)];
                new.extend(pieces.iter().filter(|(start, end)| start < end).map(|&(start, end)| span.cut(start, end)));
            }
        })
    }

    /// Adds accesses to one entry of a seat, if it is there and of any tokens.
    pub(crate) fn credit(
        &mut self,
        number: u32,
        seat: u32,
        (start, end): (u32, u32),
        count: u32,
        digest: &mut EntryDigest,
    ) -> Option<Edit> {
        self.edit(number, seat, (start, end), Some(digest), |slab, old, new| {
            for span in old {
                let (low, high) = (span.start.max(start), span.end.min(end));
                if low >= high {
                    new.push(*span);
                    continue;
                }
                new.extend((span.start < low).then(|| span.cut(span.start, low)));
                let credited = Span { accesses: span.accesses.saturating_add(count), ..*span };
                for at in low..high {
                    let said = if span.tokens(at) == 0 { span } else { &credited };
                    new.push(said.cut(at, at + 1));
                }
                new.extend((high < span.end).then(|| span.cut(high, span.end)));
            }
            super::put::join(slab, new);
        })
    }

    pub(super) fn keep(&mut self, number: u32, slab: &Slab<'_>, entries: usize) {
        if let Some(watch) = &mut self.watch {
            let partition = self.records.get(number).map_or(0, |record| record.partition);
            watch.keep(number, entries, || Some(super::SlabImage::of(partition, slab)));
        }
    }
}

/// A span that starts elsewhere and says the same.
fn shifted(span: &Span, start: Option<u32>) -> Option<Span> {
    let start = start?;
    let by = i32::try_from(span.start.checked_sub(start)?).ok()?;
    Some(Span { base: span.base.wrapping_add(span.step.wrapping_mul(by)), ..span.cut(start, start + span.len()) })
}

pub(super) fn copy_hash(from: &Slab<'_>, at: u32, to: &Slab<'_>, place: u32, width: u32) {
    for (new, old) in to.hash_words(place, 1, width).iter().zip(from.hash_words(at, 1, width)) {
        new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Granules of an array of spans.
pub(super) fn array_granules(spans: usize) -> u32 {
    // A slab has fewer spans than there are seats times positions.
    u32::try_from((spans * SPAN_WORDS).div_ceil(GRANULE_WORDS)).unwrap_or(u32::MAX)
}

/// Which of the positions others than the spans `low..high` have.
fn others(slab: &Slab<'_>, (low, high): (usize, usize), wanted: Positions) -> Positions {
    let mut set = [0; 4];
    let spans = slab.spans();
    let others = spans.get(..low).unwrap_or(&[]).iter().chain(spans.get(high..).unwrap_or(&[]));
    for span in others.map(span::read) {
        if zip(wanted, set, |wanted, set| wanted & !set) == [0; 4] {
            break;
        }
        set = zip(set, positions(&span), |a, b| a | b);
    }
    set
}

/// The digests of the entries of `spans` that lie in `start..end`.
fn sum(slab: &Slab<'_>, spans: &[Span], (start, end): (u32, u32), digest: &mut EntryDigest) -> u128 {
    let mut sum = 0u128;
    let width = slab.shape().width;
    let each = slab::words_of(width).max(1);
    for span in spans {
        let (low, high) = (span.start.max(start), span.end.min(end));
        if low >= high {
            continue;
        }
        digest.say(span.seen_us, span.tier, span.accesses);
        let words = slab.hash_words(low, high - low, width);
        for (at, words) in (low..high).zip(words.chunks_exact(each)) {
            let words = words.iter().map(|word| word.load(Ordering::Relaxed));
            sum = sum.wrapping_add(digest.of(span.tokens(at), words, width as usize));
        }
    }
    sum
}
