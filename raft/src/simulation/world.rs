//! What all parts of a run share: its plan, the nodes that live, the links between them, the clocks, the trace, and
//! the first invariant that broke.

use super::disk::Disk;
use super::executor;
use super::node::Member;
use super::truth::Truth;
use rand::RngExt;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The wall clock when a run begins, in microseconds since the epoch.
pub(super) const WALL_AT_START_US: u64 = 1_800_000_000_000_000;

/// A bug to plant.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// None: what runs is the product.
    Nothing,
    /// The disk says that an append is durable before it is.
    EarlyAcknowledgement,
    /// A saved vote stays in memory.
    ForgottenVote,
    /// Apply takes a node's own clock for the stamp.
    ClockInApply,
    /// A batch that is tried again gets another number.
    RetryUnderAnotherNumber,
}

/// What must hold.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Invariant {
    Acknowledged,
    Visible,
    Resurrected,
    Once,
    Committed,
    OnQuorum,
    OneLeader,
    Digest,
    Time,
    Vote,
    Positions,
    Alive,
    Recovery,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Invariant::Acknowledged => "what was acknowledged is in the log",
            Invariant::Visible => "a node shows what its log says",
            Invariant::Resurrected => "what was evicted stays away",
            Invariant::Once => "each update takes effect once, in its order",
            Invariant::Committed => "what is committed never changes",
            Invariant::OnQuorum => "what is applied is on the disks of a quorum",
            Invariant::OneLeader => "a term has one leader",
            Invariant::Digest => "equal digest at equal applied index",
            Invariant::Time => "cluster time neither runs back nor ahead",
            Invariant::Vote => "votes never go back",
            Invariant::Positions => "purged <= snapshot <= applied <= committed",
            Invariant::Alive => "no node stops by itself",
            Invariant::Recovery => "all comes together once faults end",
        })
    }
}

/// What a run is made of.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) plant: Plant,
    /// Also judge by what only a simulation sees: what is on disks, and votes from before a crash.
    pub(super) sees_disks: bool,
    /// Print what happens.
    pub(super) is_loud: bool,
}

/// What was decided for this seed.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) nodes: u64,
    pub(super) faults: Duration,
    pub(super) loss: f64,
    pub(super) delay: Duration,
    pub(super) sync: Duration,
    pub(super) snapshot_entries: u64,
    pub(super) keep_entries: u64,
    pub(super) max_entries: u64,
    pub(super) ttl: Duration,
    pub(super) read_bytes: usize,
    /// The node whose wall clock jumps.
    pub(super) bad_clock: u64,
}

impl Shape {
    fn draw() -> Self {
        let pick = |of: &[u64]| of[executor::chance(|rng| rng.random_range(0..of.len()))];
        let nodes = pick(&[3, 3, 3, 5]);
        Self {
            nodes,
            faults: Duration::from_secs(pick(&[3, 5, 9])),
            loss: [0.0, 0.005, 0.05][usize::try_from(pick(&[0, 1, 2])).unwrap()],
            delay: Duration::from_micros(pick(&[500, 2_000, 10_000])),
            sync: Duration::from_micros(pick(&[300, 2_000, 8_000])),
            snapshot_entries: pick(&[15, 40, 100_000]),
            keep_entries: pick(&[0, 5, 20]),
            max_entries: pick(&[0, 0, 0, 10]),
            ttl: Duration::from_secs(pick(&[4, 15, 1_800])),
            read_bytes: usize::try_from(pick(&[300, 4_000, 4 << 20])).unwrap(),
            bad_clock: executor::chance(|rng| rng.random_range(1..=nodes)),
        }
    }
}

/// A node's clocks, off by parts in a million, the wall clock by an offset too.
#[derive(Copy, Clone, Debug, Default)]
struct Clocks {
    offset_us: i64,
    wall_ppm: i64,
    mono_ppm: i64,
}

fn with_drift(elapsed: Duration, ppm: i64) -> i64 {
    let us = i64::try_from(elapsed.as_micros()).unwrap();
    us + us * ppm / 1_000_000
}

/// How often what happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally(pub(super) BTreeMap<&'static str, u64>);

impl Tally {
    pub(super) fn add(&mut self, other: &Tally) {
        for (what, times) in &other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }

    pub(super) fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

/// One direction between two nodes.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Wire {
    pub(super) is_cut: bool,
    pub(super) extra: Duration,
}

struct Journal {
    hash: DefaultHasher,
    tally: Tally,
    broken: Option<(Invariant, String)>,
}

/// The world.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) shape: Shape,
    pub(super) disks: Vec<Arc<Disk>>,
    pub(super) truth: Mutex<Truth>,
    members: Mutex<BTreeMap<u64, Arc<Member>>>,
    wires: Mutex<BTreeMap<(u64, u64), Wire>>,
    clocks: Mutex<BTreeMap<u64, Clocks>>,
    journal: Mutex<Journal>,
    next_group: Mutex<u32>,
    groups: Mutex<BTreeMap<u64, u32>>,
}

