//! What goes wrong: power cuts of one node, some or all; partitions of all kinds; slow links; disks that are slow, full
//! or broken; a clock that jumps; leadership handed over for no reason.

use super::executor;
use super::node;
use super::world::World;
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;

fn any(world: &World) -> u64 {
    let ids = world.ids();
    ids[executor::chance(|rng| rng.random_range(0..ids.len()))]
}

/// Starts a node again after a while.
fn restart_later(world: &Arc<World>, id: u64, after: Duration) {
    let world = world.clone();
    executor::spawn_in(executor::WORLD, async move {
        executor::sleep(after).await;
        if world.places.has(id) {
            node::start(&world, id);
        }
    });
}

/// Cuts a node's power for a while.
pub(super) fn crash_for(world: &Arc<World>, id: u64, longest: Duration) {
    node::crash(world, id);
    restart_later(world, id, executor::between(Duration::from_millis(20), longest));
}

/// Lets writes gather in front of disks that don't sync, so that a power cut has something to take.
async fn stall_before(world: &World, ids: &[u64]) {
    ids.iter().copied().for_each(|id| world.disk(id).stall(Duration::from_secs(1)));
    executor::sleep(executor::between(Duration::from_millis(20), Duration::from_millis(300))).await;
}

/// Cuts some nodes off from the rest, in one direction or both.
fn partition(world: &World) {
    let ids = world.ids();
    let most = ids.len() as u64 / 2;
    if most == 0 {
        return;
    }
    let count = executor::chance(|rng| rng.random_range(1..=most));
    let mut apart: Vec<u64> = Vec::new();
    while (apart.len() as u64) < count {
        let id = any(world);
        if !apart.contains(&id) {
            apart.push(id);
        }
    }
    let (inward, outward) = executor::chance(|rng| match rng.random_range(0..4) {
        0 => (true, false),
        1 => (false, true),
        _ => (true, true),
    });
    world.count("partition", apart[0], (count, u64::from(inward) * 2 + u64::from(outward)));
    for inner in &apart {
        for outer in ids.iter().filter(|id| !apart.contains(id)) {
            world.set_wire(*outer, *inner, |wire| wire.is_cut |= inward);
            world.set_wire(*inner, *outer, |wire| wire.is_cut |= outward);
        }
    }
}

/// A disk fills up for a while, or fails a sync or a read.
fn bad_disk(world: &Arc<World>, longest: Duration) {
    let id = any(world);
    let disk = world.disk(id);
    match executor::chance(|rng| rng.random_range(0..4)) {
        0 => disk.fail_sync(),
        1 => disk.fail_read(),
        _ => {
            disk.set_full(true);
            let (world, full_for) = (world.clone(), executor::between(Duration::from_millis(50), longest));
            executor::spawn_in(executor::WORLD, async move {
                executor::sleep(full_for).await;
                world.note("room again", id, (0, 0));
                disk.set_full(false);
            });
        }
    }
}

/// A leader that was just elected is cut off and all others lose their power: who forgot a vote gives it again.
fn behead(world: &Arc<World>) {
    let Some(leader) = world.members().into_iter().find(|member| member.leads()) else { return };
    world.count("leader cut off, others restarted", leader.id, (0, 0));
    for id in world.ids().into_iter().filter(|id| *id != leader.id) {
        world.set_wire(leader.id, id, |wire| wire.is_cut = true);
        world.set_wire(id, leader.id, |wire| wire.is_cut = true);
        crash_for(world, id, Duration::from_millis(60));
    }
}

async fn one(world: &Arc<World>) {
    let longest = Duration::from_millis(executor::chance(|rng| [300, 1_500, 4_000][rng.random_range(0..3)]));
    if world.shape.has_bad_disks && executor::happens(0.2) {
        return bad_disk(world, longest);
    }
    match executor::chance(|rng| rng.random_range(0..100)) {
        0..25 => {
            let leader = world.members().into_iter().find(|member| member.leads());
            let id = leader.filter(|_| executor::happens(0.6)).map_or_else(|| any(world), |member| member.id);
            crash_for(world, id, longest);
        }
        25..33 => {
            world.count("power loss of all", 0, (0, 0));
            if executor::happens(0.5) {
                stall_before(world, &world.ids()).await;
            }
            world.ids().into_iter().for_each(|id| crash_for(world, id, longest));
        }
        33..53 => partition(world),
        53..68 => {
            world.note("healed", 0, (0, 0));
            world.heal_wires();
        }
        68..76 => {
            let (from, to) = (any(world), any(world));
            world.count("slow link", from, (to, 0));
            world.set_wire(from, to, |wire| wire.extra = executor::between(Duration::from_millis(5), longest / 4));
        }
        76..82 => {
            let id = any(world);
            world.count("disk stall", id, (0, 0));
            world.disk(id).stall(executor::between(Duration::from_millis(50), longest));
            if executor::happens(0.5) {
                stall_before(world, &[id]).await;
                crash_for(world, id, longest);
            }
        }
        82..84 => behead(world),
        84..88 => {
            let jump: i64 = executor::chance(|rng| rng.random_range(-3_600_000_000..=3_600_000_000));
            world.count("clock jump", world.shape.bad_clock, (jump.unsigned_abs(), u64::from(jump > 0)));
            world.jump_clock(world.shape.bad_clock, jump);
        }
        _ => {
            let to = any(world);
            if let Some(leader) = world.members().into_iter().find(|member| member.leads() && member.id != to) {
                world.count("transfer", leader.id, (to, 0));
                // A Raft that has ended is noticed elsewhere.
                let _asked = leader.raft().trigger().transfer_leader(to).await;
            }
        }
    }
}

/// Lets things go wrong for as long as the plan says; then all is well again, but for the clock.
pub(super) async fn run(world: &Arc<World>) {
    let end = executor::now() + world.shape.faults;
    let pace = Duration::from_millis(executor::chance(|rng| [150, 500, 1_500][rng.random_range(0..3)]));
    while executor::now() < end {
        executor::sleep(executor::between(pace / 4, pace * 2)).await;
        one(world).await;
    }
    world.heal_wires();
    for id in world.ids() {
        world.disk(id).set_full(false);
        node::start(world, id);
    }
    world.note("faults over", 0, (0, 0));
}
