//! What readers ask of the store: who holds a hash, and how much of a chain from its start each holder has. A walk goes
//! slab by slab: one probe finds the first block, a sweep compares the rest of the stretch, and the spans say who holds it.
//! It reads, never waits and changes nothing.

use super::memory;
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

    /// Asks for what a lookup of a hash needs first to be brought near, besides the hash.
    pub(crate) fn prefetch(&self, shared: &Shared, hash: &[u8]) {
        shared.table.prefetch(&shared.memory, shared.table.hash(self.domain, hash));
    }

    /// Each seat's longest leading run of a chain of hashes; token counts are left at 0. `matches` gets the runs,
    /// ascending by seat. No run has more blocks than what is returned.
    pub(crate) fn chain<B: AsRef<[u8]>>(&self, shared: &Shared, hashes: &[B], matches: &mut Vec<Match>) -> u32 {
        matches.clear();
        let Shared { memory, table, .. } = shared;
        let table_hash = |hash: &B| table.hash(self.domain, hash.as_ref());
        let (mut done, mut rest) = (0, hashes);
        let mut next = rest.first().map(table_hash);
        while let (Some(table_hash_now), Some(first)) = (next, rest.first()) {
            let Some((slab, position)) = self.find_hashed(shared, table_hash_now, first.as_ref()) else { break };
            slab.prefetch_spans();
            // Most likely the chain goes on behind the slab.
            let behind = slab.prefetch_hashes(position, rest.len());
            let likely = rest.get(behind).map(table_hash);
            if let Some(likely) = likely {
                table.prefetch(memory, likely);
            }
            let count = slab.matching(position, rest, |hash| hash.as_ref());
            let Some(after) = rest.get(count as usize..).filter(|_| count > 0) else { break };
            next = match likely.filter(|_| count as usize == behind) {
                Some(likely) => Some(likely),
                None => {
                    let next = after.first().map(table_hash);
                    next.iter().for_each(|next| table.prefetch(memory, *next));
                    next
                }
            };
            let stretch = Stretch { position, end: position + count, done };
            // What the next probe needs comes while the spans are read.
            let ahead = || {
                if let (Some(table_hash), Some(hash)) = (next, after.first())
                    && let Some(at) = table.likely(memory, table_hash)
                {
                    Slab::prefetch(memory, at, hash.as_ref().len());
                }
            };
            let is_alive = match done {
                0 => self.begin(&slab, stretch, matches, ahead),
                _ => self.go_on(&slab, stretch, matches, ahead),
            };
            done += count;
            if !is_alive {
                break;
            }
            rest = after;
        }
        done
    }

    /// Begins a run for each seat that holds the first position. True when one reaches the end of the stretch.
    #[inline]
    fn begin(&self, slab: &Slab<'_>, stretch: Stretch, matches: &mut Vec<Match>, ahead: impl Fn()) -> bool {
        let mut is_alive = false;
        let spans = slab.spans();
        matches.reserve(spans.len());
        for (at, words) in spans.iter().enumerate() {
            if at == LEAD {
                ahead();
            }
            let span = span::read(words);
            if span.end <= stretch.position || span.start >= stretch.end || !self.is_fresh(&span) {
                continue;
            }
            if span.start <= stretch.position {
                let end = span.end.min(stretch.end);
                let (coldness, depth) = (rank::coldness(span.tier), end - stretch.position);
                matches.push(Match { seat: span.seat, coldness, tokens: 0, depth, seen_us: span.seen_us });
                is_alive |= end == stretch.end;
            } else if let Some(found) = matches.last_mut().filter(|found| found.seat == span.seat) {
                is_alive |= stretch.extend(found, &span);
            }
        }
        is_alive
    }

    /// Extends the runs that reach the stretch by what their seats hold of it. True when one reaches its end.
    #[inline]
    fn go_on(&self, slab: &Slab<'_>, stretch: Stretch, matches: &mut [Match], ahead: impl Fn()) -> bool {
        let mut is_alive = false;
        let mut rest = matches;
        for (at, words) in slab.spans().iter().enumerate() {
            if at == LEAD {
                ahead();
            }
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

/// After so many spans the bucket that was asked for before them is likely to be there.
const LEAD: usize = 8;

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

/// Asks for the hashes of a lookup to be brought near, in case that whoever sent them hasn't just written them.
pub(crate) fn prefetch_hashes<B>(hashes: &[B]) {
    const LINES: usize = 24;
    memory::prefetch(hashes, LINES);
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
