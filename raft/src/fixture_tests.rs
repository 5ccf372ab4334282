//! Every form of this crate that lies on a disk or travels between nodes, as released: each must stay readable, for ever.
//!
//! They lie under `fixtures/`, one folder for each version of any of them, one file for each form. When a form has
//! changed, raise its version, write a new folder with PREFIXD_WRITE_FIXTURE=v2, and leave the old ones alone. What
//! this release writes must be the newest folder to the byte, so that no form changes unseen. The data directory's own
//! files are the storage crate's fixtures.

use crate::backup::{Ids, restore, tests::written, verify};
use crate::generation::{decode_record, encode_record};
use crate::record;
use crate::types::{MemberNode, Membership, Payload};
use prefixd_index::SnapshotRecord;
use prefixd_index::Totals;
use prefixd_index::command::{Audit, Batch, ClusterMeta, Command, Credit, Probe, Stamped};
use prefixd_index::delta::{Chain, Delta, Event, EventKind, Exact, PackedHashes, PrefixEntry, Stats, Update};
use prefixd_index::policy::{Eviction, PolicySet, PolicySource, Strategy, TenantPolicy};
use prefixd_index::snapshot::{
    EntryPage, EntryRun, HolderName, PartitionName, SNAPSHOT_VERSION, SessionRow, SnapshotHeader, StatsRow,
};
use prefixd_proto::node as wire;
use prefixd_storage::{LogPos, SnapshotManifest};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const BACKUP_NAME: &str = "backup.pfbk";
/// The digest of the state in the backup of version 1.
const BACKUP_DIGEST: u128 = 0x7e55_d26b_4fb9_8732_d8de_2017_f3ee_bae4;

/// Whether bytes are read as what this release writes.
type Reads = Box<dyn Fn(&[u8]) -> bool>;

/// One form: what this release writes, and whether bytes are read as the same.
struct Form {
    name: String,
    bytes: Vec<u8>,
    reads: Reads,
}

fn form(name: impl Into<String>, bytes: Vec<u8>, reads: impl Fn(&[u8]) -> bool + 'static) -> Form {
    Form { name: name.into(), bytes, reads: Box::new(reads) }
}

fn hashes() -> PackedHashes {
    PackedHashes::pack(&[b"hash-one", b"hash-two"]).unwrap()
}

fn stats() -> Stats {
    Stats { cache_memory_bytes: 1 << 40, hit_rate: 0.75, pressure: 0.5, t2_hit_tokens: 3, t2_query_tokens: 4 }
}

fn deltas() -> Vec<Batch> {
    let chain = Chain::pack(&[b"a".as_slice(), b"bb", b"ccc"], &[16, 16, 8]);
    let exact = Some(Exact { hash: b"exact".to_vec(), token_count: 40 });
    let update = Update {
        replica: "engine-1".into(),
        tenant: "acme".into(),
        model: "llama".into(),
        scheme: "vllm".into(),
        timestamp_us: 1_700_000_000_000_001,
        entries: vec![PrefixEntry { adapter: "sql".into(), tier: 2, chain, exact }],
        stats: Some(stats()),
    };
    let event =
        |kind| Delta::Event(Event { kind, replica: "engine-1".into(), tenant: "acme".into(), model: "llama".into() });
    let deltas = vec![
        Delta::Update(update),
        event(EventKind::PrefixEvicted { hash: b"a".to_vec(), adapter: "sql".into() }),
        event(EventKind::AllCleared),
        event(EventKind::ReplicaUpdated { timestamp_us: 5 }),
    ];
    vec![Batch { session: 1 << 100, sequence: 9, producer: Some((2, 3)), deltas }]
}

fn policy() -> TenantPolicy {
    TenantPolicy {
        ttl_us: Some(900_000_000),
        minimum_prefix_tokens: Some(32),
        minimum_matched_tokens: Some(128),
        routing_floor_score: Some(5.5),
        lookup_timeout_ms: Some(25),
        eviction: Eviction::Lfu,
        affinity_routing: Some(false),
        strategy: Some(Strategy { enable_chain_matching: true, require_chain: true, enable_tenant_hot: false }),
    }
}

fn policies() -> PolicySet {
    let policies = BTreeMap::from([("acme".to_owned(), policy()), ("other".into(), TenantPolicy::default())]);
    PolicySet { policies, quotas: BTreeMap::from([("acme".into(), 100_000)]) }
}

fn meta() -> ClusterMeta {
    ClusterMeta { max_bytes: 1 << 33, ..ClusterMeta::default() }
}

