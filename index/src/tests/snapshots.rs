//! What snapshots refuse and bound; that they carry the state is shown by the walk against the model.

use super::commands::World;
use crate::command::{Batch, ClusterMeta, Command, Stamped};
use crate::delta::{Chain, Delta, Event, EventKind, PrefixEntry, Update};
use crate::policy::{PolicySet, TenantPolicy};
use crate::snapshot::{EntryPage, MAX_RECORD_BYTES};
use crate::{Index, LoadError, Loader, RecordDigest, SnapshotOverflow, SnapshotRecord};

fn records(index: &mut Index) -> (u128, Vec<SnapshotRecord>) {
    let info = index.begin_snapshot(10);
    let mut records = vec![];
    loop {
        let slice = index.snapshot_slice(1_000).unwrap();
        records.extend(slice.records);
        if slice.done {
            return (info.digest, records);
        }
    }
}

fn load(records: Vec<SnapshotRecord>, digest: u128) -> Result<Index, LoadError> {
    let mut loader = Loader::new(9);
    records.into_iter().try_for_each(|record| loader.push(record))?;
    loader.finish(7, digest)
}

fn random_state(seed: u64, steps: u64) -> Index {
    let (mut world, mut index) = (World::new(seed), Index::new(seed));
    for step in 0..steps {
        index.apply(step, &Stamped { command: world.command(), stamp_us: world.now });
    }
    index
}

fn chain_update(replica: &str, blocks: u32, names: usize) -> Delta {
    let hashes: Vec<[u8; 8]> = (0..blocks).map(|block| u64::from(block).to_be_bytes()).collect();
    let chain = Chain::pack(&hashes, &vec![16; blocks as usize]);
    Delta::Update(Update {
        replica: replica.into(),
        tenant: "t".repeat(names),
        model: "m".repeat(names),
        scheme: "s".repeat(names),
        timestamp_us: 0,
        entries: vec![PrefixEntry { adapter: "a".repeat(names), tier: 1, chain, exact: None }],
        stats: None,
    })
}

fn apply(index: &mut Index, at: u64, deltas: Vec<Delta>) {
    let batch = Batch { session: 1, sequence: at, producer: None, deltas };
    index.apply(at, &Stamped { stamp_us: 1_000 + at, command: Command::Deltas(vec![batch]) });
}

#[test]
fn too_many_changes_ahead_of_the_walk_end_it() {
    let mut index = Index::new(1);
    apply(&mut index, 1, vec![chain_update("r", 100, 1)]);
    index.begin_snapshot(50);
    index.snapshot_slice(60).unwrap();
    // What is behind the walk or new may change freely; of the 40 ahead of it all are kept.
    apply(&mut index, 2, vec![chain_update("r", 100, 1), chain_update("new", 100, 1)]);
    assert!(index.snapshot_slice(1).is_ok());
    index.begin_snapshot(50);
    apply(&mut index, 3, vec![chain_update("r", 51, 1)]);
    assert_eq!(index.snapshot_slice(1), Err(SnapshotOverflow::TooManyChanges { limit: 50 }));
    assert_eq!(index.snapshot_slice(1), Err(SnapshotOverflow::NotBegun), "it is given up");
    index.begin_snapshot(50);
    index.abort_snapshot();
    assert_eq!(index.snapshot_slice(1), Err(SnapshotOverflow::NotBegun));
    let (digest, records) = records(&mut index);
    assert_eq!(load(records, digest).unwrap().totals(), index.totals());
}

#[test]
fn a_clear_behind_the_beginning_is_not_in_the_snapshot() {
    let mut index = Index::new(1);
    index.apply(
        1,
        &Stamped {
            stamp_us: 1,
            command: Command::ClusterMeta(ClusterMeta { slice_entries: 1, ..ClusterMeta::default() }),
        },
    );
    apply(&mut index, 2, vec![chain_update("r", 100, 1)]);
    let info = index.begin_snapshot(10);
    let kind = EventKind::AllCleared;
    apply(
        &mut index,
        3,
        vec![Delta::Event(Event { kind, replica: "r".into(), tenant: "t".into(), model: "m".into() })],
    );
    assert_eq!((index.totals().entries, index.totals().dead_entries), (0, 99));
    let mut records = vec![];
    while let Ok(slice) = index.snapshot_slice(30) {
        records.extend(slice.records);
    }
    let loaded = load(records, info.digest).unwrap();
    assert_eq!((loaded.totals().entries, loaded.totals().dead_entries), (100, 0));
}

