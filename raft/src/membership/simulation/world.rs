//! Disks, processes, messages and a sketch of Raft's membership.
//!
//! Disks lose what was not written and nothing else; a process dies at any point, also between a write and its
//! knowledge of it; messages are lost, late beyond their caller's patience, and overtake each other. Raft is only
//! what founding and joining see of it: a leader exists while a quorum of voters is up and one of them has the
//! founding entry, and membership changes are done at once.

use super::executor::Time;
use crate::face::{BootstrapMode, Peer};
use crate::membership::{
    Disk, DiskFailure, DiskState, Established, Founder, JoinAnswer, JoinAsk, JoinStep, JoinView, Member, Newcomer,
    NotEstablished, Pace, PeerAnswer, Peers, Place, Promise, PromiseAnswer, Standing, ghosts, must_join, plan,
};
use futures::future::BoxFuture;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;

/// The simulated world. All clones are the same.
#[derive(Clone)]
pub(super) struct Sim {
    pub(super) time: Time,
    world: Arc<Mutex<World>>,
}

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) rng: StdRng,
    /// What is on every disk that ever was, by its id.
    pub(super) disks: BTreeMap<u64, DiskState>,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) cut: BTreeSet<(String, String)>,
    pub(super) clusters: BTreeMap<u128, Cluster>,
    /// Faults that come by themselves (crashes at writes, lost and late messages); off for the healing.
    pub(super) harsh: bool,
    /// Nearly every message is late, and nobody loses patience.
    pub(super) storm: bool,
    pub(super) adoptions: u64,
    pub(super) stops: Vec<String>,
}

/// One name: how it is started, the disk that it has now, and its process while one runs.
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) disk: u64,
    pub(super) process: Option<Process>,
}

pub(super) struct Process {
    founder: Arc<Founder<SimDisk>>,
    task: u64,
    reason: watch::Receiver<String>,
    /// Raft runs.
    raft: bool,
}

/// A cluster that somebody initialised.
pub(super) struct Cluster {
    pub(super) founding: Promise,
    pub(super) members: Vec<Member>,
    /// Disks whose log has the founding entry.
    pub(super) logs: BTreeSet<u64>,
}

impl Sim {
    pub(super) fn new(seed: u64, places: Vec<Place>) -> Sim {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut disks = BTreeMap::new();
        let mut nodes = BTreeMap::new();
        for place in places {
            let disk = empty_disk(&mut rng, &mut disks);
            nodes.insert(place.name.clone(), Node { place, disk, process: None });
        }
        let world = World {
            seed,
            rng,
            disks,
            nodes,
            cut: BTreeSet::new(),
            clusters: BTreeMap::new(),
            harsh: true,
            storm: false,
            adoptions: 0,
            stops: Vec::new(),
        };
        Sim { time: Time::default(), world: Arc::new(Mutex::new(world)) }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub(super) fn random<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.world().rng)
    }

    /// Starts the process of `name`, if it doesn't run.
    pub(super) fn boot(&self, name: &str) {
        let (disk, place, seed) = {
            let mut world = self.world();
            let seed = world.rng.next_u64();
            let node = &world.nodes[name];
            if node.process.is_some() {
                return;
            }
            (node.disk, node.place.clone(), seed)
        };
        let founder = Arc::new(Founder::open(SimDisk { sim: self.clone(), node_id: disk }).unwrap());
        let peers = place.peer_names.iter().map(|name| Peer { name: name.clone(), addr: format!("{name}:9091") });
        let newcomer = Newcomer {
            peers: peers.collect(),
            addr: format!("{name}:9091"),
            founder: Arc::clone(&founder),
            net: SimPeers { sim: self.clone(), from: name.to_owned() },
            pace: self.pace(),
            reason: watch::Sender::default(),
            place,
        };
        let reason = newcomer.reason.subscribe();
        let task = self.time.spawn(life(self.clone(), name.to_owned(), newcomer, seed));
        let process = Process { founder, task, reason, raft: false };
        self.node(name, |node| node.process = Some(process));
    }

    fn pace(&self) -> Pace {
        let patience = Duration::from_secs(10);
        if self.world().storm { Pace { call_timeout: patience, ..Pace::default() } } else { Pace::default() }
    }

    /// Ends the process of `name` on the spot.
    pub(super) fn kill(&self, name: &str) {
        if let Some(process) = self.node(name, |node| node.process.take()) {
            self.time.cancel(process.task);
        }
    }

    /// Ends the process of `name` and brings it back a little later.
    pub(super) fn restart(&self, name: &str) {
        self.kill(name);
        let after = Duration::from_millis(self.random(|rng| rng.random_range(1..3_000)));
        let (sim, name) = (self.clone(), name.to_owned());
        self.time.spawn(async move {
            sim.time.sleep(after).await;
            sim.boot(&name);
        });
    }

    /// Replaces the disk of `name` by an empty one.
    pub(super) fn lose_disk(&self, name: &str) {
        self.kill(name);
        let mut world = self.world();
        let World { rng, disks, nodes, .. } = &mut *world;
        nodes.get_mut(name).unwrap().disk = empty_disk(rng, disks);
    }

    pub(super) fn node<T>(&self, name: &str, f: impl FnOnce(&mut Node) -> T) -> T {
        f(self.world().nodes.get_mut(name).unwrap())
    }

    fn founder(&self, name: &str) -> Option<Arc<Founder<SimDisk>>> {
        self.node(name, |node| node.process.as_ref().map(|process| Arc::clone(&process.founder)))
    }

    /// The process of `name` gave up.
    fn stopped(&self, name: &str, why: &NotEstablished) {
        if !matches!(why, NotEstablished::Disk(_)) {
            self.world().stops.push(why.to_string());
        }
        self.restart(name);
    }

    /// A call to `to`: it takes its time, may be lost on either way, and arrives although its caller has given up.
    fn call<T: Send + 'static>(
        &self,
        from: &str,
        to: &str,
        handle: impl FnOnce(&Sim) -> Option<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, String>> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let (there, back, lost) = self.delays();
        let sim = self.clone();
        let (there, back) = if self.world().harsh { (there, back) } else { (there / 20, back / 20) };
        let (from, to) = (from.to_owned(), to.to_owned());
        self.time.spawn(async move {
            sim.time.sleep(there).await;
            let lost_here = |way: u32| (sim.world().harsh && lost == way) || sim.world().is_cut(&from, &to);
            if lost_here(0) {
                return;
            }
            let Some(answer) = handle(&sim) else { return };
            sim.time.sleep(back).await;
            let lost_here = |way: u32| (sim.world().harsh && lost == way) || sim.world().is_cut(&from, &to);
            if !lost_here(1) {
                reply.send(answer).ok();
            }
        });
        Box::pin(async move { answer.await.map_err(|_| "unreachable".to_owned()) })
    }
}