/// (name, command) of each kind.
fn commands() -> [(&'static str, Command); 8] {
    let (tenant, model, scheme) = ("acme".to_owned(), "llama".to_owned(), "vllm".to_owned());
    let credit = Credit {
        tenant,
        model: model.clone(),
        scheme: scheme.clone(),
        adapter: "sql".into(),
        replica: "engine-1".into(),
        hashes: hashes(),
        counts: vec![1, 300],
    };
    let probe = Probe { replica: "__probe-x".into(), model, scheme, hash: b"probe".to_vec(), present: true };
    [
        ("deltas", Command::Deltas(deltas())),
        ("sweep", Command::Sweep),
        ("set-policy", Command::SetPolicy(policies())),
        ("access-credits", Command::AccessCredits(vec![credit])),
        ("cluster-meta", Command::ClusterMeta(meta())),
        ("audit", Command::Audit(Audit { index: 77, digest: 0xd1 << 120 })),
        ("probe", Command::Probe(probe)),
        ("offer-policy", Command::OfferPolicy(policies())),
    ]
}

fn membership() -> Membership {
    let node = |name: &str| MemberNode { name: name.into(), addr: format!("{name}:9091") };
    let nodes = BTreeMap::from([(1, node("n0")), (2, node("n1")), (1 << 60, node("n2"))]);
    Membership::new(vec![BTreeSet::from([1, 2]), BTreeSet::from([1, 1 << 60])], nodes).unwrap()
}

/// Entries of the log, and commands on their way to the leader.
fn log_forms() -> Vec<Form> {
    let mut forms = Vec::new();
    for (name, command) in commands() {
        let stamped = Stamped { stamp_us: 1_700_000_000_000_000, command: command.clone() };
        let bytes = record::encode_command(&stamped).unwrap().to_vec();
        forms.push(form(format!("log-{name}"), bytes, move |bytes| {
            record::decode_command(bytes).is_ok_and(|read| read == stamped)
        }));
        let bytes = record::encode_forward(&command).unwrap();
        forms.push(form(format!("forward-{name}"), bytes, move |bytes| {
            record::decode_forward(bytes).is_ok_and(|read| read == command)
        }));
    }
    for (name, payload) in [("log-blank", Payload::Blank), ("log-membership", Payload::Membership(membership()))] {
        let bytes = record::body(&payload).unwrap().to_vec();
        forms.push(form(name, bytes, move |bytes| {
            record::entry(LogPos { term: 1, index: 1 }, bytes.into()).is_ok_and(|entry| entry.payload == payload)
        }));
    }
    forms
}

/// (name, record) of each kind.
fn snapshot_records() -> Vec<(&'static str, SnapshotRecord)> {
    let totals = Totals {
        entries: 1,
        reserved_entries: 2,
        prefixes: 3,
        bytes: 4,
        dead_entries: 5,
        stats_rows: 6,
        members: 7,
        sessions: 8,
    };
    let header = SnapshotHeader {
        version: SNAPSHOT_VERSION,
        time_us: 1_700_000_000_000_000,
        meta: meta(),
        next_retirement: 3,
        sweep_was_full: true,
        digest: 0xd1 << 120,
        totals,
    };
    let (tenant, model, replica) = ("acme".to_owned(), "llama".to_owned(), "engine-1".to_owned());
    let stats = StatsRow {
        tenant: tenant.clone(),
        model: model.clone(),
        replica: replica.clone(),
        stats: stats(),
        payload_us: 5,
        liveness_us: 6,
    };
    let run = EntryRun {
        holder: 0,
        partition: 0,
        last_seen_us: 1_700_000_000_000_000,
        tier: -1,
        accesses: 70_000,
        tokens: 16,
        step: 16,
        blocks: 2,
    };
    let page = EntryPage {
        holders: vec![HolderName { tenant, model, replica, retired: Some(2) }],
        partitions: vec![PartitionName { scheme: "vllm".into(), adapter: "sql".into() }],
        runs: vec![run],
        hashes: hashes(),
    };
    vec![
        ("header", SnapshotRecord::Header(header)),
        ("policies", SnapshotRecord::Policies(vec![("acme".into(), policy())])),
        ("quotas", SnapshotRecord::Quotas(vec![("acme".into(), 9)])),
        ("policy-source", SnapshotRecord::PolicySource(PolicySource::Pushed)),
        ("sessions", SnapshotRecord::Sessions(vec![SessionRow { session: 1 << 99, sequence: 4, stamp_us: 5 }])),
        ("stats", SnapshotRecord::Stats(vec![stats])),
        ("entries", SnapshotRecord::Entries(page)),
    ]
}

fn snapshot_forms() -> Vec<Form> {
    let record = |(name, record): (&str, SnapshotRecord)| {
        form(format!("snapshot-{name}"), encode_record(&record).unwrap(), move |bytes| {
            decode_record(bytes).is_ok_and(|read| read == record)
        })
    };
    let mut forms: Vec<Form> = snapshot_records().into_iter().map(record).collect();
    let manifest = SnapshotManifest {
        cluster_id: 0xc1,
        last: Some(LogPos { term: 2, index: 5 }),
        membership: record::encode_members(Some(LogPos { term: 2, index: 4 }), &membership()).unwrap(),
        header: Vec::new(),
        records: 3,
        digest: 0xd1,
        taken_at_us: 1_700_000_000_000_000,
    };
    let bytes = crate::generation::encode_manifest(&manifest).unwrap();
    forms.push(form("snapshot-manifest", bytes, move |bytes| {
        let is_equal = crate::generation::decode_manifest(bytes).is_ok_and(|read| read == manifest);
        is_equal && record::decode_members(&manifest.membership).is_ok_and(|(_, members)| members == membership())
    }));
    forms
}

fn message<M: Message + Default + PartialEq + 'static>(name: &str, message: M) -> Form {
    form(format!("node-{name}"), message.encode_to_vec(), move |bytes| {
        M::decode(bytes).is_ok_and(|read| read == message)
    })
}

