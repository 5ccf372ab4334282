//! Short slabs of one holder put together: what came block by block, each block alone among others, lies in a slab a
//! block, until it is reported as the chain that it is. It moves keys and changes nothing that anybody can ask for.

use super::edit::copy_hash;
use super::put::{Block, Place};
use super::slab::{self, SHAPE, Shape, Slab};
use super::span::{self, Span};
use super::table::{At, Shared};
use super::{Last, Store};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Slabs of more positions aren't moved behind others.
const SHORT: u32 = 16;
/// What is put together is at least one in so many positions of the slab that it is put behind, so that a chain isn't
/// moved again for each block that it grows by.
const LEAST_SHARE: u32 = 4;

/// A slab that one holder has the whole of by one span.
#[derive(Copy, Clone)]
struct Piece {
    number: u32,
    used: u32,
    span: Span,
}

impl Store {
    /// Puts the short slabs together in which the first of `blocks` lie, behind the one that `last` ended, if that fits.
    /// `number` is the slab of the first, which is elsewhere if true is returned.
    pub(super) fn absorb(&mut self, place: &Place, number: u32, blocks: &[Block<'_>], last: Option<Last>) -> bool {
        let Some(first) = self.piece(place, number).filter(|piece| piece.used <= SHORT) else { return false };
        let width = self.width_of(number) as u32;
        let before = last.and_then(|last| {
            let piece = self.piece(place, last.slab)?;
            (last.slab != number && last.position + 1 == piece.used && self.width_of(last.slab) as u32 == width)
                .then_some(piece)
        });
        let mut pieces: Vec<Piece> = before.into_iter().collect();
        let (mut total, mut short, mut at) = (before.map_or(0, |piece| piece.used), 0, 0);
        let mut next = Some(first);
        while let Some(piece) = next {
            let rest = blocks.get(at..).unwrap_or(&[]);
            let is_whole = self.slab(piece.number).is_some_and(|slab| {
                slab.shape().width == width && slab.matching(0, rest, |block| block.0) == piece.used
            });
            let is_new = pieces.iter().all(|held| held.number != piece.number);
            if !is_whole || !is_new || piece.used > SHORT || total + piece.used > slab::most_positions(width) {
                break;
            }
            pieces.push(piece);
            total += piece.used;
            short += piece.used;
            at += piece.used as usize;
            let follower = blocks.get(at).and_then(|(hash, _)| self.find(place.domain, place.partition, hash));
            next = follower.filter(|(_, position)| *position == 0).and_then(|(number, _)| self.piece(place, number));
        }
        let is_worth_it = short * LEAST_SHARE >= total && pieces.len() > 1;
        let is_alike = pieces.iter().all(|piece| piece.span.accesses == first.span.accesses);
        is_worth_it && is_alike && self.put_together(place, &pieces, total, width).is_some()
    }

    fn piece(&self, place: &Place, number: u32) -> Option<Piece> {
        self.record(number).filter(|record| record.partition == place.partition_at)?;
        let slab = self.slab(number)?;
        let [only] = slab.spans() else { return None };
        let (span, used) = (span::read(only), slab.shape().used);
        (span.seat == place.seat && (span.start, span.end) == (0, used)).then_some(Piece { number, used, span })
    }

    /// Makes one slab of pieces, under the number of the one that was seen longest ago, as orders have that where it is or
    /// before.
    fn put_together(&mut self, place: &Place, pieces: &[Piece], total: u32, width: u32) -> Option<()> {
        let number = pieces.iter().min_by_key(|piece| piece.span.seen_us)?.number;
        let record = *self.record(number)?;
        let shared = Arc::clone(&self.shared);
        let Shared { memory, table, .. } = &*shared;
        for piece in pieces {
            let granule = self.record(piece.number)?.granule;
            self.keep(piece.number, &Slab::at(memory, granule), 0);
        }
        let target = self.blank(number, &record, width, total)?;
        let new = Slab::at(memory, target);
        let (mut spans, mut next) = (Vec::with_capacity(pieces.len()), 0);
        for piece in pieces {
            let old = self.slab(piece.number)?;
            (0..piece.used).for_each(|at| copy_hash(&old, at, &new, next + at, width));
            let by = i32::try_from(next).ok()?;
            let base = piece.span.base.wrapping_sub(piece.span.step.wrapping_mul(by));
            spans.push(Span { base, ..piece.span.cut(next, next + piece.used) });
            next += piece.used;
        }
        super::put::join(&new, &mut spans);
        new.header[SHAPE].store(Shape { used: total, ..new.shape() }.encode(), Ordering::Release);
        if self.publish(&new, (0, &[], &spans)).is_none() {
            self.space.give(memory, target, slab::granules(new.shape().room, width));
            return None;
        }
        let mut position = 0;
        for piece in pieces {
            let Some(old) = self.record(piece.number).map(|record| record.granule) else { continue };
            if piece.number != number {
                self.records.remove(piece.number);
                self.absorbed += 1;
            }
            let slab = Slab::at(memory, old);
            for at in 0..piece.used {
                let hash = table.hash(place.domain, &slab.hash(at));
                let places = (At { granule: old, position: at }, At { granule: target, position });
                self.keys.repoint(table, memory, hash, places);
                position += 1;
            }
            self.retire_slab(&slab);
        }
        if let Some(of) = self.records.get_mut(number) {
            *of = super::Record { granule: target, held: total, ..record };
        }
        Some(())
    }
}
