//! Where each key is: a table from a hash within a (tenant, model) to a slab and a position in it. Buckets are a cache
//! line: seven slots, and a count of the keys that passed a full bucket by, which makes tombstones needless. A slot
//! has a part of the key's hash; whoever finds one compares the key itself in the slab. Shards grow and shrink alone, by
//! what their slots say, and never read a key for it.

use super::memory::{GRANULE_BITS, GRANULE_WORDS, Line, Memory};
use super::readers::Readers;
use super::space::Space;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARD_BITS: u32 = 9;
const SHARDS: usize = 1 << SHARD_BITS;
const TAG_BITS: u32 = 28;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
/// Slots of a bucket.
const SLOTS: usize = GRANULE_WORDS - 1;
/// The word of a bucket with the count of keys that passed it by.
const PASSED: usize = SLOTS;
const BUCKET_BITS: u32 = 24;

/// Where a key is: a slab's first granule, and a position.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) granule: u32,
    pub(crate) position: u32,
}

fn slot(at: At, tag: u64) -> u64 {
    (u64::from(at.granule) << (64 - GRANULE_BITS)) | (u64::from(at.position) << TAG_BITS) | tag
}

fn at(slot: u64) -> At {
    At { granule: (slot >> (64 - GRANULE_BITS)) as u32, position: (slot >> TAG_BITS) as u32 & 0xff }
}

fn tag(hash: u64) -> u64 {
    (hash >> (64 - SHARD_BITS - TAG_BITS)) & TAG_MASK
}

/// The table as readers see it.
pub(crate) struct Table {
    /// First granule and number of buckets of each shard, or 0.
    shards: Box<[AtomicU64]>,
    seed: u64,
}

#[derive(Copy, Clone)]
struct Shard {
    granule: u32,
    buckets: u32,
}

impl Shard {
    fn home(&self, tag: u64) -> u32 {
        // Below `buckets`, as the tag is below 2^TAG_BITS.
        ((tag * u64::from(self.buckets)) >> TAG_BITS) as u32
    }

    fn after(&self, bucket: u32) -> u32 {
        if bucket + 1 == self.buckets { 0 } else { bucket + 1 }
    }

    fn bucket<'m>(&self, memory: &'m Memory, bucket: u32) -> &'m Line {
        memory.line(self.granule + bucket)
    }
}

impl Table {
    pub(crate) fn new(seed: u64) -> Self {
        Self { shards: (0..SHARDS).map(|_| AtomicU64::new(0)).collect(), seed }
    }

    /// The hash of a key. Seeded: clients choose block hashes.
    #[inline]
    pub(crate) fn hash(&self, domain: u64, hash: &[u8]) -> u64 {
        let seed = fold(self.seed ^ domain, 0xd6e8_feb8_6659_fd93);
        match <[u8; 8]>::try_from(hash) {
            Ok(bytes) => {
                fold(fold(u64::from_le_bytes(bytes) ^ seed, 0x9e37_79b9_7f4a_7c15 ^ seed.rotate_left(32)), seed | 1)
            }
            Err(_) => xxhash_rust::xxh3::xxh3_64_with_seed(hash, seed),
        }
    }

    #[inline]
    fn shard(&self, hash: u64) -> Shard {
        let word = self.shards[(hash >> (64 - SHARD_BITS)) as usize].load(Ordering::Acquire);
        Shard { granule: (word >> BUCKET_BITS) as u32, buckets: word as u32 & ((1 << BUCKET_BITS) - 1) }
    }

    /// Asks for the bucket of a hash to be brought near.
    #[inline]
    pub(crate) fn prefetch(&self, memory: &Memory, hash: u64) {
        let shard = self.shard(hash);
        memory.prefetch(shard.granule + shard.home(tag(hash)));
    }

    /// A place that may be the one of a hash, from the bucket where that would be first.
    #[inline]
    pub(crate) fn likely(&self, memory: &Memory, hash: u64) -> Option<At> {
        let (shard, tag) = (self.shard(hash), tag(hash));
        let line = shard.bucket(memory, shard.home(tag));
        let words = line[..SLOTS].iter().map(|word| word.load(Ordering::Relaxed));
        words.filter(|&word| word & TAG_MASK == tag && word != 0).map(at).next()
    }

    /// The first candidate for a hash that `is_it` accepts.
    #[inline]
    pub(crate) fn find(&self, memory: &Memory, hash: u64, mut is_it: impl FnMut(At) -> bool) -> Option<At> {
        let (shard, tag) = (self.shard(hash), tag(hash));
        let mut bucket = shard.home(tag);
        for _ in 0..shard.buckets {
            let line = shard.bucket(memory, bucket);
            for word in &line[..SLOTS] {
                let word = word.load(Ordering::Acquire);
                if word & TAG_MASK == tag && word != 0 && is_it(at(word)) {
                    return Some(at(word));
                }
            }
            if line[PASSED].load(Ordering::Acquire) == 0 {
                return None;
            }
            bucket = shard.after(bucket);
        }
        None
    }

