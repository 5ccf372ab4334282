//! How a node comes up: disk first, then the node port, then, in the background, its place in a cluster.

use crate::calls::Calls;
use crate::core::{Core, Start};
use crate::dial::Dialer;
use crate::disk::StoredDisk;
use crate::drivers;
use crate::face::{BootstrapMode, Histogram, NodeConfig, Timing};
use crate::generation::SnapshotFile;
use crate::lanes::{LaneLimits, Lanes};
use crate::log::RaftLog;
use crate::machine::Machine;
use crate::membership::establish::{Established, Newcomer};
use crate::membership::{Founder, Pace, Place, ReadinessLimits, must_join};
use crate::network::{Network, PeerIdentity};
use crate::node::{Inner, Node, Raft};
use crate::proposer::{Proposer, ProposerTask};
use crate::ready::Judge;
use crate::stamp::Stamps;
use crate::types::{MemberNode, log_pos, wire_members};
use crate::{admin, service, tls};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::error::{InitializeError, RaftError};
use prefixd_index::Index;
use prefixd_storage::{DataDir, Identity, LogFile, LogOptions, LogStore, RedbLog, SnapshotStore};
use rand::SeedableRng;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Log entries that one AppendEntries carries at most, beside the limit in bytes.
const APPEND_ENTRIES: u64 = 1_024;
/// Connections on the node port: those of some members, and operators.
const MAX_CONNECTIONS: usize = 1_024;
/// A joining or lagging node further behind than this gets a snapshot.
const LAG_FOR_SNAPSHOT: u64 = 50_000;

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory can't be used; the message says what to do.
    #[error("{0}")]
    Disk(String),
    /// The node port can't be served.
    #[error("node port: {0}")]
    Port(io::Error),
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(String),
}

fn disk(error: impl std::fmt::Display) -> StartError {
    StartError::Disk(error.to_string())
}

/// What the disk gave.
struct Opened {
    identity: Identity,
    data_dir: DataDir,
    log: RedbLog,
    snapshots: SnapshotStore,
    start: Start,
}

/// Opens the disk, or makes a node of an empty one, and loads the newest snapshot that is whole. Blocking.
fn open_disk(config: &NodeConfig, options: impl Fn(u128) -> LogOptions, hash_seed: u64) -> Result<Opened, StartError> {
    let mut data_dir = DataDir::open(&config.data_dir).map_err(disk)?;
    if data_dir.presence().is_fresh() {
        let store_uuid = rand::random();
        let identity = Identity {
            cluster_id: None,
            node_id: rand::random_range(1..=u64::MAX),
            incarnation: 0,
            store_uuid,
            node_name: config.node_name.clone(),
        };
        data_dir.create(&identity, &options(store_uuid)).map_err(disk)?;
    }
    let (identity, log) = data_dir.load(&options).map_err(disk)?;
    if identity.node_name != config.node_name {
        return Err(disk(format!(
            "{}: this data directory belongs to the node {}, not {}: start it with --node-name={}, or with another \
             --data-dir",
            config.data_dir.display(),
            identity.node_name,
            config.node_name,
            identity.node_name
        )));
    }
    let (snapshots, set_aside) = SnapshotStore::open(&data_dir.snapshots_path()).map_err(disk)?;
    for bad in set_aside {
        tracing::error!(snapshot = %bad.path.display(), reason = bad.reason, "a snapshot is no good and was set aside");
    }
    let start = load_snapshot(config, &identity, &log, &snapshots, hash_seed)?;
    Ok(Opened { identity, data_dir, log, snapshots, start })
}

