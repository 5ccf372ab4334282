//! The store against a naive map: random chains with forks, holes, repeats and several widths are put, withdrawn and
//! credited, and after each step what the store says of keys, holders, order, counts and leading runs is what the map
//! says. Readers that walk while the writer writes are in the core's own tests.

use super::runs::{Match, Sight};
use super::{Edit, First, Last, Place, Said, Shared, Store};
use crate::digest::{EntryDigest, EntryFields, NameHash, entry};
use crate::lookup::rank;
use crate::tests::{Dice, setting};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

const SEATS: u64 = 5;
const NOW_US: u64 = 1_000;
const TTL_US: u64 = 600;

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    seen_us: u64,
    tokens: i32,
    tier: i32,
    accesses: u32,
}

type Key = (u64, Vec<u8>);

struct Walk {
    dice: Dice,
    store: Store,
    shared: Arc<Shared>,
    map: BTreeMap<Key, BTreeMap<u32, Entry>>,
    last: Vec<Option<Last>>,
    digest: u128,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let shared = Arc::new(Shared::new(seed));
        let store = Store::new(Arc::clone(&shared));
        let last = vec![None; SEATS as usize];
        Self { dice: Dice(seed), store, shared, map: BTreeMap::new(), last, digest: 0 }
    }

    fn hash(family: u64, at: u64) -> Vec<u8> {
        let width = [8, 8, 8, 32, 3][family as usize % 5];
        let mut hash = vec![family as u8; width];
        hash[0] = at as u8;
        hash[1] = (at >> 8) as u8;
        hash
    }

    /// Part of a chain: families of one shape share their first blocks.
    fn chain(&mut self) -> Vec<Vec<u8>> {
        let family = self.dice.roll(10);
        let most = if self.dice.one_in(10) { 400 } else { 40 };
        let len = 1 + self.dice.roll(most);
        let fork = self.dice.roll(30);
        let mut chain: Vec<_> =
            (0..len).map(|at| Self::hash(if at > fork { family } else { family % 5 }, at)).collect();
        if self.dice.one_in(12) {
            let repeat = chain[self.dice.roll(len) as usize].clone();
            chain.push(repeat);
        }
        if self.dice.one_in(12) {
            chain.push(Self::hash(3, 900));
        }
        let from = if self.dice.one_in(3) { self.dice.roll(chain.len() as u64) as usize } else { 0 };
        chain.split_off(from)
    }

    fn place(&mut self) -> Place {
        let partition_at = self.dice.roll(2) as u32;
        let seat = self.dice.roll(SEATS) as u32;
        Place { domain: 5, partition: 40 + u64::from(partition_at), partition_at, seat }
    }

    fn digest_of(seat: u32, partition: u64) -> (NameHash, NameHash) {
        ([seat as u8; 16], [partition as u8; 16])
    }

    fn put(&mut self) {
        let (place, chain) = (self.place(), self.chain());
        let seen_us = *self.dice.pick(&[NOW_US, NOW_US - 1, 700, 300, 900]);
        let said = Said { seen_us, tier: *self.dice.pick(&[1, 1, 1, 2]), accesses: 0 };
        let step = *self.dice.pick(&[16, 16, 16, 0, 7]);
        let mut tokens = self.dice.roll(3) as i32 * 16;
        let mut blocks = Vec::new();
        for hash in &chain {
            tokens += if self.dice.one_in(30) { 3 } else { step };
            blocks.push((hash.as_slice(), tokens));
        }
        let (member, partition) = Self::digest_of(place.seat, place.partition);
        let mut digest = EntryDigest::new(&member, &partition);
        let mut last = if self.dice.one_in(2) { self.last[place.seat as usize] } else { None };
        let mut edits: Vec<Edit> = Vec::new();
        // At times a block a call.
        let by = if self.dice.one_in(3) { 1 } else { blocks.len() };
        for blocks in blocks.chunks(by) {
            self.store.put(&place, blocks, said, &mut last, &mut digest, &mut edits, false);
        }
        self.last[place.seat as usize] = last;
        let (mut added, mut born) = (0, 0);
        for (hash, tokens) in blocks {
            let holders = self.map.entry((place.partition, hash.to_vec())).or_default();
            born += u32::from(holders.is_empty());
            let accesses = holders.get(&place.seat).map(|entry| entry.accesses);
            added += u32::from(accesses.is_none());
            let Said { seen_us, tier, .. } = said;
            holders.insert(place.seat, Entry { seen_us, tokens, tier, accesses: accesses.unwrap_or(0) });
        }
        let sum = |of: fn(&Edit) -> u32| edits.iter().map(of).sum::<u32>();
        assert_eq!((sum(|e| e.added), sum(|e| e.born), sum(|e| e.removed)), (added, born, 0));
        self.digest = edits.iter().fold(self.digest, |all, edit| all.wrapping_add(edit.digest));
    }

    fn some_key(&mut self) -> Option<Key> {
        let at = self.dice.roll(self.map.len().max(1) as u64) as usize;
        self.map.keys().nth(at).cloned()
    }

    fn withdraw_or_credit(&mut self) {
        let Some((partition, hash)) = self.some_key() else { return };
        let seat = self.dice.roll(SEATS) as u32;
        let (number, position) = self.store.find(5, partition, &hash).unwrap();
        let (member, name) = Self::digest_of(seat, partition);
        let mut digest = EntryDigest::new(&member, &name);
        // A stretch of neighbours, whatever they are.
        let slab = self.store.image(number).unwrap();
        let used = slab.spans.iter().map(|span| span.end).max().unwrap();
        let end = (position + 1 + self.dice.roll(5) as u32).min(used.max(position + 1));
        let keys: Vec<Key> = (position..end).map(|at| (partition, slab.hash(at).to_vec())).collect();
        if self.dice.one_in(3) {
            let edit = self.store.credit(number, seat, (position, end), 2, &mut digest).unwrap();
            for key in keys {
                if let Some(entry) = self.map.get_mut(&key).and_then(|holders| holders.get_mut(&seat))
                    && entry.tokens != 0
                {
                    entry.accesses += 2;
                }
            }
            self.digest = self.digest.wrapping_add(edit.digest);
            return;
        }
        let edit = self.store.withdraw(number, seat, (position, end), Some(&mut digest)).unwrap();
        let (mut removed, mut died) = (0, 0);
        for key in keys {
            let Some(holders) = self.map.get_mut(&key) else { continue };
            if holders.remove(&seat).is_some() {
                removed += 1;
                if holders.is_empty() {
                    died += 1;
                    self.map.remove(&key);
                }
            }
        }
        assert_eq!((edit.removed, edit.died, edit.added, edit.born), (removed, died, 0, 0));
        self.digest = self.digest.wrapping_add(edit.digest);
    }

    fn check_state(&self) {
        let mut all = 0u128;
        for ((partition, hash), holders) in &self.map {
            let (number, position) = self.store.find(5, *partition, hash).unwrap_or_else(|| panic!("{hash:?} is lost"));
            assert_eq!(self.store.hash_at(number, position).unwrap().as_bytes(), hash);
            assert_eq!(self.store.holders(number, position), holders.keys().copied().collect::<Vec<_>>());
            for (&seat, held) in holders {
                let span = self.store.span(number, seat, position).unwrap();
                let (seen_us, tier, accesses) = (span.seen_us, span.tier, span.accesses);
                assert_eq!(*held, Entry { seen_us, tokens: span.tokens(position), tier, accesses });
                let (member, name) = Self::digest_of(seat, *partition);
                let fields = EntryFields { hash, last_seen_us: seen_us, tokens: held.tokens, tier, accesses };
                all = all.wrapping_add(entry(&member, &name, &fields));
            }
        }
        assert_eq!(all, self.digest);
        for number in 0..self.store.slabs() {
            let Some(partition) = self.store.partition_of(number).map(|at| 40 + u64::from(at)) else { continue };
            let slab = self.store.image(number).unwrap();
            for seat in 0..SEATS as u32 {
                for by_use in [false, true] {
                    let held = slab.spans.iter().filter(|span| span.seat == seat);
                    let entries = held.flat_map(|span| (span.start..span.end).map(|at| slab.hash(at).to_vec()));
                    let first = entries.map(|hash| {
                        let entry = &self.map[&(partition, hash.clone())][&seat];
                        (if by_use { entry.accesses } else { 0 }, entry.seen_us, Reverse(entry.tokens), hash)
                    });
                    let found = self.store.first_of(number, (5, seat), by_use);
                    let found = found.map(|First { accesses, seen_us, tokens, hash, .. }| {
                        (accesses, seen_us, Reverse(tokens), hash.as_bytes().to_vec())
                    });
                    assert_eq!(found, first.min());
                }
            }
        }
    }

    fn check_runs(&mut self) {
        let (place, chain) = (self.place(), self.chain());
        let sight =
            Sight { domain: 5, partition: place.partition, oldest_us: rank::Aging::new(NOW_US, TTL_US).oldest_us() };
        let mut matches = Vec::new();
        let _pin = self.shared.readers.pin(1);
        sight.chain(&self.shared, &chain, &mut matches);
        let mut expected: Vec<Match> = Vec::new();
        for seat in 0..SEATS as u32 {
            let held = chain.iter().map_while(|hash| {
                let entry = self.map.get(&(place.partition, hash.clone()))?.get(&seat)?;
                (rank::Aging::new(NOW_US, TTL_US).freshness(entry.seen_us) > 0.0).then_some(entry)
            });
            let run: Vec<&Entry> = held.collect();
            if let Some(seen_us) = run.iter().map(|entry| entry.seen_us).min() {
                let coldness = run.iter().map(|entry| rank::coldness(entry.tier)).max().unwrap();
                expected.push(Match { seat, coldness, tokens: 0, depth: run.len() as u32, seen_us });
            }
        }
        assert_eq!(matches, expected, "{chain:?}");
        sight.exact(&self.shared, &chain[0], &mut matches);
        for found in &matches {
            assert_eq!(self.map[&(place.partition, chain[0].clone())][&found.seat].tokens, found.tokens);
        }
        assert_eq!(matches.len(), expected.len());
    }
}

