//! The one module with unsafe code: a growing region of 64-bit words, addressed in granules of 64 bytes, that readers
//! and the writer share. Every word is an atomic and stays mapped until the region is dropped, so that whatever an
//! address says, reading it is defined; what the words mean, and when they may be given to something else, is
//! decided in `space` and `readers`. It must never hand out a pointer.
//!
//! Invariants, on which each block below rests:
//!
//! 1. An entry of `chunks` is null or points to `CHUNK_WORDS` initialised `AtomicU64`s, aligned to `CHUNK_BYTES`, the
//!    second half of a block of `BLOCK`. It is written once, by [`Memory::grow`], from null, with release; readers load
//!    it with acquire.
//! 2. Chunks are freed in `drop` alone, which has the region to itself; every borrow of a word is bounded by a borrow
//!    of the region.
//! 3. Offsets within a chunk are masked to its size, and slices are cut at its end.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Words of a granule.
pub(crate) const GRANULE_WORDS: usize = 8;
/// Bytes of a cache line, which a granule is.
pub(crate) const LINE_BYTES: usize = GRANULE_WORDS * size_of::<u64>();
/// Granules of a chunk.
pub(crate) const CHUNK_GRANULES: u32 = (CHUNK_WORDS / GRANULE_WORDS) as u32;
/// Bits of a granule's number.
pub(crate) const GRANULE_BITS: u32 = 28;
const CHUNK_WORDS: usize = 1 << 18;
const CHUNK_BYTES: usize = CHUNK_WORDS * size_of::<u64>();
const MAX_CHUNKS: usize = (1 << GRANULE_BITS) / CHUNK_GRANULES as usize;

/// What an address outside of all chunks reads as.
static NOTHING: [AtomicU64; GRANULE_WORDS] = [const { AtomicU64::new(0) }; GRANULE_WORDS];

/// One granule.
pub(crate) type Line = [AtomicU64; GRANULE_WORDS];

/// The region.
pub(crate) struct Memory {
    chunks: Box<[AtomicPtr<AtomicU64>]>,
}

/// What is allocated for a chunk: its size twice, of which the first half stays as it is. An allocator may write to the
/// beginning of what it hands out (mimalloc keeps the list of what is free there), and a page that was touched before the
/// system is asked for a huge one stays small. Nobody touches the first half else, so it takes a page and addresses.
const BLOCK: Layout = match Layout::from_size_align(2 * CHUNK_BYTES, CHUNK_BYTES) {
    Ok(layout) => layout,
    Err(_) => panic!("a chunk's size is a power of two"),
};

impl Memory {
    /// A region without chunks.
    pub(crate) fn new() -> Self {
        Self { chunks: (0..MAX_CHUNKS).map(|_| AtomicPtr::new(ptr::null_mut())).collect() }
    }

    /// Adds a chunk of zeroed words and returns its first granule; `None` when there is no room for another.
    pub(crate) fn grow(&self, chunk: u32) -> Option<u32> {
        let place = self.chunks.get(chunk as usize).filter(|place| place.load(Ordering::Acquire).is_null())?;
        // SAFETY: the layout's size isn't 0.
        let block = unsafe { alloc(BLOCK) };
        if block.is_null() {
            return None;
        }
        // SAFETY: the middle of the block, which is as aligned as the block is.
        let words = unsafe { block.add(CHUNK_BYTES) }.cast::<AtomicU64>();
        // Before anything touches it: pages that are there already stay small ones.
        advise(words, CHUNK_BYTES, Advice::Huge);
        // SAFETY: allocated just now with room for so many words, and nobody else knows of it.
        unsafe { words.write_bytes(0, CHUNK_WORDS) };
        // Zeroed bytes are initialised words: an AtomicU64 has the representation of a u64. So invariant 1 holds.
        match place.compare_exchange(ptr::null_mut(), words, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Some(chunk * CHUNK_GRANULES),
            Err(_) => {
                // SAFETY: allocated above with this layout, and published to nobody.
                unsafe { dealloc(block, BLOCK) };
                None
            }
        }
    }

