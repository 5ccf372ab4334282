//! A span: the stretch of a slab that one holder has, seen at one time, in one tier, used equally often, with token
//! counts in a steady step. Four words, of which each change in place touches one; a reader takes all four, and again
//! if the stretch has changed meanwhile. Every state at rest is a valid one, so no reader waits for a writer that
//! has stopped between two of them.

use super::word::Word;
use std::sync::atomic::Ordering;

/// Words of a span.
pub(crate) const SPAN_WORDS: usize = 4;
/// Seats are numbered in so many bits.
pub(crate) const SEAT_BITS: u32 = 24;

/// A span.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The holder's seat in its (tenant, model).
    pub(crate) seat: u32,
    /// The first position, and the one after the last.
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) seen_us: u64,
    pub(crate) tier: i32,
    pub(crate) accesses: u32,
    /// The token count that position 0 would have, and what each position adds: so that a stretch can shrink and grow
    /// without touching them.
    pub(crate) base: i32,
    pub(crate) step: i32,
}

impl Span {
    /// The token count at a position.
    pub(crate) fn tokens(&self, at: u32) -> i32 {
        self.base.wrapping_add(self.step.wrapping_mul(at as i32))
    }

    /// How many positions it has.
    pub(crate) fn len(&self) -> u32 {
        self.end - self.start
    }

    /// True when the position is in it.
    pub(crate) fn covers(&self, at: u32) -> bool {
        self.start <= at && at < self.end
    }

    /// The same with another stretch.
    pub(crate) fn cut(&self, start: u32, end: u32) -> Self {
        Self { start, end, ..*self }
    }

    /// The words, with a version.
    pub(crate) fn encode(&self, version: u64) -> [u64; SPAN_WORDS] {
        let place = (version << 40) | (u64::from(self.seat) << 16) | (u64::from(self.start) << 8) | u64::from(self.end);
        let pair = |high: u32, low: u32| (u64::from(high) << 32) | u64::from(low);
        [self.seen_us, place, pair(self.base as u32, self.step as u32), pair(self.tier as u32, self.accesses)]
    }

    #[inline]
    fn decode(words: [u64; SPAN_WORDS]) -> Self {
        let [seen_us, place, tokens, rest] = words;
        Self {
            seat: seat_of(place),
            start: (place >> 8) as u32 & 0xff,
            end: place as u32 & 0xff,
            seen_us,
            tier: (rest >> 32) as i32,
            accesses: rest as u32,
            base: (tokens >> 32) as i32,
            step: tokens as i32,
        }
    }
}

fn seat_of(place: u64) -> u32 {
    (place >> 16) as u32 & ((1 << SEAT_BITS) - 1)
}

/// Reads a span whole.
#[inline]
pub(crate) fn read<W: Word>(words: &[W; SPAN_WORDS]) -> Span {
    let (place, seen_us, rest) = together(words);
    // These never change in place.
    let tokens = words[2].load(Ordering::Relaxed);
    Span::decode([seen_us, place, tokens, rest])
}

/// What a chain is matched by: a span without its token counts and accesses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) seat: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) seen_us: u64,
    pub(crate) tier: i32,
}

/// Reads of a span what a chain is matched by.
#[inline]
pub(crate) fn hold<W: Word>(words: &[W; SPAN_WORDS]) -> Hold {
    let (place, seen_us, rest) = together(words);
    let Span { seat, start, end, seen_us, tier, .. } = Span::decode([seen_us, place, 0, rest]);
    Hold { seat, start, end, seen_us, tier }
}

/// The words that change in place, as they were together: where it is, since when, and the rest.
#[inline]
fn together<W: Word>(words: &[W; SPAN_WORDS]) -> (u64, u64, u64) {
    loop {
        let place = words[1].load(Ordering::Acquire);
        let seen_us = words[0].load(Ordering::Acquire);
        let rest = words[3].load(Ordering::Relaxed);
        // A later time that belongs to a shorter stretch was stored after that stretch, and loading it with acquire
        // shows the stretch here.
        if words[1].load(Ordering::Relaxed) == place {
            return (place, seen_us, rest);
        }
    }
}

/// The seat alone.
#[inline]
pub(crate) fn seat<W: Word>(words: &[W; SPAN_WORDS]) -> u32 {
    seat_of(words[1].load(Ordering::Relaxed))
}

/// Writes a span that no reader can find yet.
pub(crate) fn write<W: Word>(words: &[W; SPAN_WORDS], span: &Span) {
    for (word, value) in words.iter().zip(span.encode(0)) {
        word.store(value, Ordering::Relaxed);
    }
}

/// Makes a published span into `new` if one word does it; false when it doesn't, and nothing is changed. For the
/// single writer alone.
pub(crate) fn change<W: Word>(words: &[W; SPAN_WORDS], new: &Span) -> bool {
    let old = read(words);
    let same_stretch = (old.start, old.end) == (new.start, new.end);
    let is = |other: Span| *new == other;
    if same_stretch && is(Span { seen_us: new.seen_us, ..old }) {
        words[0].store(new.seen_us, Ordering::Release);
    } else if is(old.cut(new.start, new.end)) {
        let version = (words[1].load(Ordering::Relaxed) >> 40).wrapping_add(1);
        words[1].store(new.encode(version)[1], Ordering::Release);
    } else if same_stretch && is(Span { accesses: new.accesses, ..old }) {
        // Readers don't look at access counts.
        words[3].store(new.encode(0)[3], Ordering::Relaxed);
    } else {
        return false;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_span_survives_its_words_and_changes_by_one_of_them() {
        let span = Span {
            seat: (1 << SEAT_BITS) - 1,
            start: 3,
            end: 255,
            seen_us: u64::MAX - 5,
            tier: -7,
            accesses: u32::MAX,
            base: -40,
            step: 16,
        };
        let words: [AtomicU64; 4] = std::array::from_fn(|_| AtomicU64::new(0));
        write(&words, &span);
        assert_eq!((read(&words), seat(&words)), (span, span.seat));
        let Span { seat, start, end, seen_us, tier, .. } = span;
        assert_eq!(hold(&words), Hold { seat, start, end, seen_us, tier });
        assert_eq!((span.tokens(3), span.len()), (8, 252));
        let steps = [span.cut(3, 9), span.cut(0, 9), Span { seen_us: 1, ..span.cut(0, 9) }];
        let steps = steps.into_iter().chain([Span { seen_us: 1, accesses: 3, ..span.cut(0, 9) }]);
        for new in steps {
            assert!(change(&words, &new));
            assert_eq!(read(&words), new);
        }
        let last = read(&words);
        for new in [Span { tier: 1, ..last }, Span { base: 0, ..last }, Span { seen_us: 2, ..last.cut(1, 9) }] {
            assert!(!change(&words, &new));
            assert_eq!(read(&words), last);
        }
    }
}