impl Sim {
    /// How long a call is under way there and back, and on which way it is lost (0 or 1), if any.
    fn delays(&self) -> (Duration, Duration, u32) {
        let storm = self.world().storm;
        let late = |rng: &mut StdRng| Duration::from_micros(rng.random_range(0..3_000_000));
        self.random(|rng| match storm {
            true => (late(rng), late(rng), 2),
            false => (delay(rng), delay(rng), rng.random_range(0..40)),
        })
    }
}

fn delay(rng: &mut StdRng) -> Duration {
    let ms = match rng.random_range(0..20) {
        0 => rng.random_range(100..8_000),
        1..=3 => rng.random_range(10..400),
        _ => rng.random_range(0..10),
    };
    Duration::from_micros(ms * 1_000 + rng.random_range(0..1_000))
}

fn empty_disk(rng: &mut StdRng, disks: &mut BTreeMap<u64, DiskState>) -> u64 {
    let node_id = rng.random_range(1..=u64::MAX);
    disks.insert(node_id, DiskState { node_id, cluster_id: None, promise: None });
    node_id
}

/// One process from its start: what the node does with the membership loops.
async fn life(sim: Sim, name: String, newcomer: Newcomer<SimPeers, SimDisk>, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let established = match newcomer.establish(&mut rng).await {
        Ok(established) => established,
        Err(why) => return sim.stopped(&name, &why),
    };
    sim.raft_starts(&name, &established);
    if sim.world().harsh && sim.random(|rng| rng.random_bool(0.05)) {
        return sim.restart(&name);
    }
    if newcomer.founder.founded().is_err() {
        return sim.restart(&name);
    }
    let members = sim.world().members_known_to(established.cluster_id, established.node_id);
    let founder = established.found.is_some();
    if (established.join || must_join(&members, established.node_id, founder))
        && let Err(why) = newcomer.become_voter(established.cluster_id, &mut rng).await
    {
        sim.stopped(&name, &why);
    }
}

impl Sim {
    fn raft_starts(&self, name: &str, established: &Established) {
        let mut world = self.world();
        let world = &mut *world;
        if let Some(process) = &mut world.nodes.get_mut(name).unwrap().process {
            process.raft = true;
        }
        if let Some(found) = &established.found {
            let cluster = world.clusters.entry(established.cluster_id).or_insert_with(|| Cluster {
                founding: found.clone(),
                members: found.as_members(),
                logs: BTreeSet::new(),
            });
            assert_eq!(&cluster.founding, found, "seed {}: two founding lists of one cluster", world.seed);
            cluster.logs.insert(established.node_id);
        }
    }
}

