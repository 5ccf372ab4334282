//! Who has which granules: the writer's allocator over [`super::memory`]. Small pieces are cut from blocks of one size
//! each; a block that is empty again is anybody's, so that a change in the sizes that are asked for moves memory from
//! one size to another. Larger pieces are whole pages. It never looks into the memory that it gives.

use super::memory::{CHUNK_GRANULES, Memory};
use std::collections::{BTreeMap, BTreeSet};

/// Granules of a page.
const PAGE: u32 = 64;
/// Pages of a block.
const BLOCK_PAGES: u32 = 4;
/// Granules of a block.
const BLOCK: u32 = PAGE * BLOCK_PAGES;
const CHUNK_PAGES: u32 = CHUNK_GRANULES / PAGE;
/// After so many pages have become free, some are released if an eighth of all is free.
const RELEASE_PAGES: u32 = 256;
/// They are in runs of this length.
const RELEASE_RUN: u32 = 32;
/// A chunk that was half full once and of which so many are free is worth less as a huge page than what is free of it.
const THIN: u32 = CHUNK_PAGES / 4 * 3;
/// A chunk of which fewer are free is full, and to lie in a huge page again.
const FULL: u32 = CHUNK_PAGES / 8;
/// So many chunks are looked through at a time.
const RELEASE_CHUNKS: usize = 16;
/// Sizes of pieces that blocks are cut into, in granules: the largest for each number of pieces.
const SIZES: [u32; 28] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 21, 23, 25, 28, 32, 36, 42, 51, 64];
/// The largest piece of a block.
const MAX_SMALL: u32 = 64;

/// A block that is cut up.
struct Block {
    class: usize,
    used: u32,
    free: [u64; 4],
}

/// What the system knows of a chunk.
struct Chunk {
    /// Its free pages.
    free: u32,
    /// How many have become free, or have come, since some were released last.
    loose: u32,
    /// True when half of it was in use once.
    was_used: bool,
    /// True when it isn't to lie in a huge page: the system would fill what was released of it in the background.
    is_thin: bool,
}

/// The allocator.
pub(crate) struct Space {
    chunks: Vec<Chunk>,
    /// Runs of free pages: first page to their number. None crosses a chunk's end.
    free: BTreeMap<u32, u32>,
    blocks: Vec<Option<Box<Block>>>,
    /// Blocks with room, by class; the lowest is filled first.
    open: [BTreeSet<u32>; SIZES.len()],
    classes: [u8; MAX_SMALL as usize + 1],
    used_granules: u64,
    /// Free pages of all chunks.
    free_pages: u32,
    /// Pages that have become free since chunks were looked through last.
    loose: u32,
    /// The chunk that is looked at next.
    next: usize,
}

impl Space {
    pub(crate) fn new() -> Self {
        let class = |granules: usize| SIZES.partition_point(|&size| (size as usize) < granules);
        Self {
            chunks: Vec::new(),
            free: BTreeMap::new(),
            blocks: Vec::new(),
            open: Default::default(),
            // There are 28 classes.
            classes: std::array::from_fn(|granules| class(granules) as u8),
            used_granules: 0,
            free_pages: 0,
            loose: 0,
            next: 0,
        }
    }

    /// What is really given when `granules` are asked for.
    pub(crate) fn rounded(&self, granules: u32) -> u32 {
        match self.class(granules) {
            Some(class) => SIZES.get(class).copied().unwrap_or(MAX_SMALL),
            None => granules.next_multiple_of(PAGE),
        }
    }

    fn class(&self, granules: u32) -> Option<usize> {
        self.classes.get(granules as usize).map(|&class| usize::from(class))
    }

    /// Granules that are given out.
    #[cfg(test)]
    pub(crate) fn used_granules(&self) -> u64 {
        self.used_granules
    }

    /// A piece of at least `granules`; `None` when the region is full. Its words hold whatever was there before.
    pub(crate) fn take(&mut self, memory: &Memory, granules: u32) -> Option<u32> {
        let granules = granules.max(1);
        let first = match self.class(granules) {
            Some(class) => self.take_small(memory, class)?,
            None => self.take_pages(memory, granules.div_ceil(PAGE), 1)? * PAGE,
        };
        self.used_granules += u64::from(self.rounded(granules));
        Some(first)
    }