impl World {
    pub(super) fn new(plan: Plan) -> Arc<Self> {
        let shape = Shape::draw();
        let ids = 1..=shape.nodes;
        let drift = || executor::chance(|rng| rng.random_range(-100..=100));
        let clocks = ids.clone().map(|id| {
            let offset_us = executor::chance(|rng| rng.random_range(-50_000..=50_000));
            (id, Clocks { offset_us, wall_ppm: drift(), mono_ppm: drift() })
        });
        Arc::new(Self {
            truth: Mutex::new(Truth::new(shape.nodes)),
            clocks: Mutex::new(clocks.collect()),
            disks: ids.map(|id| Arc::new(Disk::new(id))).collect(),
            members: Mutex::default(),
            wires: Mutex::default(),
            journal: Mutex::new(Journal { hash: DefaultHasher::new(), tally: Tally::default(), broken: None }),
            next_group: Mutex::new(executor::WORLD),
            groups: Mutex::default(),
            plan,
            shape,
        })
    }

    pub(super) fn ids(&self) -> std::ops::RangeInclusive<u64> {
        1..=self.shape.nodes
    }

    pub(super) fn disk(&self, id: u64) -> &Arc<Disk> {
        &self.disks[usize::try_from(id - 1).unwrap()]
    }

    /// The node with this id, if it lives.
    pub(super) fn member(&self, id: u64) -> Option<Arc<Member>> {
        self.members.lock().unwrap().get(&id).cloned()
    }

    /// All nodes that live.
    pub(super) fn members(&self) -> Vec<Arc<Member>> {
        self.members.lock().unwrap().values().cloned().collect()
    }

    pub(super) fn arrive(&self, member: Arc<Member>) {
        self.members.lock().unwrap().insert(member.id, member);
    }

    pub(super) fn leave(&self, id: u64) -> Option<Arc<Member>> {
        self.members.lock().unwrap().remove(&id)
    }

    pub(super) fn new_group(&self) -> u32 {
        let mut next = self.next_group.lock().unwrap();
        *next += 1;
        *next
    }

    /// Sets the group that a node runs in, from its start to its crash; gives the one before.
    pub(super) fn set_group(&self, id: u64, group: Option<u32>) -> Option<u32> {
        let mut groups = self.groups.lock().unwrap();
        match group {
            Some(group) => groups.insert(id, group),
            None => groups.remove(&id),
        }
    }

    /// True when a node was started and has not crashed since.
    pub(super) fn has_power(&self, id: u64) -> bool {
        self.groups.lock().unwrap().contains_key(&id)
    }

    pub(super) fn wire(&self, from: u64, to: u64) -> Wire {
        self.wires.lock().unwrap().get(&(from, to)).copied().unwrap_or_default()
    }

    pub(super) fn set_wire(&self, from: u64, to: u64, change: impl FnOnce(&mut Wire)) {
        change(self.wires.lock().unwrap().entry((from, to)).or_default());
    }

    pub(super) fn heal_wires(&self) {
        self.wires.lock().unwrap().clear();
    }

    /// A node's wall clock.
    pub(super) fn wall_us(&self, id: u64) -> u64 {
        let clocks = self.clocks.lock().unwrap()[&id];
        let since = with_drift(executor::elapsed(), clocks.wall_ppm) + clocks.offset_us;
        WALL_AT_START_US.saturating_add_signed(since)
    }

    pub(super) fn jump_clock(&self, id: u64, by_us: i64) {
        self.clocks.lock().unwrap().get_mut(&id).unwrap().offset_us += by_us;
    }

    /// A node's monotonic clock since `boot`.
    pub(super) fn mono(&self, id: u64) -> impl Fn() -> u64 + Send + Sync + 'static {
        let (ppm, boot) = (self.clocks.lock().unwrap()[&id].mono_ppm, executor::now());
        move || with_drift(executor::now() - boot, ppm).unsigned_abs()
    }

    /// Writes what happened into the trace.
    pub(super) fn note(&self, what: &'static str, whom: u64, detail: (u64, u64)) {
        let mut journal = self.journal.lock().unwrap();
        (executor::elapsed(), what, whom, detail).hash(&mut journal.hash);
        if self.plan.is_loud {
            eprintln!("{:>12?}  {what:<28} node {whom}  {} {}", executor::elapsed(), detail.0, detail.1);
        }
    }

    /// The same, and counts it.
    pub(super) fn count(&self, what: &'static str, whom: u64, detail: (u64, u64)) {
        self.note(what, whom, detail);
        *self.journal.lock().unwrap().tally.0.entry(what).or_default() += 1;
    }

    /// An invariant does not hold: the run ends with the first one.
    pub(super) fn broke(&self, invariant: Invariant, said: impl Into<String>) {
        let mut journal = self.journal.lock().unwrap();
        if journal.broken.is_none() {
            let said = format!("{:?}: {}", executor::elapsed(), said.into());
            if self.plan.is_loud {
                eprintln!("BROKEN: {invariant}: {said}");
            }
            journal.broken = Some((invariant, said));
        }
        executor::stop();
    }

    /// Asserts an invariant.
    pub(super) fn holds(&self, invariant: Invariant, is_so: bool, said: impl FnOnce() -> String) {
        if !is_so {
            self.broke(invariant, said());
        }
    }

    /// The trace's hash, what was counted, and what broke.
    pub(super) fn outcome(&self) -> (u64, Tally, Option<(Invariant, String)>) {
        let journal = self.journal.lock().unwrap();
        (journal.hash.finish(), journal.tally.clone(), journal.broken.clone())
    }

    /// Lets go of all nodes, which hold the world.
    pub(super) fn clear(&self) {
        let members = std::mem::take(&mut *self.members.lock().unwrap());
        drop(members);
    }
}
