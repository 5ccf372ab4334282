//! A simulated engine's prefix cache: `capacity` blocks, evicted least recently used first and leaves first, as vLLM
//! and SGLang do: a block goes only when no cached block extends it. Pure: no clock, no IO; time is the count of
//! requests served. What is cached is therefore always closed under prefixes.

use std::collections::{BTreeSet, HashMap, HashSet};

/// The cache of one engine.
pub struct Engine {
    capacity: usize,
    tick: u64,
    cached: HashMap<u64, Block>,
    /// Blocks without a cached child, by last use: the candidates for eviction.
    leaves: BTreeSet<(u64, u64)>,
    ever_held: HashSet<u64>,
}

struct Block {
    parent: Option<u64>,
    children: usize,
    last_used: u64,
}

/// What serving one request did to the cache.
#[derive(Debug, PartialEq, Eq)]
pub struct Served {
    /// Blocks at the request's head that were cached already.
    pub hit_blocks: usize,
    /// Blocks at its head that are cached now; fewer than it has when the cache is too small for it.
    pub held_blocks: usize,
    /// What went to make room, in order.
    pub evicted: Vec<u64>,
}

/// What an engine knows of the blocks that a hint claims it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It holds them all.
    True,
    /// It held them all once, and evicted at least one.
    Stale,
    /// It never held at least one.
    Wrong,
}