    /// Takes a piece back that was asked for with the same `granules`.
    pub(crate) fn give(&mut self, memory: &Memory, first: u32, granules: u32) {
        let granules = granules.max(1);
        self.used_granules -= u64::from(self.rounded(granules));
        match self.class(granules) {
            Some(class) => self.give_small(first, class),
            None => self.give_pages(first / PAGE, granules.div_ceil(PAGE)),
        }
        if self.loose >= RELEASE_PAGES {
            self.loose = 0;
            self.release(memory);
        }
    }

    /// Lets the system have long runs of free pages, if many are free.
    fn release(&mut self, memory: &Memory) {
        for _ in 0..RELEASE_CHUNKS.min(self.chunks.len()) {
            if (self.free_pages as usize) < self.chunks.len() * CHUNK_PAGES as usize / 8 {
                return;
            }
            let number = self.next % self.chunks.len();
            self.next = number + 1;
            let chunk = &mut self.chunks[number];
            if chunk.loose < RELEASE_RUN {
                continue;
            }
            chunk.loose = 0;
            if chunk.was_used && !chunk.is_thin && chunk.free >= THIN {
                chunk.is_thin = true;
                memory.thin(number as u32);
            }
            let first = number as u32 * CHUNK_PAGES;
            let runs = self.free.range(first..first + CHUNK_PAGES).filter(|(_, len)| **len >= RELEASE_RUN);
            runs.for_each(|(first, len)| memory.release(first * PAGE, len * PAGE));
        }
    }

    fn take_small(&mut self, memory: &Memory, class: usize) -> Option<u32> {
        let number = match self.open[class].first() {
            Some(&number) => number,
            None => self.new_block(memory, class)?,
        };
        let block = self.blocks.get_mut(number as usize)?.as_deref_mut()?;
        let (at, word) = block.free.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros();
        *word &= *word - 1;
        block.used += 1;
        let piece = at as u32 * 64 + bit;
        let size = SIZES[class];
        if block.used == BLOCK / size {
            self.open[class].remove(&number);
        }
        Some(number * BLOCK + piece * size)
    }

    fn new_block(&mut self, memory: &Memory, class: usize) -> Option<u32> {
        let number = self.take_pages(memory, BLOCK_PAGES, BLOCK_PAGES)? / BLOCK_PAGES;
        let pieces = BLOCK / SIZES[class];
        let free = std::array::from_fn(|at| match pieces.saturating_sub(at as u32 * 64) {
            64.. => u64::MAX,
            left => (1 << left) - 1,
        });
        if self.blocks.len() <= number as usize {
            self.blocks.resize_with(number as usize + 1, || None);
        }
        self.blocks[number as usize] = Some(Box::new(Block { class, used: 0, free }));
        self.open[class].insert(number);
        Some(number)
    }

    fn give_small(&mut self, first: u32, class: usize) {
        let number = first / BLOCK;
        let Some(Some(block)) = self.blocks.get_mut(number as usize) else { return };
        debug_assert_eq!(block.class, class);
        let piece = first % BLOCK / SIZES[class];
        block.free[piece as usize / 64] |= 1 << (piece % 64);
        block.used -= 1;
        if block.used == 0 {
            self.blocks[number as usize] = None;
            self.open[class].remove(&number);
            self.give_pages(number * BLOCK_PAGES, BLOCK_PAGES);
        } else {
            self.open[class].insert(number);
        }
    }

    /// The lowest run of `count` pages that begins at a multiple of `align`.
    fn take_pages(&mut self, memory: &Memory, count: u32, align: u32) -> Option<u32> {
        if count > CHUNK_PAGES {
            return None;
        }
        let fit = |(&first, &len): (&u32, &u32)| {
            let begin = first.next_multiple_of(align);
            (begin + count <= first + len).then_some((first, len, begin))
        };
        let (first, len, begin) = match self.free.iter().find_map(fit) {
            Some(found) => found,
            None => {
                let first = memory.grow(u32::try_from(self.chunks.len()).ok()?)? / PAGE;
                // Granule 0 means "none" in every word that names a piece: its page is nobody's.
                let skipped = u32::from(first == 0);
                let free = CHUNK_PAGES - skipped;
                self.chunks.push(Chunk { free, loose: free, was_used: false, is_thin: false });
                self.free_pages += free;
                self.free.insert(first + skipped, free);
                self.free.iter().find_map(fit)?
            }
        };
        self.free.remove(&first);
        if begin > first {
            self.free.insert(first, begin - first);
        }
        if begin + count < first + len {
            self.free.insert(begin + count, first + len - begin - count);
        }
        self.free_pages -= count;
        let number = begin / CHUNK_PAGES;
        let chunk = self.chunks.get_mut(number as usize)?;
        chunk.free -= count;
        chunk.was_used |= chunk.free < CHUNK_PAGES / 2;
        if chunk.is_thin && chunk.free < FULL {
            chunk.is_thin = false;
            memory.thicken(number);
        }
        Some(begin)
    }

