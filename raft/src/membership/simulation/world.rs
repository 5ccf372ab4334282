//! Disks, processes and messages; [`super::raft_sketch`] is the Raft above them.
//!
//! Disks lose what was not written and nothing else; a process dies at any point, also between a write and its
//! knowledge of it; messages are lost, late beyond their caller's patience, and overtake each other.

use super::executor::Time;
use super::raft_sketch::Cluster;
use crate::face::{BootstrapMode, Peer};
use crate::membership::{
    Disk, DiskFailure, DiskState, Founder, JoinAnswer, JoinAsk, Newcomer, NotEstablished, Pace, PeerAnswer, Peers,
    Place, Promise, PromiseAnswer, must_join,
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
    pub(super) founder: Arc<Founder<SimDisk>>,
    task: u64,
    reason: watch::Receiver<String>,
    /// Raft runs.
    pub(super) raft: bool,
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
