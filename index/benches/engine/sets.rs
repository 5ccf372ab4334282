//! The sets of chains, and the log that brings them into an index. A: 16,384 chains of 64 blocks, the first 32 shared
//! by a family of 16. B: 4,096 conversations of 256 blocks, the first 64 shared by 16. C: a prompt of 64 blocks on
//! all replicas, then 60 own blocks. Each chain is on one random replica of 64.

use super::meter::Stopwatch;
use prefixd_index::command::{Batch, ClusterMeta, Command, Stamped};
use prefixd_index::delta::{Chain, Delta, Event, EventKind, Exact, PrefixEntry, Stats, Update};
use prefixd_index::{Applied, Index, fingerprint};
use std::time::Duration;

pub const NOW_US: u64 = 1_700_000_000_000_000;

/// The shape of a set.
#[derive(Copy, Clone)]
pub struct Set {
    pub name: &'static str,
    pub chains: u64,
    pub shared: usize,
    pub own: usize,
    /// Chains that share their first blocks; 0 for all of them, whose shared blocks are then on all replicas.
    pub family: u64,
    pub replicas: u64,
    pub width: usize,
}

pub const A: Set = Set { name: "A", chains: 16_384, shared: 32, own: 32, family: 16, replicas: 64, width: 8 };
pub const B: Set = Set { name: "B", chains: 4_096, shared: 64, own: 192, family: 16, ..A };
pub const C: Set = Set { name: "C", chains: 16_384, shared: 64, own: 60, family: 0, ..A };
pub const A_WIDE: Set = Set { name: "A, 32-byte hashes", width: 32, ..A };
pub const LARGE: Set = Set { name: "A, 10 M entries", chains: 163_840, ..A };

/// A small generator of pseudo-random numbers.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0, 77) % n
    }
}

fn mix(a: u64, b: u64) -> u64 {
    fingerprint::chained(a.wrapping_mul(0x9e37_79b9_7f4a_7c15), b)
}

/// The bytes of the hash numbered (a, b).
pub fn hash(a: u64, b: u64, width: usize) -> Vec<u8> {
    (0u64..).flat_map(|part| mix(a ^ (part << 60), b).to_be_bytes()).take(width).collect()
}

impl Set {
    pub fn replica(&self, chain: u64) -> u64 {
        mix(chain, 5) % self.replicas
    }

    pub fn hashes(&self, chain: u64) -> Vec<Vec<u8>> {
        let family = chain.checked_div(self.family).unwrap_or(u64::MAX >> 8);
        let shared = (0..self.shared).map(|at| hash(family, at as u64, self.width));
        shared.chain((0..self.own).map(|at| hash(!chain, at as u64, self.width))).collect()
    }

    /// Everything that the replicas report, with the replica of each.
    pub fn reports(self) -> impl Iterator<Item = (u64, Vec<Vec<u8>>)> {
        let prompts = if self.family == 0 { 0..self.replicas } else { 0..0 };
        let prompt = move |replica| (replica, self.hashes(0).into_iter().take(self.shared).collect());
        prompts.map(prompt).chain((0..self.chains).map(move |chain| (self.replica(chain), self.hashes(chain))))
    }
}

/// An update with the entries of one replica.
pub fn update(replica: u64, entries: Vec<PrefixEntry>) -> Delta {
    Delta::Update(Update {
        replica: format!("replica-{replica}"),
        tenant: "tenant".into(),
        model: "model".into(),
        scheme: "vllm".into(),
        timestamp_us: 0,
        entries,
        stats: None,
    })
}

/// An update with nothing but a replica's pressure.
pub fn pressure(replica: u64) -> Delta {
    let stats = Some(Stats { pressure: 0.1 + (replica % 64) as f32 / 100.0, ..Stats::default() });
    match update(replica, Vec::new()) {
        Delta::Update(update) => Delta::Update(Update { stats, ..update }),
        other => other,
    }
}

pub fn chain(hashes: &[Vec<u8>]) -> PrefixEntry {
    let chain = Chain::pack(hashes, &vec![16; hashes.len()]);
    PrefixEntry { adapter: String::new(), tier: 1, chain, exact: None }
}

pub fn exact(hash: &[u8], token_count: i32) -> PrefixEntry {
    let exact = Some(Exact { hash: hash.to_vec(), token_count });
    PrefixEntry { adapter: String::new(), tier: 1, chain: None, exact }
}

pub fn event(replica: u64, kind: EventKind) -> Delta {
    Delta::Event(Event { kind, replica: format!("replica-{replica}"), tenant: "tenant".into(), model: "model".into() })
}

pub fn evicted(replica: u64, hash: &[u8]) -> Delta {
    event(replica, EventKind::PrefixEvicted { hash: hash.to_vec(), adapter: String::new() })
}

/// An index with its log.
pub struct Log {
    pub index: Index,
    at: u64,
    pub later_us: u64,
    /// The longest apply so far, without waits for a CPU.
    pub longest: Duration,
    watch: Stopwatch,
}

impl Log {
    pub fn new(max_entries: u64) -> Self {
        let mut log =
            Self { index: Index::new(7), at: 0, later_us: 0, longest: Duration::ZERO, watch: Stopwatch::new() };
        log.apply(Command::ClusterMeta(ClusterMeta { max_entries, ..ClusterMeta::default() }));
        log
    }

    pub fn apply(&mut self, command: Command) -> Applied {
        self.apply_and_keep(command).0
    }

    fn apply_and_keep(&mut self, command: Command) -> (Applied, Command) {
        self.at += 1;
        self.later_us += 1;
        let stamped = Stamped { stamp_us: NOW_US + self.later_us, command };
        let (took, applied) = self.watch.time(|| self.index.apply(self.at, &stamped));
        self.longest = self.longest.max(took);
        (applied, stamped.command)
    }

    pub fn deltas(&mut self, deltas: Vec<Delta>) -> Applied {
        let command = self.command(deltas);
        self.apply(command)
    }

    /// Deltas as a command, to be applied next.
    pub fn command(&self, deltas: Vec<Delta>) -> Command {
        Command::Deltas(vec![Batch { session: 1, sequence: self.at + 1, producer: None, deltas }])
    }

    /// Applies commands that were made beforehand, whose batches are numbered on the way, and gives them back: to drop
    /// them is no work of the index.
    pub fn replay(&mut self, mut commands: Vec<Command>) -> Vec<Command> {
        for place in &mut commands {
            let mut command = std::mem::replace(place, Command::Sweep);
            if let Command::Deltas(batches) = &mut command {
                batches.iter_mut().for_each(|batch| batch.sequence = self.at + 1);
            }
            let (applied, command) = self.apply_and_keep(command);
            std::hint::black_box(applied);
            *place = command;
        }
        commands
    }

    /// Brings a set in, one report an update, eight updates a command; then a minute passes.
    pub fn filled(set: &Set) -> Self {
        let mut log = Self::new(0);
        let mut reports = set.reports().peekable();
        while reports.peek().is_some() {
            let eight = reports.by_ref().take(8);
            log.deltas(eight.map(|(replica, hashes)| update(replica, vec![chain(&hashes)])).collect());
        }
        log.later_us += 60_000_000;
        log
    }
}
