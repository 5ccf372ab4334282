//! Random commands and requests over few names, so that everything collides with everything.

use super::Dice;
use super::model::PROBE;
use crate::command::{Audit, Batch, ClusterMeta, Command, Credit, Probe};
use crate::delta::{Chain, Delta, Event, EventKind, Exact, PackedHashes, PrefixEntry, Stats, Update};
use crate::policy::{Eviction, PolicySet, Strategy, TenantPolicy};

pub(super) const TENANTS: [&str; 3] = ["t1", "t2", "a-tenant"];
pub(super) const MODELS: [&str; 2] = ["m", "n"];
pub(super) const SCHEMES: [&str; 2] = ["vllm", "sglang"];
pub(super) const ADAPTERS: [&str; 3] = ["", "sql", "chat"];
pub(super) const REPLICAS: [&str; 4] = ["r1", "r2", "R3", "r-with-a-long-name"];

/// A world of commands: what it draws from, and the cluster time it has come to.
pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) now: u64,
    sequence: u64,
    /// A narrow world mostly uses one tenant, model, scheme and adapter, and few hashes: there replicas meet.
    narrow: bool,
    /// Log indexes with their digests, right and wrong ones.
    pub(super) audits: Vec<(u64, u128)>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self { dice: Dice(seed), now: 1_000, sequence: 0, narrow: seed % 2 == 1, audits: vec![] }
    }

    pub(super) fn hash(&mut self) -> Vec<u8> {
        if self.dice.one_in(3) {
            let mut chain = self.chain();
            return chain.swap_remove(self.dice.roll(chain.len() as u64) as usize);
        }
        let n = self.dice.roll(if self.narrow { 3 } else { 14 }) as u8;
        match n {
            0..8 => vec![n; 8],
            8 => vec![7; 7],
            9 => vec![9; 22],
            10 => vec![9; 23],
            11 => vec![1; 128],
            _ => vec![n, 3],
        }
    }

    /// A leading part of one of a few chains, as hashes.
    pub(super) fn chain(&mut self) -> Vec<Vec<u8>> {
        let family = self.dice.roll(if self.narrow { 2 } else { 3 }) as u8;
        let len = 1 + self.dice.roll(6) as u8;
        let fork = self.dice.roll(5) as u8;
        (0..len).map(|block| vec![block, if block > fork { family } else { 0 }, 5, 5, 5, 5, 5, 5]).collect()
    }

    pub(super) fn name<'a>(&mut self, from: &[&'a str]) -> &'a str {
        // Replicas are what a narrow world has many of.
        if self.narrow && from[0] != REPLICAS[0] && !self.dice.one_in(8) {
            return from[0];
        }
        from[self.dice.roll(from.len() as u64) as usize]
    }

    fn timestamp(&mut self) -> u64 {
        match self.dice.roll(6) {
            0 => 0,
            1 => self.now + self.dice.roll(1_000),
            2 => self.now.saturating_sub(self.dice.roll(120)),
            3 => self.now - self.now % 40,
            _ => self.now.saturating_sub(self.dice.roll(10)),
        }
    }

    fn count(&mut self) -> i32 {
        *self.dice.pick(&[16, 16, 16, 64, 64, 0, 100, i32::MAX])
    }

    fn entry(&mut self) -> PrefixEntry {
        let bad = self.dice.roll(40);
        let mut chain = None;
        let mut exact = None;
        if self.dice.one_in(3) {
            let hash = match bad {
                0 => vec![],
                1 => vec![4; 129],
                _ => self.hash(),
            };
            exact = Some(Exact { hash, token_count: if bad == 2 { -1 } else { self.count() } });
        }
        if exact.is_none() || self.dice.one_in(4) {
            let mut hashes = if self.dice.one_in(4) { vec![self.hash(), self.hash()] } else { self.chain() };
            // A part of a chain, so that its blocks differ in age.
            if self.dice.one_in(2) {
                hashes.drain(..self.dice.roll(hashes.len() as u64) as usize);
                hashes.truncate(1 + self.dice.roll(4) as usize);
            }
            let mut counts: Vec<i32> = hashes.iter().map(|_| 16).collect();
            match bad {
                3 => hashes[0].clear(),
                4 => hashes[0] = vec![4; 129],
                5 => counts[0] = -16,
                6..10 => counts.fill(self.count()),
                _ => {}
            }
            chain = Chain::pack(&hashes, &counts);
        }
        if bad == 10 {
            (chain, exact) = (None, None);
        }
        let tier = *self.dice.pick(&[1, 1, 1, 2, 3, 0, 4, 7, -1]);
        let adapter = if bad == 11 { "x".repeat(1025) } else { self.name(&ADAPTERS).to_owned() };
        PrefixEntry { adapter, tier, chain, exact }
    }

    fn stats(&mut self) -> Stats {
        let value = |dice: &mut Dice| *dice.pick(&[0.0, 0.05, 0.1, 0.5, 0.75, 1.0, 2.0, -1.0, f32::NAN, f32::INFINITY]);
        Stats {
            cache_memory_bytes: self.dice.next() as i64,
            hit_rate: value(&mut self.dice),
            pressure: value(&mut self.dice),
            t2_hit_tokens: self.dice.roll(10) as i64,
            t2_query_tokens: self.dice.roll(10) as i64,
        }
    }

    fn names(&mut self) -> (String, String, String) {
        let bad = self.dice.roll(60);
        let mut names = [self.name(&REPLICAS), self.name(&TENANTS), self.name(&MODELS)].map(str::to_owned);
        match bad {
            0..3 => names[bad as usize].clear(),
            3..6 => names[bad as usize - 3] = "i".repeat(1025),
            6 => names[1] = PROBE.to_owned(),
            7 => names[bad as usize % 3] = "i".repeat(1024),
            8 => names[1] = format!("made-up-{}", self.dice.roll(5)),
            _ => {}
        }
        let [replica, tenant, model] = names;
        (replica, tenant, model)
    }

    fn delta(&mut self) -> Delta {
        let (replica, tenant, model) = self.names();
        if self.dice.one_in(4) {
            let kind = match self.dice.roll(9) {
                0..6 => {
                    let hash = if self.dice.one_in(2) { self.hash() } else { self.chain().pop().unwrap() };
                    EventKind::PrefixEvicted { hash, adapter: self.name(&ADAPTERS).to_owned() }
                }
                6..8 => EventKind::ReplicaUpdated { timestamp_us: self.timestamp() },
                _ => EventKind::AllCleared,
            };
            return Delta::Event(Event { kind, replica, tenant, model });
        }
        let scheme = match self.dice.roll(30) {
            0 => String::new(),
            1 => "s".repeat(1025),
            _ => self.name(&SCHEMES).to_owned(),
        };
        let entries = (0..self.dice.roll(4)).map(|_| self.entry()).collect();
        let stats = self.dice.one_in(3).then(|| self.stats());
        let timestamp_us = self.timestamp();
        Delta::Update(Update { replica, tenant, model, scheme, timestamp_us, entries, stats })
    }

    fn policies(&mut self) -> PolicySet {
        let mut set = PolicySet::default();
        for tenant in TENANTS.iter().chain(&[PROBE, "nobody"]) {
            if self.dice.one_in(2) {
                set.policies.insert(tenant.to_string(), self.policy());
            }
            if self.dice.one_in(if self.narrow { 1 } else { 3 }) {
                set.quotas.insert(tenant.to_string(), *self.dice.pick(&[0, 1, 3, 3, 5, 8, 100]));
            }
        }
        if self.dice.one_in(10) {
            set.quotas.insert("q".repeat(1025), 1);
        }
        set
    }

    fn policy(&mut self) -> TenantPolicy {
        let dice = &mut self.dice;
        TenantPolicy {
            ttl_us: *dice.pick(&[None, None, Some(0), Some(50), Some(90), Some(1_000)]),
            minimum_prefix_tokens: *dice.pick(&[None, None, Some(0), Some(33), Some(100)]),
            minimum_matched_tokens: *dice.pick(&[None, Some(0), Some(17), Some(-1)]),
            routing_floor_score: *dice.pick(&[None, Some(0.0), Some(-1.0), Some(5.0)]),
            lookup_timeout_ms: *dice.pick(&[None, Some(25)]),
            eviction: *dice.pick(&[Eviction::Lru, Eviction::Lfu, Eviction::Lfu]),
            affinity_routing: *dice.pick(&[None, None, Some(true), Some(false)]),
            strategy: match dice.roll(3) {
                0 => Some(Strategy {
                    enable_chain_matching: !dice.one_in(3),
                    require_chain: dice.one_in(4),
                    enable_tenant_hot: !dice.one_in(3),
                }),
                _ => None,
            },
        }
    }

    fn meta(&mut self) -> ClusterMeta {
        let dice = &mut self.dice;
        ClusterMeta {
            feature_level: 1,
            default_ttl_us: *dice.pick(&[100, 100, 200, 1_000, 0]),
            max_entries: *dice.pick(&[0, 5, 12, 30, 60]),
            max_bytes: *dice.pick(&[0, 0, 0, 3_000, 12_000]),
            slice_entries: *dice.pick(&[0, 1, 2, 5, 9]),
            session_ttl_us: *dice.pick(&[10, 100, 1_000_000]),
        }
    }

    fn credit(&mut self) -> Credit {
        let hashes = if self.dice.one_in(2) { self.chain() } else { vec![self.hash(), self.hash()] };
        let mut counts: Vec<u32> = hashes.iter().map(|_| self.dice.roll(4) as u32).collect();
        if self.dice.one_in(20) {
            counts.fill(u32::MAX);
        }
        Credit {
            tenant: self.name(&TENANTS).to_owned(),
            model: self.name(&MODELS).to_owned(),
            scheme: self.name(&SCHEMES).to_owned(),
            adapter: self.name(&ADAPTERS).to_owned(),
            replica: self.name(&REPLICAS).to_owned(),
            hashes: PackedHashes::pack(&hashes).unwrap(),
            counts,
        }
    }

    /// The next command; time moves as well.
    pub(super) fn command(&mut self) -> Command {
        self.now += *self.dice.pick(&[0, 0, 1, 1, 3, 7, 20]);
        match self.dice.roll(100) {
            0..70 => {
                let batches = (0..1 + self.dice.roll(2)).map(|_| {
                    self.sequence += self.dice.roll(3);
                    let session = u128::from(self.dice.roll(3));
                    let deltas = (0..self.dice.roll(4)).map(|_| self.delta()).collect();
                    Batch { session, sequence: self.sequence, producer: None, deltas }
                });
                Command::Deltas(batches.collect())
            }
            70..82 => Command::Sweep,
            82..85 => Command::SetPolicy(self.policies()),
            85..88 => Command::ClusterMeta(self.meta()),
            88..94 => Command::AccessCredits((0..1 + self.dice.roll(3)).map(|_| self.credit()).collect()),
            94..97 => {
                let (index, digest) = if self.audits.is_empty() { (3, 3) } else { *self.dice.pick(&self.audits) };
                Command::Audit(Audit { index, digest })
            }
            97 => Command::OfferPolicy(self.policies()),
            _ => Command::Probe(Probe {
                replica: self.name(&["__probe-a", "__probe-b", ""]).to_owned(),
                model: self.name(&MODELS).to_owned(),
                scheme: self.name(&SCHEMES).to_owned(),
                hash: self.hash(),
                present: self.dice.one_in(2),
            }),
        }
    }
}
