//! One simulated node: the real Raft, core, lanes, proposer and stamps, put together as a node puts them together, and
//! its drivers. It ends when its group does.

use super::SimConfig;
use super::disk::{Disk, Failed};
use super::executor;
use super::faults;
use super::log::SimLog;
use super::machine::{SimMachine, start_from};
use super::members;
use super::network::{SimNetwork, call};
use super::places;
use super::reopening;
use super::world::{Invariant, Plant, World};
use crate::ambient::Ambient;
use crate::core::{Core, Published, Start};
use crate::face::{SubmitError, Timing};
use crate::lanes::{Carrier, LaneLimits, Lanes};
use crate::life::{self, LifeEnd};
use crate::membership::median_wall_us;
use crate::proposer::{self, Done, Leadership, Outcome, Proposer, Refusal};
use crate::record;
use crate::stamp::{CLOCK_WAIT, Clocks, Stamps};
use crate::types::{MemberNode, Proposal};
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::error::{InitializeError, RaftError};
use prefixd_index::Index;
use prefixd_index::command::{Audit, ClusterMeta, Command};
use rand::RngExt;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(super) type Raft = openraft::Raft<SimConfig, SimMachine>;

/// Between looks at what is due.
const TICK: Duration = Duration::from_millis(150);
const LEADER_WAIT: Duration = Duration::from_millis(200);
/// How long a lane tries one batch.
const PROPOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// A node that lives.
pub(super) struct Member {
    pub(super) id: u64,
    pub(super) group: u32,
    pub(super) world: Arc<World>,
    pub(super) disk: Arc<Disk>,
    pub(super) core: Core,
    pub(super) lanes: OnceLock<Lanes>,
    pub(super) receiving: tokio::sync::Mutex<()>,
    /// One membership change is under way at a time.
    pub(super) changing: Arc<tokio::sync::Mutex<()>>,
    /// From the end of a log on a full disk until Raft has begun anew.
    pub(super) is_reopening: AtomicBool,
    raft: Mutex<Raft>,
    life: Mutex<LifeEnd>,
    hash_seed: u64,
    proposer: Proposer,
    stamps: Stamps,
}

/// The paces of a simulated node: a third of a real one's.
pub(super) fn timing() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(110),
        election_min: Duration::from_millis(300),
        election_max: Duration::from_millis(600),
        propose_timeout: PROPOSE_TIMEOUT,
        ..Timing::default()
    }
}

/// Starts a node on its disk, unless it runs.
pub(super) fn start(world: &Arc<World>, id: u64) {
    if world.has_power(id) {
        return;
    }
    let group = world.new_group();
    world.set_group(id, Some(group));
    world.note("start", id, (u64::from(group), 0));
    let booting = world.clone();
    executor::spawn_in(group, async move {
        if let Err(why) = boot(&booting, id, group).await {
            // A disk that can't be read ends the process, and the next start may succeed.
            if booting.disk(id).failed() == Some(Failed::Broken) {
                return gives_up(&booting, id, group);
            }
            booting.broke(Invariant::Alive, format!("node {id} does not start: {why}"));
        }
    });
}

/// Cuts a node's power.
pub(super) fn crash(world: &World, id: u64) {
    let Some(group) = world.set_group(id, None) else { return };
    world.count("crash", id, (u64::from(group), 0));
    let member = world.leave(id);
    executor::kill(group);
    drop(member);
    world.disk(id).lose(world);
}

