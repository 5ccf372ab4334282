//! What readers ask of the store: who holds a hash, and how much of a chain from its start each holder has. A walk goes
//! slab by slab: one probe finds the first block, a sweep compares the rest of the stretch, and the spans say who holds it.
//! It reads, never waits and changes nothing.

use super::memory;
use super::slab::{self, Slab};
use super::span::{self, Hold, SPAN_WORDS};
use super::table::{At, Shared};
use crate::lookup::rank;
use std::sync::atomic::AtomicU64;

/// Where and when a lookup looks.
#[derive(Copy, Clone)]
pub(crate) struct Sight {
    pub(crate) domain: u64,
    pub(crate) partition: u64,
    /// What was last seen before doesn't match.
    pub(crate) oldest_us: u64,
}

/// One holder's match.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
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
        self.find_hashed(shared, shared.table.hash(self.domain, hash), hash, 1)
    }

    /// Where a hash is that so many others may follow.
    #[inline]
    fn find_hashed<'m>(
        &self,
        shared: &'m Shared,
        table_hash: u64,
        hash: &[u8],
        most: usize,
    ) -> Option<(Slab<'m>, u32)> {
        let memory = &shared.memory;
        let is_it = |at: At| {
            // They come together with the header.
            Slab::prefetch(memory, at, hash.len(), most);
            let slab = slab::slab_at(memory, at);
            slab.partition() == self.partition && slab.holds(at.position, hash)
        };
        let at = shared.table.find(memory, table_hash, is_it)?;
        Some((slab::slab_at(memory, at), at.position))
    }

    /// All seats that hold `hash`, with the stored token counts.
    pub(crate) fn exact(&self, shared: &Shared, hash: &[u8], matches: &mut Vec<Match>) {
        matches.clear();
        let Some((slab, position)) = self.find(shared, hash) else { return };
        let spans = slab.spans().iter().map(span::read);
        let holding = spans.filter(|span| span.covers(position) && span.seen_us >= self.oldest_us);
        matches.extend(holding.map(|span| Match {
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
        let Shared { memory, table, .. } = shared;
        let table_hash = |hash: &B| table.hash(self.domain, hash.as_ref());
        let (mut done, mut rest) = (0, hashes);
        let mut next = rest.first().map(table_hash);
        while let (Some(table_hash_now), Some(first)) = (next, rest.first()) {
            let Some((slab, position)) = self.find_hashed(shared, table_hash_now, first.as_ref(), rest.len()) else {
                break;
            };
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
                    Slab::prefetch(memory, at, hash.as_ref().len(), after.len());
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
        if done == 0 {
            matches.clear();
        }
        done
    }

    /// Begins a run for each seat that holds the first position, in place of what `matches` held. True when one reaches the
    /// end of the stretch.
    #[inline]
    fn begin(&self, slab: &Slab<'_>, stretch: Stretch, matches: &mut Vec<Match>, ahead: impl Fn()) -> bool {
        let (near, far) = in_two(slab.spans());
        let most = near.len() + far.len();
        // What is in there is written over, so that mostly nothing has to be made first.
        if matches.len() < most {
            matches.resize(most, Match::default());
        }
        let (mut begun, mut is_alive) = begin_by(near, self.oldest_us, stretch, (None, matches));
        if !far.is_empty() {
            ahead();
            if let Some((before, room)) = matches.split_at_mut_checked(begun) {
                let (more, is_more_alive) = begin_by(far, self.oldest_us, stretch, (before.last_mut(), room));
                (begun, is_alive) = (begun + more, is_alive | is_more_alive);
            }
        }
        matches.truncate(begun);
        is_alive
    }

    /// Extends the runs that reach the stretch by what their seats hold of it. True when one reaches its end.
    #[inline]
    fn go_on(&self, slab: &Slab<'_>, stretch: Stretch, matches: &mut [Match], ahead: impl Fn()) -> bool {
        let (near, far) = in_two(slab.spans());
        let (is_alive, rest) = go_on_by(near, self.oldest_us, stretch, matches);
        if far.is_empty() || rest.is_empty() {
            return is_alive;
        }
        ahead();
        go_on_by(far, self.oldest_us, stretch, rest).0 | is_alive
    }
}

/// The spans in two parts, so that something can be done between them.
#[inline]
fn in_two(spans: &[SpanWords]) -> (&[SpanWords], &[SpanWords]) {
    let lead = spans.len().div_ceil(2).clamp(FEW.min(spans.len()), LEAD);
    spans.split_at_checked(lead).unwrap_or((spans, &[]))
}

/// [`Sight::begin`] for some of the spans: the match before theirs, and the room for theirs. Returns how many there are.
/// Apart, so that the loop has the registers to itself.
#[inline(never)]
fn begin_by<'f>(
    spans: &[SpanWords],
    oldest_us: u64,
    stretch: Stretch,
    (mut last, room): (Option<&'f mut Match>, &'f mut [Match]),
) -> (usize, bool) {
    let most = room.len();
    let mut room = room.iter_mut();
    let mut reached = 0;
    for words in spans {
        let hold = span::hold(words);
        if hold.seen_us < oldest_us || hold.end <= stretch.position {
            continue;
        }
        if hold.start <= stretch.position {
            let Some(found) = room.next() else { break };
            let end = hold.end.min(stretch.end);
            let (coldness, depth) = (rank::coldness(hold.tier), end - stretch.position);
            *found = Match { seat: hold.seat, coldness, tokens: 0, depth, seen_us: hold.seen_us };
            reached = reached.max(end);
            last = Some(found);
        } else if hold.start < stretch.end
            && let Some(found) = last.as_mut().filter(|found| found.seat == hold.seat)
            && stretch.extend(found, &hold)
        {
            reached = stretch.end;
        }
    }
    (most - room.len(), reached == stretch.end)
}

/// [`Sight::go_on`] for some of the spans; returns the runs that later spans may extend as well.
#[inline(never)]
fn go_on_by<'f>(
    spans: &[SpanWords],
    oldest_us: u64,
    stretch: Stretch,
    matches: &'f mut [Match],
) -> (bool, &'f mut [Match]) {
    let mut is_alive = false;
    let mut rest = matches;
    for words in spans {
        let hold = span::hold(words);
        if hold.seen_us < oldest_us || hold.end <= stretch.position || hold.start >= stretch.end {
            continue;
        }
        let skip = match rest.first() {
            Some(found) if found.seat >= hold.seat => 0,
            _ => rest.partition_point(|found| found.seat < hold.seat),
        };
        rest = rest.get_mut(skip..).unwrap_or(&mut []);
        match rest.first_mut() {
            Some(found) if found.seat == hold.seat => is_alive |= stretch.extend(found, &hold),
            Some(_) => {}
            None => break,
        }
    }
    (is_alive, rest)
}

/// A span as it lies.
type SpanWords = [AtomicU64; SPAN_WORDS];

/// After so many spans the bucket that was asked for before them is likely to be there.
const LEAD: usize = 24;
/// So few spans aren't worth an interruption.
const FEW: usize = 4;

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
    fn extend(&self, found: &mut Match, span: &Hold) -> bool {
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

/// Asks for the hashes of a lookup to be brought near, in case that whoever sent them hasn't just written them: the first
/// of them, or the others that are worth it. Between the two comes what the first one asks for.
pub(crate) fn prefetch_hashes<B>(hashes: &[B], are_first: bool) {
    const FIRST_LINES: usize = 4;
    const LINES: usize = 32;
    let first = hashes.len().min(FIRST_LINES * memory::LINE_BYTES / size_of::<B>().max(1));
    match are_first {
        true => memory::prefetch(hashes.get(..first).unwrap_or(hashes), FIRST_LINES),
        false => memory::prefetch(hashes.get(first..).unwrap_or(&[]), LINES - FIRST_LINES),
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
