//! What producers do: updates of chains and single hashes, evictions, clearings, to one node or another, some before
//! the last one was answered. Each update carries its number, in its stats and its token count.

use super::executor;
use super::node::Member;
use super::truth::{Deed, HASHES, hash_bytes, replica, tenant, tokens};
use super::world::World;
use prefixd_index::delta::{Chain, Delta, Event, EventKind, Exact, PrefixEntry, Stats, Update};
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;

/// Clients of a run, each of which has a replica to itself.
pub(super) const CLIENTS: u64 = 4;

fn deltas(client: u64, id: u64, deed: &Deed) -> Vec<Delta> {
    let mut update = Update {
        replica: replica(client),
        tenant: tenant(client).into(),
        model: "m".into(),
        scheme: "s".into(),
        timestamp_us: 0,
        entries: Vec::new(),
        stats: Some(Stats { cache_memory_bytes: id.cast_signed(), hit_rate: 0.5, ..Stats::default() }),
    };
    let entry = |chain, exact| PrefixEntry { adapter: String::new(), tier: 1, chain, exact };
    let event = match deed {
        Deed::Add(hashes) => {
            update.entries = match &hashes[..] {
                // A chain's counts add up; the second block brings none of its own.
                [first, second] => {
                    let chain = Chain::pack(&[hash_bytes(*first), hash_bytes(*second)], &[tokens(id), 0]);
                    vec![entry(chain, None)]
                }
                hashes => hashes
                    .iter()
                    .map(|hash| entry(None, Some(Exact { hash: hash_bytes(*hash), token_count: tokens(id) })))
                    .collect(),
            };
            None
        }
        Deed::Evict(hash) => Some(EventKind::PrefixEvicted { hash: hash_bytes(*hash), adapter: String::new() }),
        Deed::Clear => Some(EventKind::AllCleared),
    };
    let (replica, tenant, model) = (update.replica.clone(), update.tenant.clone(), update.model.clone());
    let mut deltas = vec![Delta::Update(update)];
    deltas.extend(event.map(|kind| Delta::Event(Event { kind, replica, tenant, model })));
    deltas
}

fn deed() -> Deed {
    executor::chance(|rng| {
        let mut hash = || rng.random_range(0..HASHES);
        let (first, second, third) = (hash(), hash(), hash());
        match rng.random_range(0..100) {
            0..40 => Deed::Add(vec![first]),
            40..55 if first != second => Deed::Add(vec![first, second]),
            40..60 => Deed::Add(vec![first, second, third]),
            60..96 => Deed::Evict(first),
            _ => Deed::Clear,
        }
    })
}

/// Any node that lives.
pub(super) fn pick(world: &World) -> Option<Arc<Member>> {
    let members = world.members();
    if members.is_empty() {
        return None;
    }
    let at = executor::chance(|rng| rng.random_range(0..members.len()));
    members.get(at).cloned()
}

/// Sends one update; true when it was acknowledged.
pub(super) async fn send(world: Arc<World>, member: Arc<Member>, client: u64, deed: Deed) -> bool {
    let Some(submitted) = submit(&world, &member, client, &deed) else { return false };
    submitted.await
}

fn submit(
    world: &Arc<World>,
    member: &Member,
    client: u64,
    deed: &Deed,
) -> Option<impl Future<Output = bool> + Send + 'static + use<>> {
    let id = world.truth.lock().unwrap().issue(client, member.group);
    let submitted = member.lanes.get()?.submit(deltas(client, id, deed));
    let (world, node) = (world.clone(), member.id);
    world.note("submit", node, (client, id));
    Some(async move {
        match submitted.await {
            Ok(index) => {
                world.count("acknowledged", node, (id, index));
                world.truth.lock().unwrap().acknowledge(&world, id, index);
                true
            }
            Err(_) => {
                world.count("not acknowledged", node, (id, 0));
                false
            }
        }
    })
}

/// One client, until the run ends.
pub(super) async fn run(world: Arc<World>, client: u64) {
    let mut node = None;
    loop {
        executor::sleep(executor::between(Duration::from_millis(5), Duration::from_millis(120))).await;
        if executor::happens(0.03) {
            node = None;
        }
        let member = node.and_then(|id| world.member(id)).or_else(|| pick(&world));
        let Some(member) = member else { continue };
        node = Some(member.id);
        let Some(submitted) = submit(&world, &member, client, &deed()) else { continue };
        if executor::happens(0.4) {
            executor::spawn(async move {
                // Whether it was acknowledged was noted.
                let _acknowledged = submitted.await;
            });
        } else if !submitted.await {
            node = None;
        }
    }
}
