//! The layout of a slab: up to 255 hashes of one width side by side, of one partition, and whose they are. The first
//! granule begins with its header. Hashes are appended and never changed; everything else is in the spans. See `span` for
//! those, `edit` for the writer's changes, `runs` for what readers do with it.

use super::memory::{GRANULE_WORDS, Line, Memory};
use super::span::SPAN_WORDS;
use super::table::At;
use crate::limits::MAX_HASH_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the spans are: first granule and number; granule 0 means in the header.
pub(crate) const SPANS: usize = 0;
/// The first word of the span in the header.
const INLINE: usize = 1;
/// The partition's id.
pub(crate) const PARTITION: usize = 5;
/// The writer's number for the slab, width of a hash in bytes, hashes that there is room for, hashes used.
pub(crate) const SHAPE: usize = 6;
/// Where hashes begin: the first short one lies beside what leads to it.
const HASHES: usize = 7;

/// Most positions of a slab: one less than a byte counts.
const MAX_POSITIONS: u32 = 255;
/// As many cache lines as are worth asking for at a time.
const MAX_PREFETCH: usize = 32;
/// The same before the header says how many hashes there are.
const MAX_GUESS: usize = 12;
/// A slab is at most so large, header included, in granules.
const MAX_GRANULES: u32 = 64;

/// What a slab's shape word says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) number: u32,
    pub(crate) width: u32,
    pub(crate) room: u32,
    pub(crate) used: u32,
}

impl Shape {
    pub(crate) fn encode(self) -> u64 {
        let lengths = (self.width << 16) | (self.room << 8) | self.used;
        (u64::from(self.number) << 32) | u64::from(lengths)
    }

    fn decode(word: u64) -> Self {
        let lengths = word as u32;
        Self {
            number: (word >> 32) as u32,
            width: (lengths >> 16) & 0xff,
            room: (lengths >> 8) & 0xff,
            used: lengths & 0xff,
        }
    }
}

/// Words of a hash of so many bytes.
pub(crate) fn words_of(width: u32) -> usize {
    (width as usize).div_ceil(size_of::<u64>())
}

/// Most positions of a slab with hashes of this width.
pub(crate) fn most_positions(width: u32) -> u32 {
    room(MAX_GRANULES, width)
}

/// Positions that a slab of so many granules has room for.
pub(crate) fn room(granules: u32, width: u32) -> u32 {
    let words = (granules * GRANULE_WORDS as u32).saturating_sub(HASHES as u32);
    (words / words_of(width).max(1) as u32).min(MAX_POSITIONS)
}

/// Granules of a slab with room for so many positions.
pub(crate) fn granules(positions: u32, width: u32) -> u32 {
    (HASHES as u32 + positions * words_of(width) as u32).div_ceil(GRANULE_WORDS as u32)
}

/// Where so many hashes of so many words from a position on are: the first granule, counted from the slab's, and the number.
#[inline]
fn row(position: u32, hashes: usize, each: usize) -> (u32, usize) {
    let first = HASHES + position as usize * each;
    ((first / GRANULE_WORDS) as u32, (first % GRANULE_WORDS + hashes * each).div_ceil(GRANULE_WORDS))
}

/// A slab that may be read.
#[derive(Copy, Clone)]
pub(crate) struct Slab<'m> {
    memory: &'m Memory,
    pub(crate) granule: u32,
    pub(crate) header: &'m Line,
}

/// A hash as bytes.
pub(crate) struct HashBytes {
    bytes: [u8; MAX_HASH_BYTES],
    width: usize,
}

impl std::ops::Deref for HashBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.width).unwrap_or(&self.bytes)
    }
}

impl<'m> Slab<'m> {
    #[inline]
    pub(crate) fn at(memory: &'m Memory, granule: u32) -> Self {
        Self { memory, granule, header: memory.line(granule) }
    }

    #[inline]
    pub(crate) fn shape(&self) -> Shape {
        Shape::decode(self.header[SHAPE].load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn partition(&self) -> u64 {
        self.header[PARTITION].load(Ordering::Relaxed)
    }

    pub(crate) fn number(&self) -> u32 {
        self.shape().number
    }

    /// Where the spans are, if not in the header, and how many.
    #[inline]
    pub(crate) fn spans_word(&self) -> (u32, usize) {
        let word = self.header[SPANS].load(Ordering::Acquire);
        ((word >> 32) as u32, word as u32 as usize)
    }

    /// The spans, ascending by seat, then start.
    #[inline]
    pub(crate) fn spans(&self) -> &'m [[AtomicU64; SPAN_WORDS]] {
        let (granule, count) = self.spans_word();
        let words = match granule {
            0 => self.header.get(INLINE..INLINE + SPAN_WORDS * count.min(1)).unwrap_or(&[]),
            _ => self.memory.words(granule, 0, count * SPAN_WORDS),
        };
        words.as_chunks().0
    }

    /// Asks for the first spans to be brought near, if they are elsewhere.
    #[inline]
    pub(crate) fn prefetch_spans(&self) {
        let (granule, count) = self.spans_word();
        if granule != 0 {
            self.memory.prefetch_row(granule, (count * SPAN_WORDS).div_ceil(GRANULE_WORDS).min(8));
        }
    }

    /// Asks for the header and so many hashes from a position on to be brought near, of a slab of which nothing is known
    /// yet but that its hashes may be of that width.
    #[inline]
    pub(crate) fn prefetch(memory: &Memory, at: At, width: usize, hashes: usize) {
        memory.prefetch(at.granule);
        let (granule, granules) = row(at.position, hashes, width.div_ceil(size_of::<u64>()));
        memory.prefetch_row(at.granule + granule, granules.min(MAX_GUESS));
    }

    /// Asks for the hashes from a position on to be brought near, at most `most` of them; returns how many there are.
    #[inline]
    pub(crate) fn prefetch_hashes(&self, position: u32, most: usize) -> usize {
        let shape = self.shape();
        let count = (shape.used.saturating_sub(position) as usize).min(most);
        let (granule, granules) = row(position, count, words_of(shape.width));
        self.memory.prefetch_row(self.granule + granule, granules.min(MAX_PREFETCH));
        count
    }

    /// The words of the hashes from a position on, at most `count` of them.
    #[inline]
    pub(crate) fn hash_words(&self, position: u32, count: u32, width: u32) -> &'m [AtomicU64] {
        let each = words_of(width);
        self.memory.words(self.granule, HASHES + position as usize * each, count as usize * each)
    }