/// The state of the newest generation that is whole, or the empty one. Never one that the log can't bring up to date.
fn load_snapshot(
    config: &NodeConfig,
    identity: &Identity,
    log: &RedbLog,
    snapshots: &SnapshotStore,
    hash_seed: u64,
) -> Result<Start, StartError> {
    let purged = log.state().purged.map_or(0, |pos| pos.index);
    while let Some(generation) = snapshots.latest() {
        let file = SnapshotFile(generation.clone());
        let loaded = file.load(hash_seed).and_then(|index| Ok((index, file.meta()?)));
        let foreign = identity.cluster_id.is_some_and(|own| own != generation.manifest().cluster_id);
        match loaded {
            Ok((index, meta)) if !foreign => {
                let applied = meta.last_log_id.as_ref().map(log_pos);
                if applied.map_or(0, |pos| pos.index) < purged {
                    break;
                }
                return Ok(Start {
                    index,
                    applied,
                    membership_at: meta.last_membership.log_id().as_ref().map(log_pos),
                    membership: meta.last_membership.membership().clone(),
                });
            }
            Ok(_) => set_aside(snapshots, &generation, "it belongs to another cluster")?,
            Err(error) => set_aside(snapshots, &generation, &error.to_string())?,
        }
    }
    if purged > 0 {
        return Err(disk(format!(
            "{dir}: the log is purged up to index {purged} and no snapshot that reaches it is whole. What this node \
             acknowledged can't be rebuilt here: stop it, move {dir} away and start it again with an empty data \
             directory and --bootstrap=never: it rejoins as a fresh learner",
            dir = config.data_dir.display()
        )));
    }
    Ok(Start { index: Index::new(hash_seed), applied: None, membership_at: None, membership: Default::default() })
}

fn set_aside(
    snapshots: &SnapshotStore,
    generation: &Arc<prefixd_storage::Generation>,
    why: &str,
) -> Result<(), StartError> {
    for bad in snapshots.set_aside(generation, why).map_err(disk)? {
        tracing::error!(snapshot = %bad.path.display(), reason = bad.reason, "a snapshot is no good and was set aside");
    }
    Ok(())
}

impl Node {
    /// Opens the disk and serves the node port; founding, joining and catching up go on behind it, and
    /// [`Node::readiness`] says how far they are. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// A disk that can't be used, with what to do about it; a port that can't be served; a configuration that
    /// contradicts itself.
    pub async fn start(config: NodeConfig, listener: TcpListener) -> Result<Node, StartError> {
        check(&config)?;
        let hash_seed = rand::random();
        let fsync = Arc::new(Mutex::new(fsync_histogram()));
        let failed = watch::Sender::new(None);
        let (for_disk, options) = (config.clone(), log_options(fsync.clone(), failed.clone()));
        let opened = tokio::task::spawn_blocking(move || open_disk(&for_disk, options, hash_seed));
        let opened = opened.await.map_err(|e| disk(format!("opening the disk failed: {e}")))??;
        let bound = listener.local_addr().map_err(StartError::Port)?;
        let (inner, proposer) = assemble(config, opened, bound.to_string(), fsync, failed)?;
        let node = Node { inner: inner.clone() };
        serve(&node, listener)?;
        // Both hold the node and the node holds the way to them: what breaks the ring is the end of the node.
        let (proposing, ended) = (inner.clone(), inner.stopped.clone());
        tokio::spawn(async move { ended.run_until_cancelled(proposer.run(proposing)).await });
        let limits = LaneLimits {
            batch_bytes: inner.config.limits.entry_bytes,
            queue_bytes: inner.config.limits.queue_bytes,
            timeout: inner.config.timing.propose_timeout,
        };
        if inner.lanes.set(Lanes::start(inner.clone(), limits, rand::random, &inner.stopped)).is_err() {
            return Err(StartError::Config("a node starts once".into()));
        }
        drivers::start(inner.clone());
        tokio::spawn(find_place(inner, hash_seed));
        Ok(node)
    }
}

fn check(config: &NodeConfig) -> Result<(), StartError> {
    let names: std::collections::BTreeSet<&str> = config.peers.iter().map(|peer| peer.name.as_str()).collect();
    if names.len() != config.peers.len() {
        return Err(StartError::Config("--peers names a node twice".into()));
    }
    if !names.is_empty() && !names.contains(config.node_name.as_str()) {
        return Err(StartError::Config(format!(
            "--node-name {} is none of the names in --peers: the list holds all members, this node included",
            config.node_name
        )));
    }
    if names.is_empty() && config.bootstrap != BootstrapMode::Solo {
        return Err(StartError::Config("without --peers a node can only be started with --bootstrap=solo".into()));
    }
    Ok(())
}