#[test]
fn records_stay_small_with_the_longest_names() {
    let mut index = Index::new(1);
    let tenant = |n: u64| format!("{n:0>1024}");
    let policies = (0..2_000).map(|n| (tenant(n), TenantPolicy::default())).collect();
    let quotas = (0..2_000).map(|n| (tenant(n), n)).collect();
    index.apply(1, &Stamped { stamp_us: 1, command: Command::SetPolicy(PolicySet { policies, quotas }) });
    for n in 0..700 {
        let Delta::Update(mut update) = chain_update(&format!("{n:0>1024}"), 2, 1_024) else { continue };
        update.tenant = tenant(n);
        update.stats = Some(crate::delta::Stats::default());
        apply(&mut index, 2 + n, vec![Delta::Update(update)]);
    }
    let (digest, records) = records(&mut index);
    for record in &records {
        assert!(bincode::serialized_size(record).unwrap() <= MAX_RECORD_BYTES as u64);
    }
    assert!(records.len() > 10);
    assert_eq!(load(records, digest).unwrap().totals(), index.totals());
}

#[test]
fn a_chain_takes_few_bytes() {
    let mut index = Index::new(1);
    apply(&mut index, 1, vec![chain_update("r", 10_000, 5)]);
    let (_, records) = records(&mut index);
    let bytes: u64 = records.iter().map(|record| bincode::serialized_size(record).unwrap()).sum();
    assert!(bytes < 90_000, "{bytes} bytes for 10,000 hashes of 8");
}

#[test]
fn what_contradicts_itself_is_refused() {
    let mut index = random_state(3, 120);
    let (digest, good) = records(&mut index);
    assert!(load(good.clone(), digest).is_ok());
    assert!(matches!(load(good.clone(), digest + 1), Err(LoadError::Digest { .. })));
    assert_eq!(load(good[1..].to_vec(), digest).err(), Some(LoadError::Header));
    assert_eq!(load([&good[..1], &good[..]].concat(), digest).err(), Some(LoadError::Header));
    assert!(load(vec![], digest).is_err());
    let twice = |is_it: fn(&SnapshotRecord) -> bool| {
        let extra = good.iter().find(|record| is_it(record)).unwrap().clone();
        load(good.iter().cloned().chain([extra]).collect(), digest).err()
    };
    let entries = |record: &SnapshotRecord| matches!(record, SnapshotRecord::Entries(_));
    assert_eq!(twice(entries), Some(LoadError::Record("an entry is there twice")));
    let stats = |record: &SnapshotRecord| matches!(record, SnapshotRecord::Stats(_));
    assert_eq!(twice(stats), Some(LoadError::Record("a replica has two stats rows")));

    let header = |change: fn(&mut crate::snapshot::SnapshotHeader)| {
        let mut records = good.clone();
        if let Some(SnapshotRecord::Header(header)) = records.first_mut() {
            change(header);
        }
        load(records, digest).err()
    };
    assert_eq!(header(|header| header.version = 2), Some(LoadError::Version { found: 2, known: 1 }));
    assert!(matches!(header(|header| header.totals.prefixes += 1), Some(LoadError::Totals(_))));
    assert!(matches!(header(|header| header.totals.sessions += 1), Some(LoadError::Totals(_))));
    let mut check = RecordDigest::default();
    assert_eq!(check.push(&good[1]), Err(LoadError::Header));
}

/// Decoded from damaged bytes, records may be anything; loading them panics on nothing.
#[test]
fn damaged_records_never_panic() {
    let mut dice = super::Dice(super::setting("PREFIXD_INDEX_SEED", 21));
    let mut index = random_state(3, 120);
    let (digest, good) = records(&mut index);
    let mut refused = 0u64;
    for _ in 0..super::setting("PREFIXD_INDEX_ROUNDS", 60) * 20 {
        let mut damaged = vec![];
        for record in &good {
            let mut bytes = bincode::serialize(record).unwrap();
            for _ in 0..dice.roll(3) {
                let at = dice.roll(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << dice.roll(8);
            }
            damaged.extend(bincode::deserialize::<SnapshotRecord>(&bytes));
        }
        let mut check = RecordDigest::default();
        let _ = damaged.iter().try_for_each(|record| check.push(record));
        match load(damaged, digest) {
            Ok(mut loaded) => {
                // What no digest covers, time say, may still be damaged.
                let mut world = World::new(dice.next());
                for at in 0..30 {
                    loaded.apply(at, &Stamped { command: world.command(), stamp_us: world.now });
                }
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0);
    let page = EntryPage { holders: vec![], partitions: vec![], runs: vec![], hashes: index_hashes(&good) };
    let records = good.into_iter().take(1).chain([SnapshotRecord::Entries(page)]).collect();
    assert_eq!(load(records, digest).err(), Some(LoadError::Record("there are more hashes than runs")));
}

fn index_hashes(records: &[SnapshotRecord]) -> crate::delta::PackedHashes {
    let page = records.iter().find_map(|record| match record {
        SnapshotRecord::Entries(page) => Some(page.hashes.clone()),
        _ => None,
    });
    page.unwrap()
}
