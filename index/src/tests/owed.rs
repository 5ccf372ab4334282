//! Log entries of many updates at the cap, where victims are taken late, against the naive model, which takes them after
//! each update. Most updates bring new chains as of now; the rest is what must not find victims still there.

use super::commands::{ADAPTERS, REPLICAS, TENANTS, World};
use super::model::Model;
use super::{Dice, setting};
use crate::Index;
use crate::command::{Batch, ClusterMeta, Command, Credit, Stamped};
use crate::delta::{Chain, Delta, Event, EventKind, Exact, PackedHashes, PrefixEntry, Update};
use crate::policy::{Eviction, PolicySet, TenantPolicy};

/// Chains that may come, new ones for the most part.
struct Chains {
    made: u64,
}

fn block(number: u64, at: u64) -> Vec<u8> {
    (number * 16 + at).to_be_bytes().to_vec()
}

impl Chains {
    fn any(&mut self, dice: &mut Dice) -> Vec<Vec<u8>> {
        let number = match dice.roll(8) {
            0 => self.made.saturating_sub(dice.roll(12)),
            _ => {
                self.made += 1;
                self.made
            }
        };
        let mut hashes: Vec<_> = (0..1 + dice.roll(7)).map(|at| block(number, at)).collect();
        // A block of an older chain in the middle, or one twice.
        if dice.one_in(12) {
            hashes.push(block(self.made.saturating_sub(dice.roll(20)), dice.roll(7)));
            hashes.push(block(number, 9));
        }
        hashes
    }

    /// Accesses to whatever a replica has of the last chains.
    fn credit(&self, replica: &str) -> Credit {
        let numbers = self.made.saturating_sub(15)..=self.made;
        let hashes: Vec<_> = numbers.flat_map(|number| (0..7).map(move |at| block(number, at))).collect();
        let [tenant, model, scheme] = [TENANTS[0], "m", "vllm"].map(str::to_owned);
        let (replica, counts) = (replica.to_owned(), vec![1; hashes.len()]);
        let hashes = PackedHashes::pack(&hashes).unwrap();
        Credit { tenant, model, scheme, adapter: String::new(), replica, hashes, counts }
    }

    /// An event about one of the oldest chains that may still be there, or an update.
    fn delta(&mut self, dice: &mut Dice, now: u64) -> Delta {
        if !dice.one_in(15) {
            return self.update(dice, now);
        }
        let hash = block(self.made.saturating_sub(dice.roll(25)), dice.roll(7));
        let kind = match dice.roll(8) {
            0 => EventKind::AllCleared,
            _ => EventKind::PrefixEvicted { hash, adapter: String::new() },
        };
        let replica = dice.pick(&REPLICAS).to_string();
        Delta::Event(Event { kind, replica, tenant: TENANTS[0].into(), model: "m".into() })
    }

    fn update(&mut self, dice: &mut Dice, now: u64) -> Delta {
        let entries = (0..1 + dice.roll(2)).flat_map(|_| {
            let hashes = self.any(dice);
            let adapter = if dice.one_in(10) { *dice.pick(&ADAPTERS) } else { "" }.to_owned();
            let said = |chain, exact| PrefixEntry { adapter: adapter.clone(), tier: 1, chain, exact };
            match dice.roll(4) {
                // A single entry each, as some producers send a chain.
                0 => (1i32..)
                    .zip(hashes)
                    .map(|(at, hash)| said(None, Some(Exact { hash, token_count: at * 16 })))
                    .collect(),
                _ => vec![said(Chain::pack(&hashes, &vec![16; hashes.len()]), None)],
            }
        });
        let entries = entries.collect();
        let timestamp_us = if dice.one_in(15) { now - dice.roll(30) } else { 0 };
        let tenant = if dice.one_in(6) { *dice.pick(&TENANTS) } else { TENANTS[0] }.to_owned();
        let replica = dice.pick(&REPLICAS).to_string();
        Delta::Update(Update {
            replica,
            tenant,
            model: "m".into(),
            scheme: "vllm".into(),
            timestamp_us,
            entries,
            stats: None,
        })
    }
}

#[test]
fn victims_taken_late_are_those_taken_at_once() {
    let from = setting("PREFIXD_OWED_SEED", 1);
    let seeds = setting("PREFIXD_OWED_SEEDS", 60);
    println!("seeds {from} to {}", from + seeds - 1);
    for seed in from..from + seeds {
        let (mut dice, mut world, mut chains) = (Dice(seed), World::new(seed), Chains { made: 100 });
        let (mut index, mut model) = (Index::new(seed), Model::default());
        let cap = *dice.pick(&[8, 20, 40, 90]);
        let slice_entries = *dice.pick(&[1, 4, 2_048]);
        let max_bytes = *dice.pick(&[0, 0, 0, 8_000, 16_000]);
        let meta = ClusterMeta {
            max_entries: cap,
            max_bytes,
            default_ttl_us: 1_000_000,
            slice_entries,
            ..ClusterMeta::default()
        };
        let mut apply = |at: u64, stamped: Stamped| {
            let got = index.apply(at, &stamped);
            assert_eq!(got, model.apply(at, &stamped), "seed {seed}, command {at}: {stamped:?}");
            assert_eq!(index.digest(), model.digest(), "seed {seed}, command {at}: {stamped:?}");
            assert_eq!(index.totals(), model.totals(), "seed {seed}, command {at}: {stamped:?}");
        };
        apply(0, Stamped { stamp_us: world.now, command: Command::ClusterMeta(meta) });
        let is_lfu = dice.one_in(3);
        if is_lfu {
            let policy = TenantPolicy { eviction: Eviction::Lfu, ..TenantPolicy::default() };
            let policies = [(TENANTS[0].to_owned(), policy)].into();
            let command = Command::SetPolicy(PolicySet { policies, ..PolicySet::default() });
            apply(1, Stamped { stamp_us: world.now, command });
        }
        // In some worlds whatever else there is comes too, LFU and quotas with it.
        let others = *dice.pick(&[0, 0, 8]);
        for at in 2..150 {
            let command = if is_lfu && dice.one_in(3) {
                Command::AccessCredits(REPLICAS.iter().map(|replica| chains.credit(replica)).collect())
            } else if others > 0 && dice.one_in(others) {
                world.command()
            } else {
                world.now += dice.roll(3);
                let batches = (0..1 + dice.roll(3)).map(|number| Batch {
                    session: 77,
                    sequence: at * 4 + number,
                    producer: None,
                    deltas: (0..dice.roll(6)).map(|_| chains.delta(&mut dice, world.now)).collect(),
                });
                Command::Deltas(batches.collect())
            };
            apply(at, Stamped { stamp_us: world.now, command });
        }
    }
}