async fn boot(world: &Arc<World>, id: u64, group: u32) -> Result<(), String> {
    let disk = world.disk(id);
    disk.check(world);
    members::ask_in(world, id).await;
    let hash_seed = executor::chance(|rng| rng.random());
    let start = match disk.generations().first() {
        Some(taken) => start_from(taken, hash_seed).map_err(|e| e.to_string())?,
        None => {
            Start { index: Index::new(hash_seed), applied: None, membership_at: None, membership: Default::default() }
        }
    };
    let is_fresh = disk.seen(|content| content.last().is_none() && content.vote.is_none()) && start.applied.is_none();
    let (core, worker) = Core::prepare(start, Box::new(world.mono(id)));
    executor::spawn(worker.run_as_task());
    executor::spawn(disk.clone().serve(world.clone()));
    let (raft, life) = begin(world, (id, hash_seed), &disk, &core).await?;
    let (proposer, task) = Proposer::new(2_000, 1 << 20);
    let member = Arc::new(Member {
        id,
        group,
        world: world.clone(),
        disk,
        core,
        lanes: OnceLock::new(),
        receiving: tokio::sync::Mutex::default(),
        changing: Arc::default(),
        is_reopening: AtomicBool::new(false),
        raft: Mutex::new(raft),
        life: Mutex::new(life),
        hash_seed,
        proposer,
        stamps: Stamps::default(),
    });
    executor::spawn(task.run(member.clone()));
    let limits = LaneLimits { batch_bytes: 1_000, queue_bytes: 1 << 20, timeout: PROPOSE_TIMEOUT };
    let session = || executor::chance(|rng| rng.random());
    let lanes = Lanes::start(member.clone(), limits, session, &CancellationToken::new());
    assert!(member.lanes.set(lanes).is_ok());
    world.arrive(member.clone());
    match world.places.founders_with(id) {
        Some(founders) if is_fresh => {
            let node = |id: u64| (id, MemberNode { name: places::name(id), addr: String::new() });
            match member.raft().initialize(founders.into_iter().map(node).collect::<BTreeMap<_, _>>()).await {
                Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        _ => {}
    }
    executor::spawn(members::come_in(member.clone()));
    executor::spawn(reopening::run(member.clone()));
    executor::spawn(lead(member.clone()));
    executor::spawn(compact(member));
    Ok(())
}

/// Starts Raft over the log and the index as they are now.
async fn begin(
    world: &Arc<World>,
    (node, hash_seed): (u64, u64),
    disk: &Arc<Disk>,
    core: &Core,
) -> Result<(Raft, LifeEnd), String> {
    let config = openraft::Config { max_payload_entries: 6, replication_lag_threshold: 12, ..life::config(&timing()) };
    let config = Arc::new(config.validate().map_err(|e| e.to_string())?);
    let network = SimNetwork { from: node, world: world.clone() };
    let log = SimLog { disk: disk.clone(), world: world.clone(), opening: disk.opening() };
    let core = core.in_new_life();
    let life = LifeEnd::of(&core.life);
    let machine = SimMachine { node, core, disk: disk.clone(), world: world.clone(), hash_seed };
    let raft = Raft::new(node, config, network, log, machine).await.map_err(|e| e.to_string())?;
    Ok((raft, life))
}

/// The process ends by itself, as a node does whose disk failed, and is started again.
fn gives_up(world: &Arc<World>, id: u64, group: u32) {
    let world = world.clone();
    executor::spawn_in(executor::WORLD, async move {
        if world.group(id) == Some(group) {
            world.count("process ended by its disk", id, (0, 0));
            faults::crash_for(&world, id, Duration::from_secs(1));
        }
    });
}

impl Ambient for Member {
    fn now(&self) -> Instant {
        // Only differences count, so any origin will do that is the same all the time.
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        *ORIGIN.get_or_init(Instant::now) + executor::elapsed()
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        executor::sleep(duration)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        executor::spawn_in(self.group, task);
    }

    fn chance(&self) -> f64 {
        executor::chance(|rng| rng.random())
    }
}

impl Leadership for Member {
    async fn write(&self, proposal: Proposal) -> Outcome {
        proposer::write(&self.raft(), proposal).await
    }

    async fn stamp(&self) -> u64 {
        self.stamps.next(self).await
    }
}

impl Clocks for Member {
    fn term(&self) -> u64 {
        self.raft().metrics().borrow_watched().current_term
    }

    fn published(&self) -> &Published {
        &self.core.published
    }

    fn wall_us(&self) -> u64 {
        self.world.wall_us(self.id)
    }

    async fn median_of_quorum(&self) -> Option<u64> {
        let voters: Vec<u64> =
            self.raft().metrics().borrow_watched().membership_config.membership().voter_ids().collect();
        let asked = voters
            .iter()
            .filter(|id| **id != self.id)
            .map(|&id| call(&self.world, (self.id, id), CLOCK_WAIT, move |target| async move { target.wall_us() }));
        let answers = futures::future::join_all(asked).await;
        let mut walls = vec![self.wall_us()];
        walls.extend(answers.into_iter().flatten());
        median_wall_us(&walls, voters.len())
    }
}

fn unavailable(why: impl Into<String>) -> Refusal {
    Refusal::Submit(SubmitError::Unavailable(why.into()))
}

impl Carrier for Member {
    async fn carry(&self, command: Command, bytes: usize, until: Instant) -> Result<Done, Refusal> {
        let command = self.renumbered(command);
        let mut watched = self.raft().metrics();
        let known = watched.borrow_watched().current_leader;
        let leader = match known {
            Some(leader) => leader,
            None => {
                // Whether it changed or the wait was over, the next try looks again.
                let _looked = executor::within(LEADER_WAIT, watched.changed()).await;
                watched.borrow_watched().current_leader.ok_or(Refusal::NotLeader(None))?
            }
        };
        let left = until.saturating_duration_since(self.now());
        if leader != self.id {
            return self.forward(leader, &command, left).await;
        }
        let proposed = executor::within(left, self.proposer.propose(command, bytes)).await;
        proposed.unwrap_or_else(|| Err(unavailable("no quorum took it in time")))
    }

    async fn applied(&self, index: u64, until: Instant) -> bool {
        while self.core.published.applied_index() < index {
            if self.now() >= until {
                return false;
            }
            executor::sleep(Duration::from_millis(8)).await;
        }
        true
    }
}

impl Member {
    /// The present Raft; one that has ended until the next one begins.
    pub(super) fn raft(&self) -> Raft {
        self.raft.lock().unwrap().clone()
    }

    /// Ends the present Raft: nothing of it touches the index or the log any more.
    pub(super) async fn end_life(&self) {
        // How it ended is known: its log failed.
        let _ended = self.raft().shutdown().await;
        loop {
            if !self.life.lock().unwrap().ends() {
                return;
            }
            executor::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Begins the next one.
    pub(super) async fn begin_life(&self) -> Result<(), String> {
        let (raft, life) = begin(&self.world, (self.id, self.hash_seed), &self.disk, &self.core).await?;
        *self.raft.lock().unwrap() = raft;
        *self.life.lock().unwrap() = life;
        Ok(())
    }

    /// The planted bug: each try of a batch gets a number of its own.
    fn renumbered(&self, mut command: Command) -> Command {
        if self.world.plan.plant == Plant::RetryUnderAnotherNumber
            && let Command::Deltas(batches) = &mut command
        {
            for batch in batches {
                batch.session = executor::chance(|rng| rng.random());
            }
        }
        command
    }

    /// One try at a leader that is not this node, given up as soon as another leads.
    async fn forward(&self, leader: u64, command: &Command, left: Duration) -> Result<Done, Refusal> {
        let bytes = record::encode_forward(command).map_err(|e| Refusal::Unreadable(e.to_string()))?;
        let mut watched = self.raft().metrics();
        let another_leads = async {
            while watched.changed().await.is_ok() {
                if watched.borrow_watched().current_leader.is_some_and(|id| id != leader) {
                    return;
                }
            }
        };
        let asked = call(&self.world, (self.id, leader), left, move |target: Arc<Member>| async move {
            let command = record::decode_forward(&bytes).unwrap();
            // The caller's deadline goes with the call.
            let proposed = executor::within(left, target.proposer.propose(command, bytes.len())).await;
            proposed.unwrap_or_else(|| Err(unavailable("too late")))
        });
        let (asked, another_leads) = (std::pin::pin!(asked), std::pin::pin!(another_leads));
        match futures::future::select(asked, another_leads).await {
            futures::future::Either::Left((answer, _)) => answer.unwrap_or_else(|why| {
                self.world.count("forward unanswered", self.id, (leader, 0));
                Err(unavailable(why))
            }),
            futures::future::Either::Right(((), _)) => Err(Refusal::NotLeader(None)),
        }
    }

    pub(super) fn leads(&self) -> bool {
        self.raft().metrics().borrow_watched().state == ServerState::Leader
    }

    async fn propose(&self, command: Command) -> bool {
        let proposed = executor::within(Duration::from_secs(1), self.proposer.propose(command, 256)).await;
        matches!(proposed, Some(Ok(done)) if done.reply.wants_sweep)
    }

    fn wanted_meta(&self) -> ClusterMeta {
        let default_ttl_us = u64::try_from(self.world.shape.ttl.as_micros()).unwrap();
        ClusterMeta { default_ttl_us, max_entries: self.world.shape.max_entries, ..ClusterMeta::default() }
    }
}

/// What the leader proposes beside what clients send.
async fn lead(member: Arc<Member>) {
    for tick in 1u64.. {
        executor::sleep(TICK).await;
        match member.disk.failed() {
            Some(Failed::Broken) => return gives_up(&member.world, member.id, member.group),
            Some(Failed::Full) => continue,
            None if member.is_reopening.load(SeqCst) => continue,
            None => {}
        }
        if let Err(fatal) = &member.raft().metrics().borrow_watched().running_state {
            member.world.broke(Invariant::Alive, format!("Raft of node {} has ended: {fatal}", member.id));
        }
        let summary = member.core.published.summary();
        member.world.holds(Invariant::Digest, summary.audit_mismatches == 0, || {
            format!("node {} differs from an audit at {:?}", member.id, summary.last_mismatch)
        });
        if !member.leads() {
            continue;
        }
        if tick.is_multiple_of(5) {
            members::tidy(&member).await;
        }
        if summary.meta != member.wanted_meta() || !summary.meta_was_set {
            member.propose(Command::ClusterMeta(member.wanted_meta())).await;
        }
        if tick.is_multiple_of(6) || summary.wants_sweep {
            while member.propose(Command::Sweep).await {}
        }
        if tick.is_multiple_of(11)
            && let Some((index, digest)) = member.core.published.latest_digest()
        {
            member.propose(Command::Audit(Audit { index, digest })).await;
        }
    }
}

/// Asks for snapshots, and purges what two of them cover.
async fn compact(member: Arc<Member>) {
    let shape = &member.world.shape;
    loop {
        executor::sleep(TICK).await;
        let generations = member.disk.generations();
        let snapshot = generations.first().map_or(0, |taken| taken.last());
        let applied = member.core.published.applied_index();
        if applied.saturating_sub(snapshot) >= shape.snapshot_entries {
            // A Raft that has ended is noticed elsewhere.
            let _asked = member.raft().trigger().snapshot().await;
        }
        let Some(oldest) = generations.get(1).map(|taken| taken.last()) else { continue };
        let upto = oldest.min(snapshot.saturating_sub(shape.keep_entries));
        if upto > member.disk.seen(|content| content.purged).map_or(0, |pos| pos.index) {
            let _asked = member.raft().trigger().purge_log(upto).await;
        }
    }
}