    /// The bytes of the hash at a position.
    pub(crate) fn hash(&self, position: u32) -> HashBytes {
        let width = self.shape().width;
        let mut hash = HashBytes { bytes: [0; MAX_HASH_BYTES], width: width as usize };
        for (bytes, word) in hash.bytes.chunks_exact_mut(8).zip(self.hash_words(position, 1, width)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        hash
    }

    /// True when the hash at a position is this one.
    #[inline]
    pub(crate) fn holds(&self, position: u32, hash: &[u8]) -> bool {
        let shape = self.shape();
        position < shape.used
            && shape.width as usize == hash.len()
            && is_same(self.hash_words(position, 1, shape.width), hash)
    }

    /// How many hashes from a position on are those of `items`, in their order.
    #[inline]
    pub(crate) fn matching<T>(&self, position: u32, items: &[T], bytes: impl Fn(&T) -> &[u8]) -> u32 {
        let shape = self.shape();
        let count = shape.used.saturating_sub(position).min(u32::try_from(items.len()).unwrap_or(u32::MAX));
        let words = self.hash_words(position, count, shape.width);
        let matched = match shape.width {
            8 => matching_words::<1, T>(words, items, bytes),
            16 => matching_words::<2, T>(words, items, bytes),
            32 => matching_words::<4, T>(words, items, bytes),
            width => {
                let pairs = words.chunks_exact(words_of(width).max(1)).zip(items);
                let is_next = |(words, item): &(&[AtomicU64], &T)| {
                    bytes(item).len() == width as usize && is_same(words, bytes(item))
                };
                pairs.take_while(is_next).count()
            }
        };
        matched as u32
    }
}

/// So many hashes are compared before anybody asks whether they were the same.
const STRIDE: usize = 8;

/// How many hashes of `N` whole words are those of `items`.
#[inline]
fn matching_words<const N: usize, T>(words: &[AtomicU64], items: &[T], bytes: impl Fn(&T) -> &[u8]) -> usize {
    let words = words.as_chunks::<N>().0;
    // Zero when they are the same.
    let odds = |words: &[AtomicU64; N], item: &T| match bytes(item).as_chunks::<8>() {
        (parts, []) => match <&[[u8; 8]; N]>::try_from(parts) {
            Ok(parts) => {
                let pairs = parts.iter().zip(words);
                pairs.fold(0, |odd, (part, word)| odd | (u64::from_le_bytes(*part) ^ word.load(Ordering::Relaxed)))
            }
            Err(_) => 1,
        },
        _ => 1,
    };
    let strides = words.as_chunks::<STRIDE>().0.iter().zip(items.as_chunks::<STRIDE>().0);
    let is_same = |(words, items): &(&[[AtomicU64; N]; STRIDE], &[T; STRIDE])| {
        let odd = words.iter().zip(*items).fold(0, |odd, (words, item)| odd | odds(words, item));
        // Else the compiler makes a branch of each pair again.
        std::hint::black_box(odd) == 0
    };
    let done = strides.take_while(is_same).count() * STRIDE;
    let rest = words.iter().zip(items).skip(done).take_while(|(words, item)| odds(words, item) == 0);
    done + rest.count()
}

/// True when the words are those of a hash as long as them.
#[inline]
fn is_same(words: &[AtomicU64], hash: &[u8]) -> bool {
    words.iter().zip(hash.chunks(8)).all(|(word, bytes)| word.load(Ordering::Relaxed) == padded(bytes))
}

/// Up to 8 bytes as a word.
#[inline]
pub(crate) fn padded(bytes: &[u8]) -> u64 {
    match <[u8; 8]>::try_from(bytes) {
        Ok(bytes) => u64::from_le_bytes(bytes),
        Err(_) => bytes.iter().rev().fold(0, |word, &byte| (word << 8) | u64::from(byte)),
    }
}

/// The slab that a place in the table is in.
pub(crate) fn slab_at(memory: &Memory, at: At) -> Slab<'_> {
    Slab::at(memory, at.granule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_of_every_width_fit() {
        for width in 1..=MAX_HASH_BYTES as u32 {
            let most = most_positions(width);
            assert!((31..=255).contains(&most), "{width}: {most}");
            for positions in 1..=most {
                let granules = granules(positions, width);
                assert!(granules <= MAX_GRANULES && room(granules, width) >= positions, "{width}: {positions}");
            }
        }
        let shape = Shape { number: u32::MAX - 1, width: 128, room: 255, used: 254 };
        assert_eq!(Shape::decode(shape.encode()), shape);
        assert_eq!((padded(&[1]), padded(&[0, 2])), (1, 512));
    }
}
