//! A state into a file and back: nothing is lost, nothing that is damaged is taken, and a restored node goes on.

use super::take::{Walked, write};
use super::*;
use crate::core::{Committed, Core, Start, What};
use crate::node::wall_us;
use crate::record::{self, encode_command};
use crate::suite::{PATIENCE, config, ready, started};
use crate::types::Proposal;
use crate::{Node, NodeConfig};
use prefixd_index::Index;
use prefixd_index::command::{Batch, ClusterMeta, Command, Credit, Stamped};
use prefixd_index::delta::{Chain, Delta, Event, EventKind, PackedHashes, PrefixEntry, Stats, Update};
use prefixd_index::policy::{Eviction, PolicySet, TenantPolicy};
use prefixd_storage::codec;
use prefixd_storage::{BackupHeader, BackupReader, BackupWriter, DataDir, LogPos};
use std::fs::File;
use std::io::Seek;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use tokio_stream::StreamExt;

const CLUSTER: u128 = 0xc1;

fn update(tenant: &str, replica: &str, chain: u64) -> Delta {
    let hashes: Vec<[u8; 8]> = (0..16u64).map(|block| (chain * 1_000 + block).to_be_bytes()).collect();
    let stats = Stats { hit_rate: 0.5, pressure: 0.25, ..Stats::default() };
    Delta::Update(Update {
        replica: replica.into(),
        tenant: tenant.into(),
        model: "m".into(),
        scheme: "s".into(),
        timestamp_us: 0,
        entries: vec![PrefixEntry {
            adapter: String::new(),
            tier: 1,
            chain: Chain::pack(&hashes, &[16; 16]),
            exact: None,
        }],
        stats: Some(stats),
    })
}

/// Commands that leave something of every kind in the state: an LFU tenant with counts, a quota, dead entries.
fn commands(chains: u64) -> Vec<Command> {
    let mut set = PolicySet::default();
    set.policies.insert("lfu".into(), TenantPolicy { eviction: Eviction::Lfu, ..TenantPolicy::default() });
    set.quotas.insert("lru".into(), 1_000_000);
    let mut commands = vec![
        Command::ClusterMeta(ClusterMeta { max_entries: 0, slice_entries: 4, ..ClusterMeta::default() }),
        Command::SetPolicy(set),
    ];
    for chain in 0..chains {
        let deltas = vec![
            update("lru", &format!("r{}", chain % 3), chain),
            update("lfu", "r0", chain),
            update("x", "r1", chain),
        ];
        commands.push(Command::Deltas(vec![Batch { session: 7, sequence: chain + 1, producer: None, deltas }]));
    }
    let credit = Credit {
        tenant: "lfu".into(),
        model: "m".into(),
        scheme: "s".into(),
        adapter: String::new(),
        replica: "r0".into(),
        hashes: PackedHashes::pack(&[1u64.to_be_bytes()]).unwrap(),
        counts: vec![9],
    };
    commands.push(Command::AccessCredits(vec![credit]));
    let cleared = Event { kind: EventKind::AllCleared, replica: "r1".into(), tenant: "x".into(), model: "m".into() };
    let deltas = vec![Delta::Event(cleared)];
    commands.push(Command::Deltas(vec![Batch { session: 8, sequence: 1, producer: None, deltas }]));
    commands
}

/// A core to which these commands were applied from index 1 of term 3 on, lately: nothing expires when a node goes on.
async fn core(chains: u64) -> Core {
    core_at(chains, wall_us() - 1_000_000).await
}

async fn core_at(chains: u64, time_us: u64) -> Core {
    let start = Start { index: Index::new(1), applied: None, membership_at: None, membership: Default::default() };
    let core = Core::start(start, |why| panic!("{why}")).unwrap();
    let entries = (1..).zip(commands(chains)).map(|(index, command)| {
        let stamped = Stamped { stamp_us: time_us + index, command };
        Committed { pos: LogPos { term: 3, index }, what: What::Command(Proposal(encode_command(&stamped).unwrap())) }
    });
    core.apply(entries.collect()).await.unwrap();
    core
}

fn header(cut: &crate::core::Cut) -> BackupHeader {
    BackupHeader {
        cluster_id: CLUSTER,
        last: cut.at.unwrap(),
        membership: record::encode_members(cut.membership_at, &cut.membership).unwrap(),
        digest: cut.digest,
        time_us: cut.time_us,
        taken_at_us: 1_700_000_009_000_000,
        feature_level: cut.feature_level,
        entries: cut.totals.entries,
        prefixes: cut.totals.prefixes,
        dead_entries: cut.totals.dead_entries,
        stats_rows: cut.totals.stats_rows,
        sessions: cut.totals.sessions,
        node_name: "n1".into(),
        release: "0.1.0".into(),
    }
}