impl World {
    pub(super) fn is_cut(&self, a: &str, b: &str) -> bool {
        self.cut.contains(&(a.min(b).to_owned(), a.max(b).to_owned()))
    }

    /// The cluster that each disk that still exists belongs to.
    pub(super) fn live_clusters(&self) -> BTreeSet<u128> {
        self.nodes.values().filter_map(|node| self.disks[&node.disk].cluster_id).collect()
    }

    /// Why `name` is no member yet, as it would tell.
    pub(super) fn reason(&self, name: &str) -> Option<String> {
        self.nodes[name].process.as_ref().map(|process| process.reason.borrow().clone())
    }

    fn raft_runs(&self, cluster_id: u128, node_id: u64) -> bool {
        self.nodes.values().any(|node| {
            node.disk == node_id
                && self.disks[&node_id].cluster_id == Some(cluster_id)
                && node.process.as_ref().is_some_and(|process| process.raft)
        })
    }

    fn leader(&mut self, cluster_id: u128) -> Option<u64> {
        let members = self.clusters.get(&cluster_id)?.members.clone();
        let up: Vec<&Member> = members.iter().filter(|member| self.raft_runs(cluster_id, member.node_id)).collect();
        let voters_up = up.iter().filter(|member| member.voter).count();
        let voters = members.iter().filter(|member| member.voter).count();
        if voters_up <= voters / 2 {
            return None;
        }
        let logs = &mut self.clusters.get_mut(&cluster_id)?.logs;
        let leader = up.iter().find(|member| member.voter && logs.contains(&member.node_id))?.node_id;
        logs.extend(up.iter().map(|member| member.node_id));
        Some(leader)
    }

    fn members_known_to(&self, cluster_id: u128, node_id: u64) -> Vec<Member> {
        let cluster = self.clusters.get(&cluster_id).filter(|cluster| cluster.logs.contains(&node_id));
        cluster.map(|cluster| cluster.members.clone()).unwrap_or_default()
    }

    fn standing(&mut self, name: &str) -> Option<Standing> {
        let process = self.nodes[name].process.as_ref()?;
        let before_raft = process.founder.standing();
        let (raft, node_id) = (process.raft, self.nodes[name].disk);
        let Standing::Member { cluster_id, .. } = before_raft else { return Some(before_raft) };
        let leader = self.leader(cluster_id);
        let members = self.members_known_to(cluster_id, node_id);
        if !raft || members.is_empty() {
            return Some(before_raft);
        }
        Some(Standing::Member { cluster_id, members, leader })
    }

    fn join(&mut self, name: &str, ask: &JoinAsk) -> JoinAnswer {
        if self.harsh && self.rng.random_bool(0.1) {
            return JoinAnswer::Busy { reason: "just so".into() };
        }
        let me = self.nodes[name].disk;
        let Some(cluster_id) = self.disks[&me].cluster_id.filter(|id| self.raft_runs(*id, me)) else {
            return JoinAnswer::Busy { reason: "no member yet".into() };
        };
        let leader = self.leader(cluster_id);
        let members = self.members_known_to(cluster_id, me);
        if leader != Some(me) {
            return JoinAnswer::NotLeader { leader: members.into_iter().find(|member| Some(member.node_id) == leader) };
        }
        let heard: Vec<u64> =
            members.iter().map(|member| member.node_id).filter(|id| self.raft_runs(cluster_id, *id)).collect();
        let view = JoinView {
            cluster_id,
            leader: me,
            peer_names: &self.nodes[name].place.peer_names,
            members: &members,
            changing: false,
            heard: &heard,
            matched: self.raft_runs(cluster_id, ask.node_id).then_some(10),
            last_log: 10,
            max_lag: 0,
        };
        match plan(&view, ask) {
            JoinStep::AlreadyVoter => JoinAnswer::Voter,
            JoinStep::WaitCatchUp => JoinAnswer::Learner,
            JoinStep::Refuse(reason) => JoinAnswer::Refused { reason },
            JoinStep::Busy(reason) => JoinAnswer::Busy { reason },
            JoinStep::AddLearner { replace } => {
                let JoinAsk { node_id, name, addr, .. } = ask.clone();
                self.change(cluster_id, &replace, Member { node_id, name, addr, voter: false });
                JoinAnswer::Learner
            }
            JoinStep::Swap { remove, add } => {
                let JoinAsk { name, addr, .. } = ask.clone();
                self.change(cluster_id, &remove, Member { node_id: add, name, addr, voter: true });
                JoinAnswer::Voter
            }
        }
    }