    /// Every place in the table, a shard at a time; `each` gets all of a shard.
    pub(crate) fn scan(&self, memory: &Memory, number: usize, mut each: impl FnMut(At)) {
        let Some(word) = self.shards.get(number) else { return };
        let word = word.load(Ordering::Acquire);
        let shard = Shard { granule: (word >> BUCKET_BITS) as u32, buckets: word as u32 & ((1 << BUCKET_BITS) - 1) };
        for bucket in 0..shard.buckets {
            let slots = shard.bucket(memory, bucket)[..SLOTS].iter().map(|word| word.load(Ordering::Acquire));
            slots.filter(|&word| word != 0).for_each(|word| each(at(word)));
        }
    }

    /// How many shards there are.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide >> 64) as u64 ^ wide as u64
}

/// The writer's side: how many keys each shard has.
pub(crate) struct Keys {
    counts: Vec<u32>,
    total: u64,
}

/// Memory that readers may still be in.
pub(crate) type Retired = (u32, u32);

impl Keys {
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; SHARDS], total: 0 }
    }

    /// How many keys there are.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Puts a key in that isn't there; false when there is no room for it. Gives the shard's old memory up to `retired`
    /// when it grows.
    pub(crate) fn insert(
        &mut self,
        (table, memory, space): (&Table, &Memory, &mut Space),
        hash: u64,
        place: At,
        retired: &mut Vec<Retired>,
    ) -> bool {
        let number = (hash >> (64 - SHARD_BITS)) as usize;
        let shard = table.shard(hash);
        let count = self.counts[number] + 1;
        if u64::from(count) * 100 > u64::from(shard.buckets) * SLOTS as u64 * 86 {
            let buckets = (u64::from(shard.buckets) * 5 / 4 + 1).max(u64::from(count) / 6) as u32;
            if !rebuild((table, memory, space), number, buckets, retired) && count >= shard.buckets * SLOTS as u32 {
                return false;
            }
        }
        put(memory, table.shard(hash), slot(place, tag(hash)));
        self.counts[number] = count;
        self.total += 1;
        true
    }

    /// Takes a key out that is at `place`.
    pub(crate) fn remove(
        &mut self,
        (table, memory, space): (&Table, &Memory, &mut Space),
        hash: u64,
        place: At,
        retired: &mut Vec<Retired>,
    ) {
        let number = (hash >> (64 - SHARD_BITS)) as usize;
        let (shard, word) = (table.shard(hash), slot(place, tag(hash)));
        let Some((home, bucket, index)) = seek(memory, shard, word) else {
            debug_assert!(false, "a key is not where it was put");
            return;
        };
        shard.bucket(memory, bucket)[index].store(0, Ordering::Release);
        pass(memory, shard, home, bucket, u64::wrapping_sub);
        self.counts[number] -= 1;
        self.total -= 1;
        let count = self.counts[number];
        if count == 0 {
            table.shards[number].store(0, Ordering::Release);
            retired.push((shard.granule, shard.buckets));
        } else if shard.buckets > 8 && u64::from(count) * 100 < u64::from(shard.buckets) * SLOTS as u64 * 25 {
            rebuild((table, memory, space), number, count / 4 + 1, retired);
        }
    }

    /// Tells of a key that it is somewhere else.
    pub(crate) fn repoint(&mut self, table: &Table, memory: &Memory, hash: u64, (old, new): (At, At)) {
        let (shard, tag) = (table.shard(hash), tag(hash));
        match seek(memory, shard, slot(old, tag)) {
            Some((_, bucket, index)) => shard.bucket(memory, bucket)[index].store(slot(new, tag), Ordering::Release),
            None => debug_assert!(false, "a key is not where it was put"),
        }
    }
}

/// The home of a slot's word, and the bucket and index that it is at.
fn seek(memory: &Memory, shard: Shard, word: u64) -> Option<(u32, u32, usize)> {
    let home = shard.home(word & TAG_MASK);
    let mut bucket = home;
    for _ in 0..shard.buckets {
        let line = shard.bucket(memory, bucket);
        let found = line[..SLOTS].iter().position(|slot| slot.load(Ordering::Relaxed) == word);
        if let Some(index) = found {
            return Some((home, bucket, index));
        }
        if line[PASSED].load(Ordering::Relaxed) == 0 {
            return None;
        }
        bucket = shard.after(bucket);
    }
    None
}

