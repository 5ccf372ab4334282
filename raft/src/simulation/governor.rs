//! Who changes what governs the index while clients go on: policies with their TTLs, eviction orders and quotas, pushed or
//! offered, and the credits that LFU tenants count.

use super::clients::{CLIENTS, pick};
use super::executor;
use super::truth::{HASHES, hash_bytes, replica, tenant};
use super::world::World;
use crate::ambient::Ambient;
use crate::lanes::Carrier;
use prefixd_index::command::{Command, Credit};
use prefixd_index::delta::PackedHashes;
use prefixd_index::policy::{Eviction, PolicySet, TenantPolicy};
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;

/// How long a command is tried.
const LIMIT: Duration = Duration::from_secs(2);
/// What a command counts for in queues.
const BYTES: usize = 300;

fn policies() -> PolicySet {
    let mut set = PolicySet::default();
    for of in ["t0", "t1"] {
        executor::chance(|rng| {
            let ttl_us = [None, None, Some(1_500_000), Some(5_000_000)][rng.random_range(0..4)];
            let eviction = [Eviction::Lru, Eviction::Lru, Eviction::Lfu][rng.random_range(0..3)];
            if rng.random_bool(0.8) {
                set.policies.insert(of.into(), TenantPolicy { ttl_us, eviction, ..TenantPolicy::default() });
            }
            if rng.random_bool(0.6) {
                set.quotas.insert(of.into(), rng.random_range(0..=5));
            }
        });
    }
    set
}

fn credits() -> Vec<Credit> {
    let client = executor::chance(|rng| rng.random_range(0..CLIENTS));
    let hash = executor::chance(|rng| rng.random_range(0..HASHES));
    vec![Credit {
        tenant: tenant(client).into(),
        model: "m".into(),
        scheme: "s".into(),
        adapter: String::new(),
        replica: replica(client),
        hashes: PackedHashes::pack(&[hash_bytes(hash)]).unwrap(),
        counts: vec![1],
    }]
}

/// Until the run ends, by any node.
pub(super) async fn run(world: Arc<World>) {
    loop {
        executor::sleep(executor::between(Duration::from_millis(200), Duration::from_millis(1_800))).await;
        let Some(member) = pick(&world) else { continue };
        let command = match executor::chance(|rng| rng.random_range(0..10)) {
            0..4 => Command::SetPolicy(policies()),
            4..6 => Command::OfferPolicy(policies()),
            _ => Command::AccessCredits(credits()),
        };
        // The node that took it in tries it once; who asked may ask again, with something else.
        executor::spawn_in(member.group, async move {
            let until = member.now() + LIMIT;
            let _done = member.carry(command, BYTES, until).await;
        });
    }
}