/// A message of which only some fields are said: one that gains a field later stays what it is here.
fn said<M: Message + Default>(say: impl FnOnce(&mut M)) -> M {
    let mut message = M::default();
    say(&mut message);
    message
}

fn cluster_id() -> bytes::Bytes {
    bytes::Bytes::from_static(&[7; 16])
}

fn member() -> wire::Member {
    wire::Member { node_id: 1, name: "n0".into(), node_addr: "n0:9091".into(), voter: true }
}

fn promise() -> Option<wire::BootstrapPromise> {
    Some(wire::BootstrapPromise { cluster_id: cluster_id(), members: vec![member()] })
}

/// Who are you, promise, let me in.
fn membership_forms() -> Vec<Form> {
    let status = said(|status: &mut wire::PeerStatusResponse| {
        status.node_name = "n0".into();
        status.node_id = 1;
        status.cluster_id = cluster_id();
        status.promise = promise();
        status.peer_names = vec!["n0".into(), "n1".into()];
        status.wall_us = 1_700_000_000_000_000;
        status.members = vec![member()];
        status.leader = Some(1);
        status.term = 3;
        status.last_log_index = Some(9);
        status.committed_index = Some(8);
        status.applied_index = Some(7);
        status.feature_level = 1;
        status.feature_max = 1;
        status.release = "0.1.0".into();
        status.incarnation = 4;
        status.cluster_time_us = 5;
        status.ready = true;
    });
    let join = said(|join: &mut wire::JoinRequest| {
        join.member = Some(member());
        join.feature_max = 1;
        join.cluster_id = cluster_id();
    });
    let joined = said(|joined: &mut wire::JoinResponse| {
        joined.set_outcome(wire::join_response::Outcome::NotLeader);
        joined.reason = "ask the leader".into();
        joined.leader = Some(1);
        joined.leader_addr = "n0:9091".into();
        joined.members = vec![member()];
    });
    vec![
        message("peer-status", wire::PeerStatusRequest { node_name: "n1".into() }),
        message("peer-status-answer", status),
        message("promise", wire::PromiseRequest { promise: promise() }),
        message("promise-answer", wire::PromiseResponse { promised: false, reason: "held".into(), held: promise() }),
        message("join", join),
        message("join-answer", joined),
    ]
}