/// Changes the counts of passing keys from `home` up to, but not in, `bucket`.
fn pass(memory: &Memory, shard: Shard, home: u32, bucket: u32, change: fn(u64, u64) -> u64) {
    let mut at = home;
    while at != bucket {
        let passed = &shard.bucket(memory, at)[PASSED];
        passed.store(change(passed.load(Ordering::Relaxed), 1), Ordering::Release);
        at = shard.after(at);
    }
}

/// Puts a slot's word in. The shard has room.
fn put(memory: &Memory, shard: Shard, word: u64) {
    let home = shard.home(word & TAG_MASK);
    let mut bucket = home;
    for _ in 0..shard.buckets {
        let free = shard.bucket(memory, bucket)[..SLOTS].iter().find(|slot| slot.load(Ordering::Relaxed) == 0);
        if let Some(free) = free {
            // The counts lead to the slot before it is there, so that no reader stops short of it.
            pass(memory, shard, home, bucket, u64::wrapping_add);
            free.store(word, Ordering::Release);
            return;
        }
        bucket = shard.after(bucket);
    }
    debug_assert!(false, "a shard is full");
}

/// Gives a shard at least so many buckets; false when there is no memory for them.
fn rebuild(
    (table, memory, space): (&Table, &Memory, &mut Space),
    number: usize,
    buckets: u32,
    retired: &mut Vec<Retired>,
) -> bool {
    let word = table.shards[number].load(Ordering::Relaxed);
    let old = Shard { granule: (word >> BUCKET_BITS) as u32, buckets: word as u32 & ((1 << BUCKET_BITS) - 1) };
    let buckets = space.rounded(buckets);
    if buckets >= 1 << BUCKET_BITS {
        return false;
    }
    let Some(granule) = space.take(memory, buckets) else { return false };
    let new = Shard { granule, buckets };
    for bucket in 0..buckets {
        new.bucket(memory, bucket).iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
    for bucket in 0..old.buckets {
        let slots = old.bucket(memory, bucket)[..SLOTS].iter().map(|word| word.load(Ordering::Relaxed));
        slots.filter(|&word| word != 0).for_each(|word| put(memory, new, word));
    }
    table.shards[number].store((u64::from(granule) << BUCKET_BITS) | u64::from(buckets), Ordering::Release);
    if old.buckets > 0 {
        retired.push((old.granule, old.buckets));
    }
    true
}

/// What readers and the writer share of the store.
pub(crate) struct Shared {
    pub(crate) memory: Memory,
    pub(crate) table: Table,
    pub(crate) readers: Readers,
}

impl Shared {
    pub(crate) fn new(seed: u64) -> Self {
        Self { memory: Memory::new(), table: Table::new(seed), readers: Readers::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn it_is_a_map() {
        let (shared, mut space, mut keys) = (Shared::new(5), Space::new(), Keys::new());
        let mut dice = crate::tests::Dice(8);
        let mut held: BTreeMap<u64, At> = BTreeMap::new();
        let mut retired = Vec::new();
        for step in 0..60_000u64 {
            // Few distinct high bits, so that some shards fill up and others stay empty.
            let hash = shared.table.hash(1, &dice.roll(9_000).to_le_bytes()) & !(0xff << 56);
            let parts = (&shared.table, &shared.memory, &mut space);
            let is_growing = step % 20_000 < 12_000;
            match held.get(&hash).copied() {
                None if is_growing => {
                    let place = At { granule: 1 + dice.roll(1 << 27) as u32, position: dice.roll(256) as u32 };
                    assert!(keys.insert(parts, hash, place, &mut retired));
                    held.insert(hash, place);
                }
                Some(place) if dice.one_in(3) || !is_growing => {
                    keys.remove(parts, hash, place, &mut retired);
                    held.remove(&hash);
                }
                Some(place) => {
                    let new = At { position: dice.roll(256) as u32, ..place };
                    keys.repoint(&shared.table, &shared.memory, hash, (place, new));
                    held.insert(hash, new);
                }
                None => {}
            }
            retired.drain(..).for_each(|(granule, granules)| space.give(&shared.memory, granule, granules));
            let found = shared.table.find(&shared.memory, hash, |at| held.get(&hash) == Some(&at));
            assert_eq!(found, held.get(&hash).copied());
            assert_eq!(keys.total(), held.len() as u64);
        }
        let mut seen = 0;
        (0..shared.table.shards()).for_each(|shard| shared.table.scan(&shared.memory, shard, |_| seen += 1));
        assert_eq!(seen, held.len());
    }
}