fn fsync_histogram() -> Histogram {
    let bounds = [0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];
    Histogram { bounds_seconds: bounds.to_vec(), counts: vec![0; bounds.len()], ..Histogram::default() }
}

fn log_options(
    fsync: Arc<Mutex<Histogram>>,
    failed: watch::Sender<Option<String>>,
) -> impl Fn(u128) -> LogOptions + Send + 'static {
    move |store_uuid| {
        let (fsync, failed) = (fsync.clone(), failed.clone());
        LogOptions {
            on_fatal: Some(Arc::new(move |failure| {
                tracing::error!(%failure, "the log store failed");
                failed.send_if_modified(|why| why.is_none().then(|| *why = Some(failure.to_string())).is_some());
            })),
            on_sync: Some(Arc::new(move |file, took| {
                if file == LogFile::Store {
                    fsync.lock().unwrap_or_else(PoisonError::into_inner).observe(took.as_secs_f64());
                }
            })),
            ..LogOptions::new(store_uuid)
        }
    }
}

fn assemble(
    config: NodeConfig,
    opened: Opened,
    bound: String,
    fsync: Arc<Mutex<Histogram>>,
    failed: watch::Sender<Option<String>>,
) -> Result<(Arc<Inner>, ProposerTask), StartError> {
    let Opened { identity, data_dir, log, snapshots, start } = opened;
    let on_end = failed.clone();
    let core = Core::start(start, move |why| {
        on_end.send_if_modified(|failed| failed.is_none().then(|| *failed = Some(why)).is_some());
    })
    .map_err(|e| disk(format!("the index thread could not be started: {e}")))?;
    let dialer = Arc::new(Dialer::new(&config.peers, config.tls.as_ref().map(|tls| tls.client.clone())));
    let (proposer, task) = Proposer::new(config.limits.entry_bytes, config.limits.queue_bytes);
    let founder = Founder::open(StoredDisk::new(data_dir)).map_err(disk)?;
    let inner = Inner {
        advertise_addr: config.advertise_addr.clone().unwrap_or(bound),
        incarnation: identity.incarnation,
        founder: Arc::new(founder),
        core,
        log: RaftLog::new(Arc::new(log)),
        snapshots: Arc::new(snapshots),
        calls: Calls { dialer: dialer.clone(), node_name: config.node_name.clone() },
        dialer,
        proposer,
        lanes: OnceLock::new(),
        stamps: Stamps::default(),
        fsync,
        receiving: tokio::sync::Mutex::default(),
        changing: Arc::default(),
        leader_changes: Default::default(),
        stopping: CancellationToken::new(),
        stopped: CancellationToken::new(),
        member: OnceLock::new(),
        heard: Mutex::default(),
        judge: Mutex::new(Judge::new()),
        waiting: watch::Sender::new("starting".into()),
        failed,
        config,
    };
    Ok((Arc::new(inner), task))
}

/// Serves the node port until the node has stopped.
fn serve(node: &Node, listener: TcpListener) -> Result<(), StartError> {
    let tls = node.inner.config.tls.as_ref().map(|tls| tls.port.clone());
    let incoming = tls::incoming(listener, tls, tls::Room::new(MAX_CONNECTIONS)).map_err(StartError::Port)?;
    let server = tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .initial_stream_window_size(4 << 20)
        .initial_connection_window_size(16 << 20)
        .add_service(service::server(node.inner.clone()))
        .add_service(admin::server(node.clone()));
    let inner = node.inner.clone();
    tokio::spawn(async move {
        let stopped = inner.stopped.clone();
        if let Err(error) = server.serve_with_incoming_shutdown(incoming, stopped.cancelled_owned()).await {
            inner.fail(format!("the node port ended: {error}"));
        }
    });
    Ok(())
}

/// Founds, joins or goes on, and runs Raft from then on.
async fn find_place(inner: Arc<Inner>, hash_seed: u64) {
    let newcomer = Newcomer {
        place: Place::new(&inner.config.node_name, &inner.config.peers, inner.config.bootstrap),
        peers: inner.config.peers.clone(),
        addr: inner.advertise_addr.clone(),
        founder: inner.founder.clone(),
        net: inner.calls.clone(),
        pace: Pace::default(),
        reason: inner.waiting.clone(),
    };
    let mut rng = rand::rngs::StdRng::from_rng(&mut rand::rng());
    let outcome = tokio::select! {
        () = inner.stopping.cancelled() => return,
        outcome = run_place(&inner, &newcomer, hash_seed, &mut rng) => outcome,
    };
    if let Err(why) = outcome {
        inner.fail(why);
    }
}

