//! What goes wrong, and what must hold. `PREFIXD_SIM_SEEDS` runs more seeds, `PREFIXD_SIM_SEED` one.

use super::world::{Sim, World, place};
use crate::face::BootstrapMode;
use crate::membership::Place;
use crate::membership::member::quorum;
use rand::RngExt;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long faults go on, and how long everything may take to come together after.
const FAULTS: Duration = Duration::from_secs(30);
const HEALING: Duration = Duration::from_secs(120);

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    if let Some(seed) = number("PREFIXD_SIM_SEED") {
        return seed..seed + 1;
    }
    0..number("PREFIXD_SIM_SEEDS").unwrap_or(1_500)
}

fn names(count: usize) -> Vec<String> {
    ["a", "b", "c", "d", "e"][..count].iter().map(|name| (*name).to_owned()).collect()
}

/// What came of one seed.
#[derive(Default, Debug, PartialEq, Eq)]
struct Tally {
    together: u64,
    quorum_lost: u64,
    adoptions: u64,
    stops: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.together += other.together;
        self.quorum_lost += other.quorum_lost;
        self.adoptions += other.adoptions;
        self.stops += other.stops;
    }
}

/// One list, any faults: at no moment two clusters on disks that exist; in the end all nodes are voters of one, unless
/// the disks of a quorum were lost, in which case the rest says so.
#[test]
fn one_peer_list() {
    let mut tally = Tally::default();
    for seed in seeds() {
        tally.add(&run_one_list(seed));
    }
    println!("one peer list, {:?}: {tally:?}", seeds());
    let few = seeds().end - seeds().start < 100;
    assert!(few || (tally.together > tally.quorum_lost && tally.quorum_lost > 0), "{tally:?}");
    assert_eq!(tally.stops, 0, "{tally:?}");
}

fn run_one_list(seed: u64) -> Tally {
    let count = [1, 2, 3, 3, 3, 3, 4, 5][usize::try_from(seed % 8).unwrap()];
    let names = names(count);
    let places = names.iter().map(|name| place(name, &names, BootstrapMode::Peers)).collect();
    let sim = Sim::new(seed, places);
    let main = sim.clone();
    sim.time.run(async move {
        faults(&main, 3).await;
        heal(&main).await;
    });
    let world = sim.world();
    let together = is_together(&world);
    if !together {
        assert!(is_quorum_lost(&world), "seed {seed}: not together: {}", describe(&world));
        for name in world.nodes.keys() {
            let reason = world.reason(name).unwrap_or_default();
            let member = world.disks[&world.nodes[name].disk].cluster_id.is_some();
            assert!(member || reason.contains("prefixd recover"), "seed {seed}: {name} says {reason:?}");
        }
    }
    Tally {
        together: together.into(),
        quorum_lost: (!together).into(),
        adoptions: world.adoptions,
        stops: world.stops.len() as u64,
    }
}

/// Nearly every message is late by seconds, and disks are lost faster than a founding takes: the order of looks,
/// promises and drops is anybody's guess, and still no two clusters live at a time.
#[test]
fn storm() {
    let (mut together, mut adoptions) = (0, 0);
    for seed in seeds() {
        let names = names(if seed % 4 == 0 { 2 } else { 3 });
        let places = names.iter().map(|name| place(name, &names, BootstrapMode::Peers)).collect();
        let sim = Sim::new(seed, places);
        let main = sim.clone();
        sim.time.run(async move {
            main.world().storm = true;
            let calm = main.random(|rng| rng.random_range(500..8_000));
            while main.time.now() < FAULTS * 3 {
                let (wait, name) =
                    main.random(|rng| (rng.random_range(0..calm), names[rng.random_range(0..names.len())].clone()));
                names.iter().for_each(|name| main.boot(name));
                main.time.sleep(Duration::from_millis(wait)).await;
                main.lose_disk(&name);
            }
            main.world().storm = false;
            names.iter().for_each(|name| main.restart(name));
            heal(&main).await;
        });
        let world = sim.world();
        together += u64::from(is_together(&world));
        adoptions += world.adoptions;
        assert!(is_together(&world) || is_quorum_lost(&world), "seed {seed}: {}", describe(&world));
    }
    println!("storm, {:?}: {adoptions} adoptions, {together} together in the end", seeds());
}