/// Chains that grow in turn, each block by itself, are in a slab a block until they are reported whole.
#[test]
fn what_came_block_by_block_is_put_together() {
    const CHAINS: u64 = 40;
    const BLOCKS: u64 = 50;
    let shared = Arc::new(Shared::new(3));
    let mut store = Store::new(Arc::clone(&shared));
    let place = Place { domain: 5, partition: 9, partition_at: 0, seat: 2 };
    let hash = |chain: u64, at: u64| (chain << 32 | at).to_le_bytes();
    let mut digest = EntryDigest::new(&[0; 16], &[1; 16]);
    let (mut sum, mut held) = (0u128, 0);
    let mut put = |store: &mut Store, seen_us: u64, blocks: &[([u8; 8], i32)]| {
        let blocks: Vec<(&[u8], i32)> = blocks.iter().map(|(hash, tokens)| (hash.as_slice(), *tokens)).collect();
        let mut edits = Vec::new();
        store.put(&place, &blocks, Said { seen_us, tier: 1, accesses: 0 }, &mut None, &mut digest, &mut edits, false);
        sum = edits.iter().fold(sum, |sum, edit| sum.wrapping_add(edit.digest));
        held = edits.iter().fold(held, |held, edit| held + edit.added - edit.removed);
        sum
    };
    let tokens = |at: u64| at as i32 * 16 + 16;
    for at in 0..BLOCKS {
        for chain in 0..CHAINS {
            put(&mut store, 100 + chain % 3, &[(hash(chain, at), tokens(at))]);
        }
    }
    let slabs =
        |store: &Store| (0..store.slabs()).filter(|number| store.partition_of(*number).is_some()).count() as u64;
    assert_eq!((slabs(&store), store.keys()), (CHAINS * BLOCKS, CHAINS * BLOCKS));
    store.reclaim();
    let before = store.space.used_granules();
    let mut last = 0;
    for chain in 0..CHAINS {
        let blocks: Vec<([u8; 8], i32)> = (0..BLOCKS).map(|at| (hash(chain, at), tokens(at))).collect();
        last = put(&mut store, 200, &blocks);
    }
    assert_eq!((slabs(&store), store.keys(), u64::from(held)), (CHAINS, CHAINS * BLOCKS, CHAINS * BLOCKS));
    store.reclaim();
    // What the table takes stays: a bucket a shard, and few more.
    let (table, used) = (shared.table.shards() as u64, store.space.used_granules());
    assert!((used - table) * 4 < before - table, "{used} of {before} granules, {table} of them the table's");
    let mut fresh = Store::new(Arc::new(Shared::new(4)));
    let whole = (0..CHAINS).fold(0u128, |sum, chain| {
        let hashes: Vec<[u8; 8]> = (0..BLOCKS).map(|at| hash(chain, at)).collect();
        let blocks: Vec<(&[u8], i32)> = (0..).zip(&hashes).map(|(at, hash)| (hash.as_slice(), tokens(at))).collect();
        let mut edits = Vec::new();
        let said = Said { seen_us: 200, tier: 1, accesses: 0 };
        let mut digest = EntryDigest::new(&[0; 16], &[1; 16]);
        fresh.put(&place, &blocks, said, &mut None, &mut digest, &mut edits, false);
        edits.iter().fold(sum, |sum, edit| sum.wrapping_add(edit.digest))
    });
    assert_eq!(last, whole, "the digest is that of what was reported at once");
}