async fn run_place(
    inner: &Arc<Inner>,
    newcomer: &Newcomer<Calls, StoredDisk>,
    hash_seed: u64,
    rng: &mut rand::rngs::StdRng,
) -> Result<(), String> {
    let established = newcomer.establish(rng).await.map_err(|e| e.to_string())?;
    let raft = run_raft(inner, &established, hash_seed).await.map_err(|e| format!("Raft did not start: {e}"))?;
    let founder = established.found.is_some();
    if let Some(promise) = &established.found {
        let members: BTreeMap<u64, MemberNode> = promise
            .members()
            .iter()
            .map(|(name, id)| (*id, MemberNode { name: name.clone(), addr: String::new() }))
            .collect();
        match raft.initialize(members).await {
            // Not allowed: its log or its vote says that it was initialised before.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
            Err(error) => return Err(format!("the founding list was not taken: {error}")),
        }
        let keeper = inner.founder.clone();
        let founded = tokio::task::spawn_blocking(move || keeper.founded()).await;
        founded.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    }
    newcomer.foreign_peers(established.cluster_id).await;
    let members = wire_members(raft.metrics().borrow_watched().membership_config.membership());
    let members: Vec<_> = members.into_iter().map(crate::calls::member_from_wire).collect();
    if established.join || must_join(&members, established.node_id, founder) {
        newcomer.become_voter(established.cluster_id, rng).await.map_err(|e| e.to_string())?;
    }
    Ok(())
}

async fn run_raft(inner: &Arc<Inner>, established: &Established, hash_seed: u64) -> Result<Raft, String> {
    let me = Arc::new(PeerIdentity {
        cluster_id: established.cluster_id,
        node_id: established.node_id,
        feature_level: AtomicU32::new(inner.core.published.summary().meta.feature_level),
    });
    let network = Network {
        me: me.clone(),
        dialer: inner.dialer.clone(),
        append_timeout: inner.config.timing.election_max * 2,
        silent: Arc::default(),
    };
    let machine = Machine {
        core: inner.core.clone(),
        snapshots: inner.snapshots.clone(),
        cluster_id: established.cluster_id,
        preimage_entries: inner.config.limits.snapshot_preimage_entries,
        hash_seed,
    };
    let committed = inner.log.store().state().committed.map_or(0, |pos| pos.index);
    let config = Arc::new(raft_config(&inner.config.timing).validate().map_err(|e| e.to_string())?);
    let raft =
        Raft::new(established.node_id, config, network, inner.log.clone(), machine).await.map_err(|e| e.to_string())?;
    let limits = ReadinessLimits {
        leader_wait: inner.config.timing.election_max * 2,
        max_lag_entries: inner.config.limits.max_lag_entries,
    };
    inner.judge.lock().unwrap_or_else(PoisonError::into_inner).began(limits, committed);
    inner.member.set((me, raft.clone())).map_err(|_| "it runs already".to_owned())?;
    Ok(raft)
}

pub(crate) fn raft_config(timing: &Timing) -> openraft::Config {
    let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    openraft::Config {
        cluster_name: "prefixd".into(),
        heartbeat_interval: millis(timing.heartbeat),
        election_timeout_min: millis(timing.election_min),
        election_timeout_max: millis(timing.election_max),
        install_snapshot_timeout: 60_000,
        max_payload_entries: APPEND_ENTRIES,
        replication_lag_threshold: LAG_FOR_SNAPSHOT,
        // Snapshots and purges are asked for by this crate's own driver, which counts bytes as well as entries.
        snapshot_policy: openraft::SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        enable_pre_vote: Some(true),
        // Entries go to followers while the leader's own disk still writes them. A leader that came back in its old term
        // could so give an index that a follower holds to another entry of the same term.
        enable_leader_restore: Some(false),
        ..openraft::Config::default()
    }
}
