#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use super::*;
use crate::core::{Committed, Core, Start, What};
use crate::machine::Machine;
use crate::types::Proposal;
use openraft::RaftSnapshotBuilder;
use openraft::storage::RaftStateMachine;
use prefixd_index::command::{Batch, Command, Stamped};
use prefixd_index::delta::{Chain, Delta, PrefixEntry, Update};
use prefixd_storage::LogPos;
use std::convert::Infallible;
use tempfile::TempDir;

const CLUSTER: u128 = 77;

/// A machine with `updates` updates of 32 blocks applied.
async fn machine(updates: u64) -> (TempDir, Machine) {
    let dir = tempfile::tempdir().unwrap();
    let (snapshots, _) = SnapshotStore::open(dir.path()).unwrap();
    let start = Start { index: Index::new(1), applied: None, membership_at: None, membership: Default::default() };
    let core = Core::start(start, |why| panic!("{why}")).unwrap();
    let entries = (1..=updates).map(|index| {
        let deltas = vec![Delta::Update(update(index))];
        let batch = Batch { session: 1, sequence: index, producer: None, deltas };
        let stamped = Stamped { stamp_us: 1_000_000 + index, command: Command::Deltas(vec![batch]) };
        Committed {
            pos: LogPos { term: 1, index },
            what: What::Command(Proposal(record::encode_command(&stamped).unwrap())),
        }
    });
    core.apply(entries.collect()).await.unwrap();
    let snapshots = Arc::new(snapshots);
    (dir, Machine { core, snapshots, cluster_id: CLUSTER, preimage_entries: 1_000, hash_seed: 1 })
}

fn update(number: u64) -> Update {
    let hashes: Vec<[u8; 8]> = (0..32u64).map(|block| (number * 1_000 + block).to_be_bytes()).collect();
    let chain = Chain::pack(&hashes, &[16; 32]);
    Update {
        replica: format!("r{}", number % 3),
        tenant: "t".into(),
        model: "m".into(),
        scheme: "s".into(),
        timestamp_us: 0,
        entries: vec![PrefixEntry { adapter: String::new(), tier: 1, chain, exact: None }],
        stats: None,
    }
}

async fn taken(machine: &Machine) -> SnapshotFile {
    machine.clone().get_snapshot_builder().await.build_snapshot().await.unwrap().snapshot
}

async fn chunks_of(file: &SnapshotFile) -> Vec<Result<wire::SnapshotChunk, Infallible>> {
    file.chunks(wire::SnapshotHead::default(), None).skip(1).map(Ok).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_travels_and_loads_with_the_same_digest() {
    let (_dir, source) = machine(200).await;
    let sent = taken(&source).await;
    let target = tempfile::tempdir().unwrap();
    let store = Arc::new(SnapshotStore::open(target.path()).unwrap().0);
    let chunks = futures::stream::iter(chunks_of(&sent).await);
    let got = receive(store.clone(), CLUSTER, &sent.wire_manifest().unwrap(), chunks).await.unwrap();
    assert!(Arc::ptr_eq(&store.latest().unwrap(), &got.0));
    let index = got.load(99).unwrap();
    assert_eq!(index.digest(), source.core.published.summary().digest);
    assert_eq!(index.totals(), source.core.published.summary().totals);
    assert_eq!(got.meta().unwrap(), sent.meta().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_cut_foreign_or_altered_is_refused() {
    let (_dir, source) = machine(200).await;
    let sent = taken(&source).await;
    let manifest = sent.wire_manifest().unwrap();
    let whole = chunks_of(&sent).await;
    let target = tempfile::tempdir().unwrap();
    let store = Arc::new(SnapshotStore::open(target.path()).unwrap().0);
    let refused = async |cluster: u128, manifest: &[u8], chunks: Vec<Result<wire::SnapshotChunk, Infallible>>| {
        let got = receive(store.clone(), cluster, manifest, futures::stream::iter(chunks)).await;
        got.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(refused(CLUSTER + 1, &manifest, whole.clone()).await.contains("belongs to cluster"));
    let mut cut = whole.clone();
    cut[0].as_mut().unwrap().records.pop();
    assert!(refused(CLUSTER, &manifest, cut).await.contains("ended after"));
    let mut other = sent.0.manifest().clone();
    other.digest ^= 1;
    let other = codec::encode(MANIFEST, VERSION, &other).unwrap();
    assert!(refused(CLUSTER, &other, whole.clone()).await.contains("digest"));
    let mut doubled = whole.clone();
    let records = &mut doubled[0].as_mut().unwrap().records;
    let (first, last) = (records[0].clone(), records.len() - 1);
    records[last] = first;
    assert_ne!(refused(CLUSTER, &manifest, doubled).await, "");
    let mut flipped = manifest.clone();
    flipped[12] ^= 4;
    assert_ne!(refused(CLUSTER, &flipped, whole).await, "");
    assert!(store.latest().is_none(), "nothing that was refused is kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apply_goes_on_while_a_snapshot_is_taken() {
    let (_dir, source) = machine(500).await;
    let cut = source.core.begin_cut(1_000_000).await.unwrap();
    let digest = source.core.published.summary().digest;
    let (core, begun) = (source.core.clone(), cut.clone());
    let more = (501..=600).map(|index| {
        let deltas = vec![Delta::Update(update(index % 50))];
        let batch = Batch { session: 1, sequence: index, producer: None, deltas };
        let stamped = Stamped { stamp_us: 9_000_000 + index, command: Command::Deltas(vec![batch]) };
        Committed {
            pos: LogPos { term: 1, index },
            what: What::Command(Proposal(record::encode_command(&stamped).unwrap())),
        }
    });
    let first = tokio::task::spawn_blocking(move || core.slice(&begun, 64).map(|slice| (core, slice))).await.unwrap();
    let Ok((core, first)) = first else { panic!("no first slice") };
    assert!(!first.done);
    core.apply(more.collect()).await.unwrap();
    assert_ne!(source.core.published.summary().digest, digest);
    let begun = cut.clone();
    let rest = tokio::task::spawn_blocking(move || {
        let mut records = first.records;
        loop {
            let slice = core.slice(&begun, 64).ok()?;
            records.extend(slice.records);
            if slice.done {
                return Some(records);
            }
        }
    });
    let mut sum = RecordDigest::default();
    for record in rest.await.unwrap().unwrap() {
        sum.push(&record).unwrap();
    }
    assert_eq!((sum.finish(), cut.digest, cut.at.unwrap().index), (digest, digest, 500));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_cannot_be_read_ends_apply_by_name() {
    let (_dir, source) = machine(1).await;
    let later = codec::encode(*b"PXCM", 9, &0u8).unwrap();
    let what = What::Command(Proposal(later.into()));
    let said = source.core.apply(vec![Committed { pos: LogPos { term: 1, index: 2 }, what }]).await.unwrap_err();
    assert!(said.to_string().contains("log entry 2") && said.to_string().contains("never skips"), "{said}");
    assert_eq!(source.core.published.applied_index(), 1, "what came before it stays");
}