/// Raft's calls, and forwarded commands.
fn raft_forms() -> Vec<Form> {
    let header = Some(said(|header: &mut wire::PeerHeader| {
        header.cluster_id = cluster_id();
        (header.from, header.to) = (1, 2);
        (header.feature_level, header.feature_max) = (1, 1);
    }));
    let pos = Some(wire::LogPos { term: 3, index: 9 });
    let vote = Some(wire::Ballot { term: 3, voted_for: Some(1), committed: true });
    let body = bytes::Bytes::from(record::body(&Payload::Blank).unwrap().to_vec());
    let append = said(|append: &mut wire::AppendEntriesRequest| {
        append.header = header.clone();
        (append.vote, append.prev, append.commit) = (vote, pos, pos);
        append.entries = vec![wire::LogEntry { term: 3, index: 10, body: body.clone() }];
    });
    let appended = said(|appended: &mut wire::AppendEntriesResponse| {
        appended.set_outcome(wire::append_entries_response::Outcome::Partial);
        (appended.matched, appended.vote) = (pos, vote);
    });
    let ask = said(|ask: &mut wire::VoteRequest| {
        ask.header = header.clone();
        (ask.vote, ask.last) = (vote, pos);
        (ask.pre_vote, ask.leadership_transfer) = (true, true);
    });
    let answer = said(|answer: &mut wire::VoteResponse| {
        (answer.vote, answer.granted, answer.last) = (vote, true, pos);
    });
    let head = wire::SnapshotHead { header: header.clone(), vote, manifest: body.clone() };
    let chunk = said(|chunk: &mut wire::SnapshotChunk| {
        chunk.head = Some(head);
        chunk.records = vec![body.clone()];
    });
    let transfer = said(|transfer: &mut wire::TransferLeaderRequest| {
        transfer.header = header.clone();
        (transfer.from, transfer.successor, transfer.last) = (vote, 2, pos);
    });
    let transferred = said(|transferred: &mut wire::TransferLeaderResponse| transferred.accepted = true);
    let forward = said(|forward: &mut wire::ForwardRequest| {
        forward.header = header;
        forward.command = body;
    });
    let forwarded = said(|forwarded: &mut wire::ForwardResponse| {
        forwarded.set_outcome(wire::forward_response::Outcome::Committed);
        (forwarded.index, forwarded.leader, forwarded.removed) = (10, Some(1), 2);
        forwarded.wants_sweep = true;
    });
    vec![
        message("append", append),
        message("append-answer", appended),
        message("vote", ask),
        message("vote-answer", answer),
        message("snapshot-chunk", chunk),
        message("snapshot-answer", wire::InstallSnapshotResponse { vote }),
        message("transfer", transfer),
        message("transfer-answer", transferred),
        message("forward", forward),
        message("forward-answer", forwarded),
    ]
}

fn forms() -> Vec<Form> {
    let mut forms = log_forms();
    forms.extend(snapshot_forms());
    forms.extend(membership_forms());
    forms.extend(raft_forms());
    forms
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The folders of all versions, the oldest first.
fn versions() -> Vec<PathBuf> {
    let mut versions: Vec<PathBuf> =
        std::fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    versions.sort_by_key(|path| path.file_name().unwrap().to_str().unwrap()[1..].parse::<u32>().unwrap());
    versions
}

#[test]
fn every_form_ever_written_is_readable_and_none_changes_unseen() {
    let forms = forms();
    if let Some(name) = std::env::var_os("PREFIXD_WRITE_FIXTURE") {
        let folder = fixtures().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        forms.iter().for_each(|form| std::fs::write(folder.join(&form.name), &form.bytes).unwrap());
    }
    let versions = versions();
    for version in &versions {
        for form in &forms {
            let path = version.join(&form.name);
            match std::fs::read(&path) {
                Ok(bytes) => assert!((form.reads)(&bytes), "{} is no longer read as it was written", path.display()),
                // A form that came later.
                Err(_) if Some(version) != versions.last() => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
        for entry in std::fs::read_dir(version).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let is_known = name == BACKUP_NAME || forms.iter().any(|form| form.name == name);
            assert!(is_known, "{}/{name} is a fixture that nobody reads", version.display());
        }
    }
    let newest = versions.last().unwrap();
    for form in forms {
        let path = newest.join(&form.name);
        let same = std::fs::read(&path).unwrap() == form.bytes;
        assert!(same, "{} changed: a change of form is a new version, and the old one stays readable", path.display());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_backup_ever_written_can_be_restored() {
    if let Some(name) = std::env::var_os("PREFIXD_WRITE_FIXTURE") {
        std::fs::create_dir_all(fixtures().join(&name)).unwrap();
        let (_dir, path, _core) = written(4, 1_700_000_000_000_000).await;
        std::fs::copy(path, fixtures().join(name).join(BACKUP_NAME)).unwrap();
    }
    for version in versions() {
        let path = version.join(BACKUP_NAME);
        let contents = verify(&path).unwrap();
        let home = tempfile::tempdir().unwrap();
        let restored = restore(&path, home.path(), "n0", Ids::random()).unwrap();
        assert_eq!((contents.header.digest, restored.digest), (BACKUP_DIGEST, BACKUP_DIGEST), "{}", path.display());
        assert!(contents.header.entries > 0);
    }
}