/// A seed is a history: the same twice.
#[test]
fn a_seed_runs_the_same_twice() {
    for seed in 0..20 {
        let run = || {
            let tally = run_one_list(seed);
            (tally.adoptions, tally.together)
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

/// Lists (a,b,c) and (b,c,d), b and c with either: never two clusters, whoever stops.
#[test]
fn overlapping_peer_lists() {
    let (mut none, mut one) = (0, 0);
    for seed in seeds() {
        let all = names(4);
        let list_of = |name: &str| match (name, seed) {
            ("a", _) => &all[..3],
            ("b", seed) if seed & 1 == 0 => &all[..3],
            ("c", seed) if seed & 2 == 0 => &all[..3],
            _ => &all[1..],
        };
        let places = all.iter().map(|name| place(name, list_of(name), BootstrapMode::Peers)).collect();
        let sim = Sim::new(seed, places);
        let main = sim.clone();
        sim.time.run(async move {
            faults(&main, 2).await;
            main.world().harsh = false;
            main.time.sleep(HEALING / 4).await;
        });
        match sim.world().live_clusters().len() {
            0 => none += 1,
            1 => one += 1,
            more => panic!("seed {seed}: {more} clusters"),
        }
    }
    println!("overlapping lists, {:?}: no cluster {none} times, one {one} times", seeds());
}

/// Peer lists change between restarts while the cluster is being founded, disks stay: never two clusters.
#[test]
fn changing_peer_lists() {
    let (mut none, mut one) = (0, 0);
    for seed in seeds() {
        let all = names(4);
        let places = all.iter().map(|name| place(name, list_with(name, &all), BootstrapMode::Peers)).collect();
        let sim = Sim::new(seed, places);
        let main = sim.clone();
        sim.time.run(async move {
            for _ in 0..12 {
                step(&main, false).await;
                let name = main.random(|rng| all[rng.random_range(0..all.len())].clone());
                let list = if main.random(|rng| rng.random_bool(0.5)) { &all[..3] } else { &all[1..] };
                let list = if list.contains(&name) { list } else { list_with(&name, &all) };
                main.kill(&name);
                main.node(&name, |node| node.place.peer_names = list.to_vec());
                main.boot(&name);
            }
        });
        match sim.world().live_clusters().len() {
            0 => none += 1,
            1 => one += 1,
            more => panic!("seed {seed}: {more} clusters"),
        }
    }
    println!("changing lists, {:?}: no cluster {none} times, one {one} times", seeds());
}

fn list_with<'a>(name: &str, all: &'a [String]) -> &'a [String] {
    if name == "d" { &all[1..] } else { &all[..3] }
}

/// Nobody founds with never, and a node with it joins a cluster that the others founded when it lost its disk.
#[test]
fn never() {
    for seed in seeds().take(200) {
        let names = names(3);
        let places = names.iter().map(|name| place(name, &names, BootstrapMode::Never)).collect();
        let sim = Sim::new(seed, places);
        let main = sim.clone();
        sim.time.run(async move { faults(&main, 1).await });
        assert_eq!(sim.world().adoptions, 0, "seed {seed}");

        let places: Vec<Place> = names.iter().map(|name| place(name, &names, BootstrapMode::Peers)).collect();
        let sim = Sim::new(seed, places);
        let main = sim.clone();
        sim.time.run(async move {
            main.world().harsh = false;
            heal(&main).await;
            assert!(is_together(&main.world()), "seed {seed}");
            for name in main.world().nodes.values_mut() {
                name.place.bootstrap = BootstrapMode::Never;
            }
            let name = main.random(|rng| names[rng.random_range(0..3)].clone());
            main.lose_disk(&name);
            heal(&main).await;
        });
        assert!(is_together(&sim.world()), "seed {seed}: {}", describe(&sim.world()));
    }
}

/// A node alone founds at once and goes on after any crash.
#[test]
fn solo() {
    for seed in seeds().take(200) {
        let sim = Sim::new(seed, vec![place("a", &[], BootstrapMode::Solo)]);
        let main = sim.clone();
        sim.time.run(async move {
            for _ in 0..6 {
                main.boot("a");
                step(&main, false).await;
                main.kill("a");
            }
            main.world().harsh = false;
            main.boot("a");
            main.time.sleep(Duration::from_millis(1)).await;
        });
        let world = sim.world();
        assert!(is_together(&world), "seed {seed}: {}", describe(&world));
        assert_eq!(world.clusters.len(), 1, "seed {seed}");
    }
}

/// Nodes come up at any time; then processes die, disks are lost, links are cut.
async fn faults(sim: &Sim, disk_losses_max: u32) {
    let names: Vec<String> = sim.world().nodes.keys().cloned().collect();
    for name in &names {
        let after = Duration::from_millis(sim.random(|rng| rng.random_range(0..6_000)));
        let (sim, name) = (sim.clone(), name.clone());
        sim.time.clone().spawn(async move {
            sim.time.sleep(after).await;
            sim.boot(&name);
        });
    }
    let mut losses = sim.random(|rng| rng.random_range(0..=disk_losses_max));
    while sim.time.now() < FAULTS {
        losses -= u32::from(step(sim, losses > 0).await);
    }
}

/// One fault; true if it was the loss of a disk.
async fn step(sim: &Sim, may_lose: bool) -> bool {
    let (wait, what, a, b) = sim.random(|rng| {
        let wait = if rng.random_bool(0.5) { rng.random_range(0..200) } else { rng.random_range(0..5_000) };
        (wait, rng.random_range(0..10), rng.random::<u32>(), rng.random::<u32>())
    });
    sim.time.sleep(Duration::from_millis(wait)).await;
    sim.world().remove_ghosts();
    let names: Vec<String> = sim.world().nodes.keys().cloned().collect();
    let pick = |n: u32| &names[n as usize % names.len()];
    let (a, b) = (pick(a), pick(b));
    match what {
        0..=2 => sim.restart(a),
        3 => sim.kill(a),
        4 | 5 if may_lose => {
            sim.lose_disk(a);
            sim.boot(a);
            return true;
        }
        6 | 7 => {
            sim.world().cut.insert((a.min(b).clone(), a.max(b).clone()));
        }
        8 => sim.world().cut.clear(),
        _ => sim.boot(a),
    }
    false
}

/// Everything is up and reachable; waits for all to come together.
async fn heal(sim: &Sim) {
    {
        let mut world = sim.world();
        world.harsh = false;
        world.cut.clear();
    }
    let until = sim.time.now() + HEALING;
    while sim.time.now() < until {
        let names: Vec<String> = sim.world().nodes.keys().cloned().collect();
        for name in names {
            sim.boot(&name);
        }
        sim.world().remove_ghosts();
        if is_together(&sim.world()) {
            return;
        }
        sim.time.sleep(Duration::from_millis(500)).await;
    }
}

/// All nodes are the voters of one cluster, and nobody else is.
fn is_together(world: &World) -> bool {
    let clusters = world.live_clusters();
    let (Some(cluster_id), 1) = (clusters.first(), clusters.len()) else { return false };
    let Some(cluster) = world.clusters.get(cluster_id) else { return false };
    let voters: BTreeSet<u64> = cluster.members.iter().filter(|member| member.voter).map(|m| m.node_id).collect();
    let disks: BTreeSet<u64> = world.nodes.values().map(|node| node.disk).collect();
    let adopted = disks.iter().all(|disk| world.disks[disk].cluster_id.is_some());
    adopted && voters == disks && cluster.members.len() == disks.len()
}

/// Too many disks of the cluster that exists were lost.
fn is_quorum_lost(world: &World) -> bool {
    let Some(cluster_id) = world.live_clusters().first().copied() else { return false };
    let disks: BTreeSet<u64> = world.nodes.values().map(|node| node.disk).collect();
    let promised = world.disks.values().find_map(|disk| disk.promise.as_ref().filter(|p| p.cluster_id() == cluster_id));
    let voters: Vec<u64> = match world.clusters.get(&cluster_id) {
        Some(cluster) => cluster.members.iter().filter(|member| member.voter).map(|member| member.node_id).collect(),
        None => promised.map(|promise| promise.members().iter().map(|(_, id)| *id).collect()).unwrap_or_default(),
    };
    let alive = voters.iter().filter(|id| disks.contains(id)).count();
    let has_log = world.clusters.get(&cluster_id).is_some_and(|c| c.logs.iter().any(|id| disks.contains(id)));
    let has_list =
        disks.iter().any(|disk| world.disks[disk].promise.as_ref().is_some_and(|p| p.cluster_id() == cluster_id));
    alive < quorum(voters.len()) || !(has_log || has_list)
}

fn describe(world: &World) -> String {
    let mut text = String::new();
    for (name, node) in &world.nodes {
        let reason = world.reason(name);
        text += &format!("\n{name}: disk {:?}, waits for {reason:?}", world.disks[&node.disk]);
    }
    for (id, cluster) in &world.clusters {
        text += &format!("\n{id:032x}: {:?}, logs {:?}", cluster.members, cluster.logs);
    }
    text + &format!("\nstops: {:?}", world.stops)
}
