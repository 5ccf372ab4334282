//! What readers ask of the store: who holds a hash, and how much of a chain from its start each holder has. A walk goes
//! slab by slab: one probe finds the first block, a sweep compares the rest of the stretch, and the spans say who holds it.
//! It reads, never waits and changes nothing.

use super::slab::{self, Slab};
use super::span::{self, Span};
use super::table::{At, Shared};
use crate::lookup::rank;

/// Where and when a lookup looks.
#[derive(Copy, Clone)]
pub(crate) struct Sight {
    pub(crate) domain: u64,
    pub(crate) partition: u64,
    pub(crate) now_us: u64,
    pub(crate) ttl_us: u64,
}

/// One holder's match.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// The holder's seat.
    pub(crate) seat: u32,
    /// The coldest tier of the run.
    pub(crate) coldness: u32,
    /// Tokens of the run.
    pub(crate) tokens: i32,
    /// Blocks of the run.
    pub(crate) depth: u32,
    /// The oldest last-seen of the run.
    pub(crate) seen_us: u64,
}

impl Sight {
    fn find<'m>(&self, shared: &'m Shared, hash: &[u8]) -> Option<(Slab<'m>, u32)> {
        self.find_hashed(shared, shared.table.hash(self.domain, hash), hash)
    }

    #[inline]
    fn find_hashed<'m>(&self, shared: &'m Shared, table_hash: u64, hash: &[u8]) -> Option<(Slab<'m>, u32)> {
        let memory = &shared.memory;
        let is_it = |at: At| {
            let slab = slab::slab_at(memory, at);
            slab.partition() == self.partition && slab.holds(at.position, hash)
        };
        let at = shared.table.find(memory, table_hash, is_it)?;
        Some((slab::slab_at(memory, at), at.position))
    }

    fn is_fresh(&self, span: &Span) -> bool {
        rank::is_fresh(self.now_us, span.seen_us, self.ttl_us)
    }

    /// All seats that hold `hash`, with the stored token counts.
    pub(crate) fn exact(&self, shared: &Shared, hash: &[u8], matches: &mut Vec<Match>) {
        matches.clear();
        let Some((slab, position)) = self.find(shared, hash) else { return };
        let spans = slab.spans().iter().map(span::read);
        matches.extend(spans.filter(|span| span.covers(position) && self.is_fresh(span)).map(|span| Match {
            seat: span.seat,
            coldness: rank::coldness(span.tier),
            tokens: span.tokens(position),
            depth: 1,
            seen_us: span.seen_us,
        }));
    }

    /// Each seat's longest leading run of a chain of `len` hashes; token counts are left at 0. `matches` gets the runs,
    /// ascending by seat.
    pub(crate) fn chain<'h>(
        &self,
        shared: &Shared,
        len: usize,
        hash: impl Fn(usize) -> &'h [u8],
        matches: &mut Vec<Match>,
    ) {
        matches.clear();
        let mut done = 0;
        let mut next = (len > 0).then(|| shared.table.hash(self.domain, hash(0)));
        while let Some(table_hash) = next {
            let Some((slab, position)) = self.find_hashed(shared, table_hash, hash(done)) else { return };
            slab.prefetch_spans();
            let end = done + slab.prefetch_hashes(position, len - done);
            if end < len {
                // Most likely the chain goes on behind the slab.
                shared.table.prefetch(&shared.memory, shared.table.hash(self.domain, hash(end)));
            }
            let count = slab.matching(position, len - done, |at| hash(done + at));
            if count == 0 {
                return;
            }
            let after = done + count as usize;
            // The next probe's memory comes while the spans are read.
            next = (after < len).then(|| shared.table.hash(self.domain, hash(after)));
            if let Some(table_hash) = next.filter(|_| after != end) {
                shared.table.prefetch(&shared.memory, table_hash);
            }
            let stretch = Stretch { position, end: position + count, done: done as u32 };
            let is_alive = match done {
                0 => self.begin(&slab, stretch, matches),
                _ => self.go_on(&slab, stretch, matches),
            };
            if !is_alive {
                return;
            }
            done = after;
        }
    }

    /// Begins a run for each seat that holds the first position. True when one reaches the end of the stretch.
    fn begin(&self, slab: &Slab<'_>, stretch: Stretch, matches: &mut Vec<Match>) -> bool {
        let mut is_alive = false;
        for words in slab.spans() {
            let span = span::read(words);
            if span.end <= stretch.position || span.start >= stretch.end || !self.is_fresh(&span) {
                continue;
            }
            if span.start <= stretch.position {
                matches.push(Match { seat: span.seat, coldness: 0, tokens: 0, depth: 0, seen_us: u64::MAX });
            }
            if let Some(found) = matches.last_mut().filter(|found| found.seat == span.seat) {
                is_alive |= stretch.extend(found, &span);
            }
        }
        is_alive
    }

    /// Extends the runs that reach the stretch by what their seats hold of it. True when one reaches its end.
    fn go_on(&self, slab: &Slab<'_>, stretch: Stretch, matches: &mut [Match]) -> bool {
        let mut is_alive = false;
        let mut rest = matches;
        for words in slab.spans() {
            let span = span::read(words);
            if span.end <= stretch.position || span.start >= stretch.end || !self.is_fresh(&span) {
                continue;
            }
            let skip = match rest.first() {
                Some(found) if found.seat >= span.seat => 0,
                _ => rest.partition_point(|found| found.seat < span.seat),
            };
            rest = rest.get_mut(skip..).unwrap_or(&mut []);
            match rest.first_mut() {
                Some(found) if found.seat == span.seat => is_alive |= stretch.extend(found, &span),
                Some(_) => {}
                None => break,
            }
        }
        is_alive
    }
}

/// The part of a slab that a chain goes through.
#[derive(Copy, Clone)]
struct Stretch {
    position: u32,
    end: u32,
    /// Blocks of the chain before it.
    done: u32,
}

impl Stretch {
    /// Extends a run by a span, if it reaches it. True when it then reaches the end of the stretch.
    #[inline]
    fn extend(&self, found: &mut Match, span: &Span) -> bool {
        let start = span.start.max(self.position);
        if found.depth != self.done + start - self.position {
            return false;
        }
        let end = span.end.min(self.end);
        found.depth = self.done + end - self.position;
        found.seen_us = found.seen_us.min(span.seen_us);
        found.coldness = found.coldness.max(rank::coldness(span.tier));
        end == self.end
    }
}

/// Goes through all spans, of the dead too: `each` gets the partition's id, the seat, and a span's length and last-seen.
/// The caller holds a pin.
pub(crate) fn census(shared: &Shared, mut each: impl FnMut(u64, u32, u64, u64)) {
    for shard in 0..shared.table.shards() {
        shared.table.scan(&shared.memory, shard, |at| {
            // Every slab has one position 0, which has its slot like all others.
            if at.position == 0 {
                let slab = slab::slab_at(&shared.memory, at);
                for span in slab.spans().iter().map(span::read) {
                    each(slab.partition(), span.seat, u64::from(span.len()), span.seen_us);
                }
            }
        });
    }
}