    /// What a leader does from time to time.
    pub(super) fn remove_ghosts(&mut self) {
        for cluster_id in self.live_clusters() {
            if self.leader(cluster_id).is_none() {
                continue;
            }
            let members = &self.clusters[&cluster_id].members;
            let ids = members.iter().map(|member| member.node_id);
            let heard: Vec<u64> = ids.filter(|id| self.raft_runs(cluster_id, *id)).collect();
            let ghosts = ghosts(members, &heard);
            if let Some(cluster) = self.clusters.get_mut(&cluster_id) {
                cluster.members.retain(|member| !ghosts.contains(&member.node_id));
            }
        }
    }

    fn change(&mut self, cluster_id: u128, remove: &[u64], member: Member) {
        let seed = self.seed;
        let members = &mut self.clusters.get_mut(&cluster_id).unwrap().members;
        members.retain(|old| !remove.contains(&old.node_id) && old.node_id != member.node_id);
        members.push(member);
        let voters: Vec<&str> =
            members.iter().filter(|member| member.voter).map(|member| member.name.as_str()).collect();
        let names: BTreeSet<&str> = voters.iter().copied().collect();
        assert_eq!(names.len(), voters.len(), "seed {seed}: two voters of one name: {members:?}");
    }
}

/// A disk whose process dies at one write in some twenty, before or after it has lasted.
pub(super) struct SimDisk {
    sim: Sim,
    node_id: u64,
}

impl SimDisk {
    fn write(&self, change: impl FnOnce(&mut DiskState)) -> Result<(), DiskFailure> {
        let mut world = self.sim.world();
        let fate = if world.harsh { world.rng.random_range(0..40) } else { 40 };
        if fate != 0 {
            change(world.disks.get_mut(&self.node_id).unwrap());
            world.check_adoption(self.node_id);
        }
        if fate <= 1 { Err(DiskFailure("the process dies at this write".into())) } else { Ok(()) }
    }
}

impl World {
    /// All disks that exist and belong to a cluster belong to the same one.
    fn check_adoption(&mut self, node_id: u64) {
        let Some(cluster_id) = self.disks[&node_id].cluster_id else { return };
        self.adoptions += 1;
        let live = self.live_clusters();
        assert!(live.len() <= 1, "seed {}: a second cluster, {cluster_id:032x} beside {live:x?}", self.seed);
    }
}

impl Disk for SimDisk {
    fn read(&self) -> Result<DiskState, DiskFailure> {
        Ok(self.sim.world().disks[&self.node_id].clone())
    }

    fn make_promise(&self, promise: &Promise) -> Result<(), DiskFailure> {
        self.write(|disk| {
            assert_eq!(disk.promise, None, "a promise over a promise");
            assert_eq!(disk.cluster_id, None, "a promise of a member");
            disk.promise = Some(promise.clone());
        })
    }

    fn clear_promise(&self) -> Result<(), DiskFailure> {
        self.write(|disk| disk.promise = None)
    }

    fn adopt(&self, cluster_id: u128) -> Result<(), DiskFailure> {
        self.write(|disk| {
            assert_eq!(disk.cluster_id, None, "adopted twice");
            disk.cluster_id = Some(cluster_id);
        })
    }
}

#[derive(Clone)]
pub(super) struct SimPeers {
    sim: Sim,
    from: String,
}

impl Peers for SimPeers {
    fn status(&self, peer: &Peer) -> impl Future<Output = Result<PeerAnswer, String>> + Send {
        let name = peer.name.clone();
        self.sim.call(&self.from, &peer.name, move |sim| {
            let mut world = sim.world();
            let standing = world.nodes.contains_key(&name).then(|| world.standing(&name))??;
            let node = &world.nodes[&name];
            let peer_names = node.place.peer_names.clone();
            Some(PeerAnswer { name: name.clone(), node_id: node.disk, peer_names, standing })
        })
    }

    fn promise(&self, peer: &Peer, promise: &Promise) -> impl Future<Output = Result<PromiseAnswer, String>> + Send {
        let (name, promise) = (peer.name.clone(), promise.clone());
        self.sim.call(&self.from, &peer.name, move |sim| {
            let founder = sim.founder(&name)?;
            let place = sim.node(&name, |node| node.place.clone());
            let answer = founder.answer(&place, &promise);
            if founder.failure().is_some() {
                sim.restart(&name);
                return None;
            }
            Some(answer)
        })
    }

    fn join(&self, peer: &Peer, ask: &JoinAsk) -> impl Future<Output = Result<JoinAnswer, String>> + Send {
        let (name, ask) = (peer.name.clone(), ask.clone());
        self.sim.call(&self.from, &peer.name, move |sim| {
            sim.founder(&name)?;
            Some(sim.world().join(&name, &ask))
        })
    }

    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        self.sim.time.sleep(duration)
    }
}

/// The place named `name` among `names`.
pub(super) fn place(name: &str, names: &[String], bootstrap: BootstrapMode) -> Place {
    Place { name: name.into(), peer_names: names.to_vec(), bootstrap }
}