    fn give_pages(&mut self, mut first: u32, mut count: u32) {
        self.loose += count;
        self.free_pages += count;
        if let Some(chunk) = self.chunks.get_mut((first / CHUNK_PAGES) as usize) {
            chunk.free += count;
            chunk.loose += count;
        }
        let is_one_chunk = |a: u32, b: u32| a / CHUNK_PAGES == b / CHUNK_PAGES;
        if let Some((&before, &len)) = self.free.range(..first).next_back()
            && before + len == first
            && is_one_chunk(before, first)
        {
            self.free.remove(&before);
            (first, count) = (before, len + count);
        }
        let end = first + count;
        if is_one_chunk(first, end)
            && let Some(len) = self.free.remove(&end)
        {
            count += len;
        }
        self.free.insert(first, count);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn pieces_never_overlap_and_all_come_back() {
        let (memory, mut space) = (Memory::new(), Space::new());
        let mut dice = crate::tests::Dice(3);
        let mut held: BTreeMap<u32, u32> = BTreeMap::new();
        for _ in 0..20_000 {
            if dice.one_in(2) || held.is_empty() {
                let most = if dice.one_in(50) { 2_000 } else { 70 };
                let granules = 1 + dice.roll(most) as u32;
                let first = space.take(&memory, granules).unwrap();
                let before = held.range(..=first).next_back();
                assert!(first > 0 && before.is_none_or(|(at, len)| at + len <= first), "{first} {before:?}");
                assert!(held.range(first..).next().is_none_or(|(at, _)| first + granules <= *at));
                assert_eq!(first / CHUNK_GRANULES, (first + granules - 1) / CHUNK_GRANULES);
                held.insert(first, granules);
            } else {
                let at = dice.roll(held.len() as u64) as usize;
                let (first, granules) = held.iter().nth(at).map(|(a, b)| (*a, *b)).unwrap();
                held.remove(&first);
                space.give(&memory, first, granules);
            }
        }
        held.into_iter().for_each(|(first, granules)| space.give(&memory, first, granules));
        assert_eq!(space.used_granules(), 0, "everything is back");
        assert_eq!(space.free.values().sum::<u32>() + 1, space.chunks.len() as u32 * CHUNK_PAGES);
        assert_eq!(space.free_pages, space.free.values().sum::<u32>());
        assert_eq!(space.free_pages, space.chunks.iter().map(|chunk| chunk.free).sum::<u32>());
    }

    #[test]
    fn a_chunk_that_is_mostly_free_is_thin_until_it_fills() {
        let (memory, mut space) = (Memory::new(), Space::new());
        let is_thin = |space: &Space| space.chunks.iter().map(|chunk| chunk.is_thin).collect::<Vec<_>>();
        let mut held: Vec<u32> = (0..127).map(|_| space.take(&memory, BLOCK).unwrap()).collect();
        held.extend((0..128).map(|_| space.take(&memory, BLOCK).unwrap()));
        assert_eq!(is_thin(&space), [false, false]);
        while held.len() > 127 {
            space.give(&memory, held.pop().unwrap(), BLOCK);
        }
        assert_eq!(is_thin(&space), [false, true], "what is full stays as it is");
        while held.len() < 127 + 128 - 16 {
            held.push(space.take(&memory, BLOCK).unwrap());
            assert!(is_thin(&space)[1], "not yet");
        }
        held.push(space.take(&memory, BLOCK).unwrap());
        assert_eq!(is_thin(&space), [false, false]);
    }
}