    #[inline]
    fn chunk(&self, granule: u32) -> Option<ptr::NonNull<AtomicU64>> {
        let place = self.chunks.get((granule / CHUNK_GRANULES) as usize)?;
        ptr::NonNull::new(place.load(Ordering::Acquire))
    }

    /// A granule's words.
    #[inline]
    pub(crate) fn line(&self, granule: u32) -> &Line {
        match self.chunk(granule) {
            Some(words) => {
                let offset = (granule % CHUNK_GRANULES) as usize * GRANULE_WORDS;
                // SAFETY: `offset` and the `GRANULE_WORDS` words from it lie within the chunk, as a chunk is a whole
                // number of granules (3); they are initialised and shared (1), and live as long as `self` (2).
                unsafe { words.add(offset).cast::<Line>().as_ref() }
            }
            None => &NOTHING,
        }
    }

    /// At most `count` words from word `first` of a granule on: fewer where the chunk ends, or none is there.
    #[inline]
    pub(crate) fn words(&self, granule: u32, first: usize, count: usize) -> &[AtomicU64] {
        match self.chunk(granule) {
            Some(words) => {
                let offset = ((granule % CHUNK_GRANULES) as usize * GRANULE_WORDS + first) % CHUNK_WORDS;
                let count = count.min(CHUNK_WORDS - offset);
                // SAFETY: `offset + count` is at most the chunk's size (3); otherwise as in `line`.
                unsafe { std::slice::from_raw_parts(words.add(offset).as_ptr(), count) }
            }
            None => &[],
        }
    }

    /// Asks for a granule to be brought near, without waiting for it.
    #[inline]
    pub(crate) fn prefetch(&self, granule: u32) {
        prefetch(std::slice::from_ref(self.line(granule)), 1);
    }

    /// The same for some granules in a row.
    #[inline]
    pub(crate) fn prefetch_row(&self, granule: u32, granules: usize) {
        prefetch(self.words(granule, 0, granules * GRANULE_WORDS), granules);
    }
}

/// Asks for the first `most` cache lines of some values to be brought near, without waiting for them.
#[inline]
pub(crate) fn prefetch<T>(values: &[T], most: usize) {
    let first: *const u8 = values.as_ptr().cast();
    for line in 0..size_of_val(values).div_ceil(LINE_BYTES).min(most) {
        let address = first.wrapping_add(line * LINE_BYTES);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a prefetch accesses nothing, whatever the address; every x86-64 has the instruction.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = address;
    }
}

impl Memory {
    /// Lets the system have what backs some granules until they are used again: they read as zeroes from then on. The
    /// caller knows that nobody needs what they hold.
    pub(crate) fn release(&self, granule: u32, granules: u32) {
        let words = self.words(granule, 0, granules as usize * GRANULE_WORDS);
        advise(words.as_ptr().cast_mut(), size_of_val(words), Advice::Unneeded);
    }

    /// Asks that a chunk isn't backed by a huge page any more: the system would make one of it in its own time, with what
    /// was released of it filled in again.
    pub(crate) fn thin(&self, chunk: u32) {
        self.advise_chunk(chunk, Advice::Small);
    }

    /// Asks that a chunk is backed by a huge page again.
    pub(crate) fn thicken(&self, chunk: u32) {
        self.advise_chunk(chunk, Advice::Huge);
    }

    fn advise_chunk(&self, chunk: u32, advice: Advice) {
        let words = self.words(chunk.saturating_mul(CHUNK_GRANULES), 0, CHUNK_WORDS);
        advise(words.as_ptr().cast_mut(), size_of_val(words), advice);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for place in &mut self.chunks {
            let words = *place.get_mut();
            if !words.is_null() {
                // SAFETY: the second half of a block that was allocated in `grow` with this layout (1); freed here
                // alone, and nobody else is left (2).
                unsafe { dealloc(words.cast::<u8>().sub(CHUNK_BYTES), BLOCK) };
            }
        }
    }
}

/// What the system is told of a range of words. Nothing depends on whether it listens.
#[derive(Copy, Clone)]
enum Advice {
    /// Random accesses profit from huge pages.
    Huge,
    /// Memory that is partly given back doesn't.
    Small,
    /// What the range holds is not needed any more.
    Unneeded,
}