/// A backup of `chains` chains in a directory of its own.
async fn backed_up(chains: u64) -> (TempDir, PathBuf, Core) {
    written(chains, wall_us() - 1_000_000).await
}

/// The same, of a state that begins at `time_us`.
pub(crate) async fn written(chains: u64, time_us: u64) -> (TempDir, PathBuf, Core) {
    let (dir, core) = (tempfile::tempdir().unwrap(), core_at(chains, time_us).await);
    let cut = core.begin_cut_if_idle(1_000).await.unwrap().unwrap();
    let (at, walked, spool) = (header(&cut), core.clone(), dir.path().join("spool"));
    let (send, _receive) = tokio::sync::mpsc::channel(1);
    let walked = tokio::task::spawn_blocking(move || write(&walked, &cut, &at, &spool, &send)).await.unwrap();
    let Walked::Whole(mut file) = walked.unwrap() else { panic!("nothing changed, yet the walk was not whole") };
    file.rewind().unwrap();
    let path = dir.path().join("b.pfbk");
    std::io::copy(&mut file, &mut File::create(&path).unwrap()).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the spool has no name any more");
    (dir, path, core)
}

async fn start(dir: &std::path::Path) -> Node {
    let began = std::time::Instant::now();
    loop {
        let config = NodeConfig { node_name: "n7".into(), ..config(dir) };
        match Node::start(config, TcpListener::bind("127.0.0.1:0").unwrap()).await {
            Ok(node) => return node,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_node_holds_what_was_backed_up_and_goes_on_under_a_new_id() {
    let (dir, path, core) = backed_up(40).await;
    let before = core.published.summary();
    let contents = verify(&path).unwrap();
    assert_eq!((contents.header.digest, contents.policies, contents.quotas), (before.digest, 1, 1));
    assert!(contents.header.dead_entries > 0 && contents.header.sessions == 2, "{contents:?}");
    assert_eq!(contents.tenants["lru"].entries, 40 * 16);
    let home = dir.path().join("data");
    let restored = restore(&path, &home, "n7", Ids::random()).unwrap();
    assert_ne!(restored.cluster_id, CLUSTER);
    assert_eq!((restored.digest, &restored.header), (before.digest, &contents.header));
    for opened in 1..3 {
        let node = start(&home).await;
        ready(&node).await;
        let status = node.status();
        assert_eq!((status.cluster_id, status.incarnation), (Some(restored.cluster_id), opened));
        assert_eq!(node.digest(Some(before.applied.unwrap().index)).map(|(_, digest)| digest), Some(before.digest));
        assert!(status.term > 3 && status.members.len() == 1, "{status:?}");
        if opened == 1 {
            assert_eq!((node.totals().entries, node.totals().sessions), (before.totals.entries, 2));
            assert!(node.now_us() >= contents.header.time_us, "time goes on from the backup's");
            node.submit(vec![update("lru", "r9", 999)]).await.unwrap();
        }
        assert_eq!(node.totals().entries, before.totals.entries + 16);
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_flipped_byte_and_no_cut_is_restored() {
    let (dir, path, _core) = backed_up(2).await;
    let bytes = std::fs::read(&path).unwrap();
    let (bad, home) = (dir.path().join("bad.pfbk"), dir.path().join("data"));
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        std::fs::write(&bad, &flipped).unwrap();
        let error = verify(&bad).expect_err("a flipped byte was taken").to_string();
        assert!(error.contains("bad.pfbk: "), "byte {at}: {error}");
    }
    for at in (0..bytes.len()).step_by(bytes.len() / 12 + 1) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        for (what, content) in [("flipped", flipped.as_slice()), ("cut", &bytes[..at])] {
            std::fs::write(&bad, content).unwrap();
            restore(&bad, &home, "n7", Ids::random()).expect_err(what);
            let left = std::fs::read_dir(&home).map_or(0, |entries| entries.count());
            assert_eq!(left, 0, "{what} at {at} left something behind");
        }
    }
    restore(&path, &home, "n7", Ids::random()).unwrap();
    let again = restore(&path, &home, "n7", Ids::random()).unwrap_err().to_string();
    assert!(again.contains("not empty"), "{again}");
}

/// The same records under another header.
fn rewritten(path: &std::path::Path, to: &std::path::Path, change: impl FnOnce(&mut BackupHeader, &mut Vec<Vec<u8>>)) {
    let mut reader = BackupReader::open(path).unwrap();
    let (mut header, mut records) = (reader.header().clone(), Vec::new());
    while let Some(record) = reader.next_record().unwrap() {
        records.push(record.to_vec());
    }
    change(&mut header, &mut records);
    let mut writer = BackupWriter::begin(File::create(to).unwrap(), to, &header).unwrap();
    records.iter().for_each(|record| writer.put(record).unwrap());
    writer.finish().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_contradicts_itself_or_is_from_a_later_release_is_refused() {
    let (dir, path, _core) = backed_up(3).await;
    let (odd, home) = (dir.path().join("odd.pfbk"), dir.path().join("data"));
    let refused = |change: fn(&mut BackupHeader, &mut Vec<Vec<u8>>)| {
        rewritten(&path, &odd, change);
        let verified = verify(&odd).map(drop).map_err(|error| error.to_string());
        let restored = restore(&odd, &home, "n7", Ids::random()).unwrap_err().to_string();
        assert!(restored.contains("odd.pfbk: "), "{restored}");
        (verified.err().unwrap_or_default(), restored)
    };
    let (verified, restored) = refused(|header, _| header.digest ^= 1);
    assert!(verified.contains("make digest") && restored.contains("make digest"), "{verified}\n{restored}");
    let (verified, restored) = refused(|_, records| drop(records.pop()));
    assert!(verified.contains("make digest") && restored.contains("make digest"), "{verified}\n{restored}");
    let (_, restored) = refused(|header, _| header.feature_level = 9);
    assert!(restored.contains("feature level 9") && restored.contains("up to 1"), "{restored}");
    let (verified, restored) = refused(|_, records| records[1] = codec::encode(*b"PXSR", 9, &0u8).unwrap());
    for said in [verified, restored] {
        assert!(said.contains("record 1: format version 9 is not readable") && said.contains("reads 1 to 1"), "{said}");
    }
    rewritten(&path, &odd, |header, _| header.entries += 1);
    assert!(verify(&odd).unwrap_err().to_string().contains("its header says"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_is_cut_short_is_not_served() {
    let (dir, path, _core) = backed_up(3).await;
    let home = dir.path().join("data");
    // All but the last step: what a kill leaves behind.
    restore(&path, &home, "n7", Ids::random()).unwrap();
    File::create(home.join("restoring")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = Node::start(NodeConfig { node_name: "n7".into(), ..config(&home) }, listener).await;
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("cut short") && refused.contains("prefixd restore"), "{refused}");
    restore(&path, &home, "n8", Ids::random()).unwrap();
    assert!(DataDir::open(&home).unwrap().presence().identity);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_waits_for_a_snapshot_and_gives_way_to_one() {
    let core = core(300).await;
    let snapshot = core.begin_cut(1_000).await.unwrap();
    assert!(core.begin_cut_if_idle(1_000).await.unwrap().is_none(), "a snapshot is in the making");
    core.end_cut(&snapshot).await;
    let backup = core.begin_cut_if_idle(1_000).await.unwrap().unwrap();
    core.begin_cut(1_000).await.unwrap();
    let (walked, at) = (core.clone(), header(&backup));
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    let (send, _receive) = tokio::sync::mpsc::channel(1);
    let walked = tokio::task::spawn_blocking(move || write(&walked, &backup, &at, &spool, &send)).await.unwrap();
    assert!(matches!(walked.unwrap(), Walked::Displaced));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_under_load_gives_a_consistent_backup_and_one_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let node = started(dir.path()).await;
    ready(&node).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (load, ended) = (node.clone(), stop.clone());
    let load = tokio::spawn(async move {
        let mut chain = 0;
        while !ended.load(Ordering::SeqCst) {
            chain += 1;
            load.submit(vec![update("lru", "r0", chain % 500)]).await.unwrap();
        }
        chain
    });
    for round in 0..5 {
        // While a snapshot is in the making the first one waits, however small the index.
        let snapshot = node.inner.core.begin_cut(usize::MAX).await.unwrap();
        let mut parts = node.inner.take_backup().unwrap();
        assert_eq!(node.inner.take_backup().err().unwrap().code(), tonic::Code::ResourceExhausted);
        node.inner.core.end_cut(&snapshot).await;
        let path = dir.path().join(format!("{round}.pfbk"));
        let mut file = File::create(&path).unwrap();
        while let Some(part) = parts.next().await {
            std::io::Write::write_all(&mut file, &part.unwrap().data).unwrap();
        }
        drop(parts);
        let contents = verify(&path).unwrap();
        let at = contents.header.last.index;
        assert_eq!(node.digest(Some(at)).map(|(_, digest)| digest), Some(contents.header.digest), "at {at}");
        // The permit goes a moment after the last part.
        while node.inner.backing_up.try_lock().is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    // A receiver that leaves early lets the next one in.
    drop(node.inner.take_backup().unwrap());
    while node.inner.backing_up.try_lock().is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    stop.store(true, Ordering::SeqCst);
    assert!(load.await.unwrap() > 0);
    node.stop().await;
}