impl Engine {
    /// An empty cache of so many blocks.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, tick: 0, cached: HashMap::new(), leaves: BTreeSet::new(), ever_held: HashSet::new() }
    }

    /// How many of the blocks at the head of `chain` are cached.
    pub fn leading_run(&self, chain: &[u64]) -> usize {
        chain.iter().take_while(|id| self.cached.contains_key(id)).count()
    }

    /// Judges the claim that all of `blocks` are cached.
    pub fn judge(&self, blocks: &[u64]) -> Claim {
        if blocks.iter().all(|id| self.cached.contains_key(id)) {
            Claim::True
        } else if blocks.iter().all(|id| self.ever_held.contains(id)) {
            Claim::Stale
        } else {
            Claim::Wrong
        }
    }

    /// Serves a prompt: uses what is cached of it, computes and stores the rest, evicting what must go. Blocks of the
    /// prompt itself are never evicted for it.
    pub fn serve(&mut self, chain: &[u64]) -> Served {
        self.tick += 1;
        let hit_blocks = self.leading_run(chain);
        for id in &chain[..hit_blocks] {
            self.touch(*id);
        }
        let mut held_blocks = hit_blocks;
        let mut evicted = Vec::new();
        for &id in &chain[hit_blocks..] {
            let parent = held_blocks.checked_sub(1).map(|i| chain[i]);
            if self.cached.len() >= self.capacity {
                match self.evict_one(parent) {
                    Some(victim) => evicted.push(victim),
                    None => break,
                }
            }
            self.store(id, parent);
            held_blocks += 1;
        }
        Served { hit_blocks, held_blocks, evicted }
    }

    fn touch(&mut self, id: u64) {
        if let Some(block) = self.cached.get_mut(&id) {
            if self.leaves.remove(&(block.last_used, id)) {
                self.leaves.insert((self.tick, id));
            }
            block.last_used = self.tick;
        }
    }

    fn store(&mut self, id: u64, parent: Option<u64>) {
        if let Some((parent_id, block)) = parent.and_then(|id| Some((id, self.cached.get_mut(&id)?))) {
            block.children += 1;
            self.leaves.remove(&(block.last_used, parent_id));
        }
        self.cached.insert(id, Block { parent, children: 0, last_used: self.tick });
        self.leaves.insert((self.tick, id));
        self.ever_held.insert(id);
    }

    /// Evicts the least recently used leaf that isn't `keep`; `None` when there is no other.
    fn evict_one(&mut self, keep: Option<u64>) -> Option<u64> {
        let (last_used, victim) = *self.leaves.iter().find(|(_, id)| Some(*id) != keep)?;
        self.leaves.remove(&(last_used, victim));
        let block = self.cached.remove(&victim)?;
        if let Some((parent_id, parent)) = block.parent.and_then(|id| Some((id, self.cached.get_mut(&id)?))) {
            parent.children -= 1;
            if parent.children == 0 {
                self.leaves.insert((parent.last_used, parent_id));
            }
        }
        Some(victim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(hit_blocks: usize, held_blocks: usize, evicted: &[u64]) -> Served {
        Served { hit_blocks, held_blocks, evicted: evicted.to_vec() }
    }

    #[test]
    fn a_repeat_hits_what_the_first_stored() {
        let mut engine = Engine::new(10);
        assert_eq!(engine.serve(&[1, 2, 3]), served(0, 3, &[]));
        assert_eq!(engine.serve(&[1, 2, 4]), served(2, 3, &[]));
        assert_eq!(engine.leading_run(&[1, 2, 3]), 3);
        assert_eq!(engine.leading_run(&[9, 2, 3]), 0);
    }

    #[test]
    fn the_least_recently_used_leaf_goes_first() {
        let mut engine = Engine::new(5);
        engine.serve(&[1, 2, 3]);
        engine.serve(&[1, 4]);
        engine.serve(&[1, 2, 3]);
        assert_eq!(engine.serve(&[1, 5, 6]), served(1, 3, &[4]), "4 is older than 3, and 5 takes the free place");
        assert_eq!(engine.serve(&[1, 7]), served(1, 2, &[3]));
        assert_eq!(engine.serve(&[1, 8]), served(1, 2, &[2]), "2 became a leaf and kept its age");
    }

    #[test]
    fn a_parent_never_goes_before_its_children() {
        let mut engine = Engine::new(3);
        engine.serve(&[1, 2, 3]);
        assert_eq!(engine.serve(&[4, 5]), served(0, 2, &[3, 2]));
        assert_eq!(engine.leading_run(&[1, 2, 3]), 1);
    }

    #[test]
    fn a_prompt_larger_than_the_cache_keeps_its_head() {
        let mut engine = Engine::new(3);
        engine.serve(&[9]);
        assert_eq!(engine.serve(&[1, 2, 3, 4, 5]), served(0, 3, &[9]));
        assert_eq!(engine.leading_run(&[1, 2, 3, 4, 5]), 3);
        assert_eq!(Engine::new(0).serve(&[1]), served(0, 0, &[]));
    }

    #[test]
    fn claims_are_judged_by_what_was_ever_held() {
        let mut engine = Engine::new(2);
        engine.serve(&[1, 2]);
        engine.serve(&[3]);
        assert_eq!(engine.judge(&[1]), Claim::True);
        assert_eq!(engine.judge(&[1, 2]), Claim::Stale);
        assert_eq!(engine.judge(&[1, 2, 7]), Claim::Wrong);
        assert_eq!(engine.judge(&[]), Claim::True);
    }

    /// The same rules by brute force: a list of (block, parent, last used), searched in full.
    struct Naive {
        capacity: usize,
        tick: u64,
        blocks: Vec<(u64, Option<u64>, u64)>,
    }

    impl Naive {
        fn serve(&mut self, chain: &[u64]) -> Served {
            self.tick += 1;
            let hit_blocks = chain.iter().take_while(|id| self.blocks.iter().any(|b| b.0 == **id)).count();
            for block in &mut self.blocks {
                if chain[..hit_blocks].contains(&block.0) {
                    block.2 = self.tick;
                }
            }
            let (mut held_blocks, mut evicted) = (hit_blocks, Vec::new());
            for i in hit_blocks..chain.len() {
                let parent = i.checked_sub(1).map(|i| chain[i]);
                if self.blocks.len() >= self.capacity {
                    let is_leaf = |id: u64| !self.blocks.iter().any(|b| b.1 == Some(id));
                    let mut leaves: Vec<_> =
                        self.blocks.iter().filter(|b| is_leaf(b.0) && Some(b.0) != parent).collect();
                    leaves.sort_by_key(|b| (b.2, b.0));
                    let Some(victim) = leaves.first().map(|b| b.0) else { break };
                    self.blocks.retain(|b| b.0 != victim);
                    evicted.push(victim);
                }
                self.blocks.push((chain[i], parent, self.tick));
                held_blocks += 1;
            }
            Served { hit_blocks, held_blocks, evicted }
        }
    }

    #[test]
    fn it_agrees_with_a_naive_model_on_random_trees() {
        use rand::{RngExt, SeedableRng};
        for seed in 0..50 {
            let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
            let capacity = rng.random_range(0..12);
            let (mut engine, mut naive) = (Engine::new(capacity), Naive { capacity, tick: 0, blocks: Vec::new() });
            for step in 0..200 {
                // Ids of a binary tree in heap order: the path from the root is the chain.
                let mut id: u64 = rng.random_range(1..32);
                let mut chain = Vec::new();
                while id > 0 {
                    chain.insert(0, id);
                    id /= 2;
                }
                assert_eq!(engine.serve(&chain), naive.serve(&chain), "seed {seed}, step {step}");
            }
        }
    }
}