#[cfg(all(target_os = "linux", not(miri)))]
fn advise(words: *mut AtomicU64, bytes: usize, advice: Advice) {
    const PAGE_BYTES: usize = 4_096;
    const MADV_DONTNEED: i32 = 4;
    const MADV_HUGEPAGE: i32 = 14;
    const MADV_NOHUGEPAGE: i32 = 15;
    // SAFETY: this is the C library's madvise, which std links.
    unsafe extern "C" {
        fn madvise(address: *mut std::ffi::c_void, length: usize, advice: i32) -> i32;
    }
    let advice = match advice {
        Advice::Huge => MADV_HUGEPAGE,
        Advice::Small => MADV_NOHUGEPAGE,
        Advice::Unneeded => MADV_DONTNEED,
    };
    if !words.addr().is_multiple_of(PAGE_BYTES) || !bytes.is_multiple_of(PAGE_BYTES) || bytes == 0 {
        return;
    }
    // SAFETY: the range is whole pages of one chunk, which is private anonymous memory of ours. MADV_HUGEPAGE and
    // MADV_NOHUGEPAGE change how it is backed. After MADV_DONTNEED it stays mapped and reads as zeroes, which are words
    // (1), and which to a reader is no different from stores by the writer.
    let _ = unsafe { madvise(words.cast(), bytes, advice) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn advise(_words: *mut AtomicU64, _bytes: usize, _advice: Advice) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_can_be_read() {
        let memory = Memory::new();
        assert_eq!(memory.line(3)[7].load(Ordering::Relaxed), 0);
        assert!(memory.words(3, 0, 8).is_empty());
        assert_eq!(memory.grow(0), Some(0));
        assert_eq!(memory.grow(0), None, "a chunk is added once");
        assert_eq!(memory.grow(1), Some(CHUNK_GRANULES));
        memory.line(5)[1].store(9, Ordering::Relaxed);
        assert_eq!(memory.words(5, 1, 1)[0].load(Ordering::Relaxed), 9);
        assert_eq!(memory.words(CHUNK_GRANULES - 1, 6, 100).len(), 2, "a slice ends with its chunk");
        for granule in [0, 1, CHUNK_GRANULES, 2 * CHUNK_GRANULES, u32::MAX] {
            memory.prefetch(granule);
            memory.prefetch_row(granule, 3);
            let _ = (memory.line(granule), memory.words(granule, usize::MAX / 2, usize::MAX).len());
        }
    }

    #[test]
    fn what_is_released_can_be_used_again() {
        let memory = Memory::new();
        memory.grow(0);
        memory.line(64)[0].store(7, Ordering::Relaxed);
        memory.line(128)[0].store(8, Ordering::Relaxed);
        memory.release(64, 64);
        assert!([0, 7].contains(&memory.line(64)[0].load(Ordering::Relaxed)));
        assert_eq!(memory.line(128)[0].load(Ordering::Relaxed), 8);
        memory.line(64)[0].store(9, Ordering::Relaxed);
        assert_eq!(memory.line(64)[0].load(Ordering::Relaxed), 9);
        memory.thin(0);
        memory.thicken(0);
        memory.thin(9);
        assert_eq!(memory.line(64)[0].load(Ordering::Relaxed), 9);
        memory.release(65, 10);
        assert_eq!(memory.line(128)[0].load(Ordering::Relaxed), 8, "parts of pages stay");
    }

    #[test]
    fn threads_share_words() {
        let memory = Memory::new();
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| {
                let mut seen = 0;
                while seen < 3 {
                    let now = memory.line(1)[0].load(Ordering::Acquire);
                    assert!(now >= seen && memory.line(1)[1].load(Ordering::Relaxed) >= now);
                    seen = now;
                    std::hint::spin_loop();
                }
            });
            memory.grow(0);
            for n in 1..=3 {
                memory.line(1)[1].store(n, Ordering::Relaxed);
                memory.line(1)[0].store(n, Ordering::Release);
            }
            assert!(reader.join().is_ok());
        });
    }
}
