//! Everything at once, as chance will have it: kills, pauses, planned stops, lost disks, wrong clocks, and under all of
//! that a network that is cut, slow, lossy or well. All invariants hold all the while. PREFIXD_CHAOS_SECONDS says for
//! how long.

use crate::cluster::Cluster;
use crate::figures::{chances, is_long};
use crate::load::Load;
use crate::network::Network;
use crate::proxy::Proxy;
use crate::shim::{Clock, library};
use rand::RngExt;
use rand::rngs::StdRng;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const NODES: usize = 3;

/// What is done to nodes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Blow {
    Kill,
    KillLeader,
    KillTwo,
    KillAll,
    Pause,
    Restart,
    LoseDisk,
    WrongClock,
    Nothing,
}

/// Those that are drawn, the more frequent ones more than once.
const BLOWS: [Blow; 12] = [
    Blow::Kill,
    Blow::KillLeader,
    Blow::KillLeader,
    Blow::KillTwo,
    Blow::KillAll,
    Blow::Pause,
    Blow::Pause,
    Blow::Restart,
    Blow::LoseDisk,
    Blow::WrongClock,
    Blow::WrongClock,
    Blow::Nothing,
];

/// What is done to the network under it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Weather {
    Fair,
    OneAlone,
    OneMute,
    OneDeaf,
    Delayed,
    Slow,
    Lossy,
}

const WEATHERS: [Weather; 8] = [
    Weather::Fair,
    Weather::Fair,
    Weather::OneAlone,
    Weather::OneMute,
    Weather::OneDeaf,
    Weather::Delayed,
    Weather::Slow,
    Weather::Lossy,
];

struct Mix {
    cluster: Cluster,
    proxy: Proxy,
    load: Load,
    clocks: Vec<Clock>,
    chances: StdRng,
}

