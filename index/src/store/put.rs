//! Entries into slabs: what is there is refreshed where it is, what is new is appended to the block that it follows, if
//! that is the last of its slab, or gets a slab of its own. So chains lie in runs however they came.

use super::slab::{self, PARTITION, SHAPE, SPANS, Shape, Slab};
use super::span::Span;
use super::table::{At, Shared};
use super::{Edit, Record, Store};
use crate::digest::EntryDigest;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whose entries are put, and where.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Place {
    pub(crate) domain: u64,
    /// The partition's id, and its number with the writer.
    pub(crate) partition: u64,
    pub(crate) partition_at: u32,
    pub(crate) seat: u32,
}

/// What entries say beside their keys, holders and token counts.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Said {
    pub(crate) seen_us: u64,
    pub(crate) tier: i32,
    /// The access count of those that are new.
    pub(crate) accesses: u32,
}

/// Where the last block was put.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Last {
    pub(crate) slab: u32,
    pub(crate) position: u32,
    pub(crate) partition_at: u32,
    pub(crate) tokens: i32,
    /// By how many tokens it was more than the one before it; 0 when that isn't known.
    pub(crate) step: i32,
}

/// A hash and its token count.
pub(crate) type Block<'h> = (&'h [u8], i32);

impl Store {
    /// Puts blocks in, in the order of a chain; `last` is where the one before them is, if they follow one, and becomes
    /// where the last of them is. What changed is added to `edits`, slab by slab. With `spares_older` it ends before a block
    /// that the seat has and that was seen last earlier than is said now. Returns how many were put.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a part of what is said; a struct would be made for this call"
    )]
    pub(crate) fn put(
        &mut self,
        place: &Place,
        blocks: &[Block<'_>],
        said: Said,
        last: &mut Option<Last>,
        digest: &mut EntryDigest,
        edits: &mut Vec<Edit>,
        spares_older: bool,
    ) -> usize {
        let mut rest = blocks;
        let done_before = |rest: &[Block<'_>]| blocks.len() - rest.len();
        while let Some(&(hash, _)) = rest.first() {
            let done = match self.find(place.domain, place.partition, hash) {
                Some((number, position)) => {
                    let (number, position) = match position {
                        0 if rest.len() > 1 && self.absorb(place, number, rest, *last) => {
                            let Some(found) = self.find(place.domain, place.partition, hash) else {
                                return done_before(rest);
                            };
                            found
                        }
                        _ => (number, position),
                    };
                    let Some(slab) = self.slab(number) else { return done_before(rest) };
                    let count = slab.matching(position, rest, |block| block.0);
                    let (stretch, _) = rest.split_at((count.max(1) as usize).min(rest.len()));
                    let end = position + stretch.len() as u32;
                    if spares_older && self.has_older(number, place.seat, (position, end), said.seen_us) {
                        return done_before(rest);
                    }
                    self.cover(number, position, place, stretch, said, digest, edits);
                    note(last, number, position, place, stretch);
                    stretch.len()
                }
                None => match self.bring(place, rest, said, last, digest, edits) {
                    Some(count) => count,
                    None => return done_before(rest),
                },
            };
            rest = rest.get(done..).unwrap_or(&[]);
        }
        blocks.len()
    }

    /// Makes a seat hold blocks that are there from a position on.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a part of what is said; a struct would be made for this call"
    )]
    fn cover(
        &mut self,
        number: u32,
        position: u32,
        place: &Place,
        blocks: &[Block<'_>],
        said: Said,
        digest: &mut EntryDigest,
        edits: &mut Vec<Edit>,
    ) {
        let end = position + blocks.len() as u32;
        let edit = self.edit(number, place.seat, (position, end), Some(digest), |slab, old, new| {
            new.extend(old.iter().filter(|span| span.start < position).map(|s| s.cut(s.start, s.end.min(position))));
            pieces(place.seat, position, blocks, said, |piece| match old {
                [] => new.push(piece),
                _ => with_accesses(&piece, old, new),
            });
            new.extend(old.iter().filter(|span| span.end > end).map(|s| s.cut(s.start.max(end), s.end)));
            join(slab, new);
        });
        edits.extend(edit);
    }

    /// Puts the first of `blocks` in, which isn't there, and as many after it that aren't either as one slab takes;
    /// says how many. `None` when there is no memory.
    fn bring(
        &mut self,
        place: &Place,
        blocks: &[Block<'_>],
        said: Said,
        last: &mut Option<Last>,
        digest: &mut EntryDigest,
        edits: &mut Vec<Edit>,
    ) -> Option<usize> {
        let width = blocks.first()?.0.len() as u32;
        let (number, first, most) = match last.and_then(|last| self.follows(&last, place, width)) {
            Some((number, used)) => (Some(number), used, slab::most_positions(width) - used),
            None => (None, 0, slab::most_positions(width)),
        };
        let count = self.missing(place, blocks, most as usize);
        let (blocks, _) = blocks.split_at_checked(count)?;
        let number = match number {
            Some(number) => self.widen(number, first + count as u32).map(|()| number)?,
            None => self.new_slab(place, width, count as u32)?,
        };
        let shared = Arc::clone(&self.shared);
        let Shared { memory, table, .. } = &*shared;
        let slab = Slab::at(memory, self.record(number)?.granule);
        for (position, (hash, _)) in (first..).zip(blocks) {
            for (word, bytes) in slab.hash_words(position, 1, width).iter().zip(hash.chunks(8)) {
                word.store(slab::padded(bytes), Ordering::Relaxed);
            }
        }
        if first > 0 {
            self.keep(number, &slab, 0);
        }
        let used = first + count as u32;
        slab.header[SHAPE].store(Shape { used, ..slab.shape() }.encode(), Ordering::Release);
        self.cover(number, first, place, blocks, said, digest, edits);
        let hashes = std::mem::take(&mut self.hashes);
        for (position, &hash) in (first..used).zip(&hashes) {
            let at = At { granule: slab.granule, position };
            let _ = self.keys.insert((table, memory, &mut self.space), hash, at, &mut self.retired);
        }
        self.hashes = hashes;
        self.retire_tables();
        note(last, number, first, place, blocks);
        Some(count)
    }

    /// The slab that a next block may be appended to, and how many positions it uses.
    fn follows(&self, last: &Last, place: &Place, width: u32) -> Option<(u32, u32)> {
        let record = self.record(last.slab)?;
        let shape = self.slab(last.slab)?.shape();
        let is_last = last.position + 1 == shape.used && record.partition == place.partition_at;
        (is_last && shape.width == width && shape.used < slab::most_positions(width)).then_some((last.slab, shape.used))
    }

    /// How many of `blocks` from the first on are not there, of one width and all different; at most `most`. Leaves their
    /// table hashes in `hashes`.
    fn missing(&mut self, place: &Place, blocks: &[Block<'_>], most: usize) -> usize {
        let mut hashes = std::mem::take(&mut self.hashes);
        hashes.clear();
        let Shared { memory, table, .. } = &*self.shared;
        let width = blocks.first().map_or(0, |block| block.0.len());
        for (hash, _) in blocks.iter().take(most).take_while(|(hash, _)| hash.len() == width) {
            let hash = table.hash(place.domain, hash);
            table.prefetch(memory, hash);
            hashes.push(hash);
        }
        // One hash repeats none.
        let mut seen = (hashes.len() > 1).then(Seen::new);
        let mut count = 0;
        for (&hash, (bytes, _)) in hashes.iter().zip(blocks) {
            let is_it = |at: At| {
                let slab = slab::slab_at(memory, at);
                slab.partition() == place.partition && slab.holds(at.position, bytes)
            };
            let repeats = |seen: &Option<Seen>| seen.as_ref().is_some_and(|seen| seen.has(hash, &hashes));
            if count > 0 && (repeats(&seen) || table.find(memory, hash, is_it).is_some()) {
                break;
            }
            seen.iter_mut().for_each(|seen| seen.note(hash, count));
            count += 1;
        }
        hashes.truncate(count);
        self.hashes = hashes;
        count
    }

    /// Makes room in a slab for so many positions, moving it if need be.
    fn widen(&mut self, number: u32, positions: u32) -> Option<()> {
        let record = *self.record(number)?;
        let shared = Arc::clone(&self.shared);
        let Shared { memory, table, .. } = &*shared;
        let slab = Slab::at(memory, record.granule);
        let shape = slab.shape();
        if positions <= shape.room {
            return Some(());
        }
        let positions = positions.max((shape.used * 3 / 2).min(slab::most_positions(shape.width)));
        let domain = self.records.domain(&record);
        let target = self.blank(number, &record, shape.width, positions)?;
        let new = Slab::at(memory, target);
        for position in 0..shape.used {
            copy_hash(&slab, position, &new, shape.width);
        }
        // The spans go along as they are: those in the header as words, an array by its address.
        for word in SPANS..PARTITION {
            new.header[word].store(slab.header[word].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        new.header[SHAPE].store(Shape { used: shape.used, ..new.shape() }.encode(), Ordering::Release);
        if let Some(record) = self.records.get_mut(number) {
            record.granule = target;
        }
        for position in 0..shape.used {
            let hash = table.hash(domain, &slab.hash(position));
            let at = |granule| At { granule, position };
            self.keys.repoint(table, memory, hash, (at(record.granule), at(target)));
        }
        self.retire(record.granule, slab::granules(shape.room, shape.width));
        Some(())
    }

    /// Memory for a slab with this number and room for so many positions, of which none is used yet.
    pub(super) fn blank(&mut self, number: u32, record: &Record, width: u32, positions: u32) -> Option<u32> {
        let granules = self.space.rounded(slab::granules(positions, width));
        let room = slab::room(granules, width);
        let granule = self.space.take(&self.shared.memory, slab::granules(room, width))?;
        let slab = Slab::at(&self.shared.memory, granule);
        let partition = match self.slab(number) {
            Some(old) => old.partition(),
            None => 0,
        };
        debug_assert!(record.granule == 0 || partition != 0);
        slab.header[SPANS].store(0, Ordering::Relaxed);
        slab.header[PARTITION].store(partition, Ordering::Relaxed);
        slab.header[SHAPE].store(Shape { number, width, room, used: 0 }.encode(), Ordering::Relaxed);
        Some(granule)
    }

    /// A slab without positions.
    fn new_slab(&mut self, place: &Place, width: u32, positions: u32) -> Option<u32> {
        let number = self.records.next()?;
        let record = Record { granule: 0, partition: place.partition_at, held: 0 };
        let granule = self.blank(number, &record, width, positions)?;
        Slab::at(&self.shared.memory, granule).header[PARTITION].store(place.partition, Ordering::Relaxed);
        if let Some(watch) = &mut self.watch {
            watch.keep(number, 0, || None);
        }
        self.records.set_domain(place.partition_at, place.domain);
        self.records.insert(Record { granule, ..record });
        Some(number)
    }
}

fn copy_hash(from: &Slab<'_>, position: u32, to: &Slab<'_>, width: u32) {
    super::edit::copy_hash(from, position, to, position, width);
}

/// Notes where the last of some blocks is.
fn note(last: &mut Option<Last>, number: u32, first: u32, place: &Place, blocks: &[Block<'_>]) {
    let Some(&(_, tokens)) = blocks.last() else { return };
    let before = match blocks {
        [.., (_, before), _] => Some(*before),
        _ => last.as_ref().map(|last| last.tokens),
    };
    let step = before.map_or(0, |before| tokens.wrapping_sub(before));
    let position = first + blocks.len() as u32 - 1;
    *last = Some(Last { slab: number, position, partition_at: place.partition_at, tokens, step });
}

/// Cuts blocks into spans: token counts rise in a steady step, or are equal while hashes fall, so that the last position
/// of a span is its first in age order.
fn pieces(seat: u32, position: u32, blocks: &[Block<'_>], said: Said, mut each: impl FnMut(Span)) {
    let mut begin = 0;
    while let Some(&(_, first)) = blocks.get(begin) {
        let step_to = |at: usize| {
            let (hash, tokens) = *blocks.get(at)?;
            let (before, was) = *blocks.get(at - 1)?;
            let step = tokens.checked_sub(was)?;
            (step > 0 || (step == 0 && hash < before)).then_some(step)
        };
        let start = position + begin as u32;
        let step = step_to(begin + 1).filter(|step| base(first, *step, start).is_some());
        let mut end = begin + 1;
        if let Some(step) = step {
            while step_to(end) == Some(step) {
                end += 1;
            }
        }
        let step = step.unwrap_or(0);
        each(Span {
            seat,
            start,
            end: position + end as u32,
            seen_us: said.seen_us,
            tier: said.tier,
            accesses: said.accesses,
            base: base(first, step, start).unwrap_or(first),
            step,
        });
        begin = end;
    }
}

/// The token count of position 0 when that of `at` is `tokens`.
fn base(tokens: i32, step: i32, at: u32) -> Option<i32> {
    tokens.checked_sub(step.checked_mul(i32::try_from(at).ok()?)?)
}

/// Adds a new span, cut so that each part keeps the access count that it had.
fn with_accesses(piece: &Span, old: &[Span], new: &mut Vec<Span>) {
    let mut from = piece.start;
    for span in old.iter().filter(|span| span.end > piece.start && span.start < piece.end) {
        let (low, high) = (span.start.max(piece.start), span.end.min(piece.end));
        new.extend((from < low).then(|| piece.cut(from, low)));
        new.push(Span { accesses: span.accesses, ..piece.cut(low, high) });
        from = high;
    }
    new.extend((from < piece.end).then(|| piece.cut(from, piece.end)));
}

/// Makes one span of neighbours that one span can say.
pub(super) fn join(slab: &Slab<'_>, spans: &mut Vec<Span>) {
    spans.dedup_by(|next, last| match joined(slab, last, next) {
        Some(both) => {
            *last = both;
            true
        }
        None => false,
    });
}

fn joined(slab: &Slab<'_>, left: &Span, right: &Span) -> Option<Span> {
    let says = |span: &Span| (span.seat, span.seen_us, span.tier, span.accesses);
    if left.end != right.start || says(left) != says(right) {
        return None;
    }
    let step = right.tokens(right.start).checked_sub(left.tokens(left.end - 1))?;
    let is_steady = |span: &Span| span.len() == 1 || span.step == step;
    if step < 0 || !is_steady(left) || !is_steady(right) {
        return None;
    }
    if step == 0 && *slab.hash(right.start) >= *slab.hash(left.end - 1) {
        return None;
    }
    let base = base(left.tokens(left.start), step, left.start)?;
    Some(Span { base, step, ..left.cut(left.start, right.end) })
}

/// The table hashes of a stretch by their lowest bits, to find repeats.
struct Seen([u16; 512]);

impl Seen {
    fn new() -> Self {
        Self([0; 512])
    }

    fn place(hash: u64) -> usize {
        hash as usize % 512
    }

    fn has(&self, hash: u64, hashes: &[u64]) -> bool {
        let mut at = Self::place(hash);
        while self.0[at] != 0 {
            if hashes.get(usize::from(self.0[at]) - 1) == Some(&hash) {
                return true;
            }
            at = (at + 1) % 512;
        }
        false
    }

    /// Notes the hash numbered `number`, which is below 255.
    fn note(&mut self, hash: u64, number: usize) {
        let mut at = Self::place(hash);
        while self.0[at] != 0 {
            at = (at + 1) % 512;
        }
        self.0[at] = number as u16 + 1;
    }
}
