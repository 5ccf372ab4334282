//! What goes wrong: power cuts of one node, some or all; partitions of all kinds; slow links and disks; a clock that
//! jumps; leadership handed over for no reason.

use super::executor;
use super::node;
use super::world::World;
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;

fn any(world: &World) -> u64 {
    executor::chance(|rng| rng.random_range(world.ids()))
}

/// Starts a node again after a while.
fn restart_later(world: &Arc<World>, id: u64, after: Duration) {
    let world = world.clone();
    executor::spawn_in(executor::WORLD, async move {
        executor::sleep(after).await;
        if !world.has_power(id) {
            node::start(&world, id);
        }
    });
}

fn crash_for(world: &Arc<World>, id: u64, longest: Duration) {
    node::crash(world, id);
    restart_later(world, id, executor::between(Duration::from_millis(20), longest));
}

/// Lets writes gather in front of disks that don't sync, so that a power cut has something to take.
async fn stall_before(world: &World, ids: std::ops::RangeInclusive<u64>) {
    ids.for_each(|id| world.disk(id).stall(Duration::from_secs(1)));
    executor::sleep(executor::between(Duration::from_millis(20), Duration::from_millis(300))).await;
}

/// Cuts some nodes off from the rest, in one direction or both.
fn partition(world: &World) {
    let count = executor::chance(|rng| rng.random_range(1..=world.shape.nodes / 2));
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
        for outer in world.ids().filter(|id| !apart.contains(id)) {
            world.set_wire(outer, *inner, |wire| wire.is_cut |= inward);
            world.set_wire(*inner, outer, |wire| wire.is_cut |= outward);
        }
    }
}

async fn one(world: &Arc<World>) {
    let longest = Duration::from_millis(executor::chance(|rng| [300, 1_500, 4_000][rng.random_range(0..3)]));
    match executor::chance(|rng| rng.random_range(0..100)) {
        0..25 => {
            let leader = world.members().into_iter().find(|member| member.leads());
            let id = leader.filter(|_| executor::happens(0.6)).map_or_else(|| any(world), |member| member.id);
            crash_for(world, id, longest);
        }
        25..33 => {
            world.count("power loss of all", 0, (0, 0));
            if executor::happens(0.5) {
                stall_before(world, world.ids()).await;
            }
            world.ids().for_each(|id| crash_for(world, id, longest));
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
                stall_before(world, id..=id).await;
                crash_for(world, id, longest);
            }
        }
        82..88 => {
            let jump: i64 = executor::chance(|rng| rng.random_range(-3_600_000_000..=3_600_000_000));
            world.count("clock jump", world.shape.bad_clock, (jump.unsigned_abs(), u64::from(jump > 0)));
            world.jump_clock(world.shape.bad_clock, jump);
        }
        _ => {
            let to = any(world);
            if let Some(leader) = world.members().into_iter().find(|member| member.leads() && member.id != to) {
                world.count("transfer", leader.id, (to, 0));
                // A Raft that has ended is noticed elsewhere.
                let _asked = leader.raft.trigger().transfer_leader(to).await;
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
        if !world.has_power(id) {
            node::start(world, id);
        }
    }
    world.note("faults over", 0, (0, 0));
}