impl Mix {
    async fn pause(&mut self, least_ms: u64, most_ms: u64) {
        let pause = self.chances.random_range(least_ms..most_ms);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    fn weather(&mut self, weather: Weather) {
        let one = self.chances.random_range(0..NODES);
        let others = (0..NODES).filter(|other| *other != one);
        match weather {
            Weather::Fair => {}
            Weather::OneAlone => self.proxy.part(&[one]),
            Weather::OneMute => others.for_each(|other| self.proxy.cut(one, other)),
            Weather::OneDeaf => others.for_each(|other| self.proxy.cut(other, one)),
            Weather::Delayed => {
                let delay = Duration::from_millis(self.chances.random_range(1..40));
                self.proxy.set_all(|way| way.delay = delay);
            }
            Weather::Slow => others.for_each(|other| {
                self.proxy.set(one, other, |way| way.rate = 64 << 10);
                self.proxy.set(other, one, |way| way.rate = 64 << 10);
            }),
            Weather::Lossy => self.proxy.set_all(|way| (way.loss, way.reset) = (0.01, 0.001)),
        }
    }

    /// Kills these nodes, and starts them again a moment later.
    async fn kill(&mut self, victims: &[usize]) {
        victims.iter().for_each(|victim| self.load.down(*victim));
        victims.iter().for_each(|victim| self.cluster.nodes[*victim].kill());
        self.pause(0, 3_000).await;
        self.cluster.start_all();
    }

    /// One blow; the network is healed and the cluster settled by the caller after it.
    async fn blow(&mut self, blow: Blow, leader: usize) {
        let victim = self.chances.random_range(0..NODES);
        match blow {
            Blow::Kill => self.kill(&[victim]).await,
            Blow::KillLeader => self.kill(&[leader]).await,
            Blow::KillTwo => self.kill(&[victim, (victim + 1) % NODES]).await,
            Blow::KillAll => self.kill(&[0, 1, 2]).await,
            Blow::Pause => {
                self.load.may_not_answer(victim);
                self.cluster.nodes[victim].signal(Signal::STOP);
                self.pause(300, 5_000).await;
                self.cluster.nodes[victim].signal(Signal::CONT);
            }
            Blow::Restart => {
                self.load.down(victim);
                let status = self.cluster.nodes[victim].stop().await;
                assert!(status.success(), "{status}\n{}", self.cluster.logs());
                self.cluster.nodes[victim].start();
            }
            Blow::LoseDisk => {
                self.load.down(victim);
                self.cluster.nodes[victim].kill();
                self.cluster.nodes[victim].empty_disk();
                self.cluster.nodes[victim].start();
            }
            Blow::WrongClock => {
                let ahead = self.chances.random_bool(0.5);
                if let Some(clock) = self.clocks.get(victim) {
                    clock.set(if ahead { 3_600 } else { -3_600 });
                }
            }
            Blow::Nothing => {}
        }
    }

    /// Waits until all is well again, and all nodes are full members.
    async fn recover(&mut self) {
        self.proxy.heal();
        let healed = Instant::now();
        for node in 0..NODES {
            self.cluster
                .wait_for(node, "a voter", |s| s.members.iter().any(|m| m.node_id == s.node_id && m.voter))
                .await;
        }
        self.cluster.settle().await;
        self.clocks.iter().for_each(|clock| clock.set(0));
        (0..NODES).for_each(|node| self.load.up(node));
        self.load.writes_since(&[0, 1, 2], healed, &self.cluster).await;
        self.load.watcher.assert_sound();
    }
}

fn seconds() -> u64 {
    let asked = std::env::var("PREFIXD_CHAOS_SECONDS").ok();
    let of_mode = if is_long() { 3_600 } else { 60 };
    asked.map_or(of_mode, |text| text.parse().expect("PREFIXD_CHAOS_SECONDS is a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_of_it_in_any_order_breaks_nothing() {
    let (seed, chances) = chances("14 mix");
    // Nothing that was reported may expire in a run of hours.
    let lasting = "--default-ttl=24h";
    let flags = ["--snapshot-log-entries=200", "--keep-log-entries=50", "--sweep-interval=5s", lasting];
    let (mut cluster, proxy) = Cluster::proxied(NODES as u32, &flags, seed);
    let clocks = match library() {
        Some(library) => cluster.nodes.iter_mut().map(|node| Clock::under(node, library)).collect(),
        None => Vec::new(),
    };
    cluster.start_all();
    let cluster_id = cluster.settle().await[0].cluster_id.clone();
    let load = Load::start(&cluster);
    let mut mix = Mix { cluster, proxy, load, clocks, chances };
    let (began, mut done) = (Instant::now(), BTreeMap::<String, u32>::new());
    while began.elapsed() < Duration::from_secs(seconds()) {
        mix.load.flows(&[0, 1, 2], 5, &mix.cluster).await;
        let leader = mix.cluster.leader().await;
        let weather = WEATHERS[mix.chances.random_range(0..WEATHERS.len())];
        let blow = BLOWS[mix.chances.random_range(0..BLOWS.len())];
        println!("{:.0} s: {blow:?}, {weather:?}", began.elapsed().as_secs_f64());
        // A node whose way to the others is cut may not stop within its time, nor find its way in.
        let calm_only = matches!(blow, Blow::Restart | Blow::LoseDisk);
        if !calm_only {
            mix.weather(weather);
        }
        mix.pause(0, 1_000).await;
        mix.blow(blow, leader).await;
        mix.pause(0, 4_000).await;
        mix.recover().await;
        *done.entry(format!("{blow:?}")).or_default() += 1;
        *done.entry(format!("{:?}", if calm_only { Weather::Fair } else { weather })).or_default() += 1;
    }
    let Mix { mut cluster, proxy, load, .. } = mix;
    let took = began.elapsed().as_secs();
    let summary = load.finish(&mut cluster).await;
    let statuses = cluster.settle().await;
    assert!(statuses.iter().all(|status| status.cluster_id == cluster_id), "another cluster: {statuses:?}");
    println!(
        "CHAOS 14 | mix of kills, pauses, stops, lost disks, wrong clocks, cuts, delays and losses | {took} s, seed {seed} \
         | {done:?}, {} network faults | {summary}",
        proxy.faults()
    );
}