#[test]
fn the_store_is_a_map() {
    let only = setting("PREFIXD_INDEX_SEED", u64::MAX);
    let seeds = if only == u64::MAX { 0..setting("PREFIXD_INDEX_ROUNDS", 60) / 10 } else { only..only + 1 };
    for seed in seeds {
        println!("seed {seed}");
        let mut walk = Walk::new(seed);
        let steps = setting("PREFIXD_INDEX_STEPS", 250) / 2;
        for step in 0..steps * 4 {
            let shrinking = step % steps > steps / 2;
            match walk.dice.roll(10) {
                0..3 if !shrinking => walk.put(),
                3..9 => walk.withdraw_or_credit(),
                _ => walk.check_runs(),
            }
            if step % 8 == 0 {
                walk.store.reclaim();
                walk.check_state();
            }
        }
        while let Some((partition, hash)) = walk.some_key() {
            let (number, _) = walk.store.find(5, partition, &hash).unwrap();
            for seat in 0..SEATS as u32 {
                let edit = walk.store.withdraw(number, seat, (0, 255), None);
                assert!(edit.is_none_or(|edit| edit.added == 0));
            }
            walk.map.retain(|(partition, hash), _| walk.store.find(5, *partition, hash).is_some());
        }
        walk.store.reclaim();
        assert_eq!(walk.store.keys(), 0);
        assert!((0..walk.store.slabs()).all(|number| walk.store.partition_of(number).is_none()));
        assert_eq!(walk.store.space.used_granules(), 0, "memory leaked");
    }
}
