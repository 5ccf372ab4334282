//! How a node comes up: disk first, then the node port, then, in the background, its place in a cluster.

use crate::calls::Calls;
use crate::core::{Core, Start};
use crate::dial::Dialer;
use crate::disk::StoredDisk;
use crate::drivers;
use crate::face::{BootstrapMode, Histogram, NodeConfig};
use crate::forwards::{Forwards, ForwardsTask};
use crate::generation::{SnapshotFile, set_aside, tell_set_aside};
use crate::join::current_members;
use crate::lanes::{LaneLimits, Lanes};
use crate::late;
use crate::life;
use crate::log::{PresentLog, RaftLog};
use crate::membership::establish::{Established, Newcomer, NotEstablished};
use crate::membership::{Founder, Pace, Place, ReadinessLimits, must_join};
use crate::network::PeerIdentity;
use crate::node::{Inner, Mended, Node, Raft};
use crate::proposer::{Proposer, ProposerTask};
use crate::ready::Judge;
use crate::room::Room;
use crate::stamp::Stamps;
use crate::types::{MemberNode, log_pos};
use crate::{admin, service, tls};
use arc_swap::ArcSwapOption;
use openraft::error::{InitializeError, RaftError};
use prefixd_index::Index;
use prefixd_storage::{
    DataDir, DataDirError, FailureKind, Identity, LogFile, LogOptions, LogPos, LogStore, RedbLog, Rejoin, SnapshotStore,
};
use rand::SeedableRng;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Connections on the node port: those of some members, and operators.
const MAX_CONNECTIONS: usize = 1_024;

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

pub(crate) fn disk(error: impl std::fmt::Display) -> StartError {
    StartError::Disk(error.to_string())
}

/// What the disk gave.
struct Opened {
    identity: Identity,
    data_dir: DataDir,
    /// Or why there was no room to open it.
    log: Result<RedbLog, String>,
    snapshots: SnapshotStore,
    loaded: Loaded,
}

/// The state that was loaded, and what is the matter with it.
pub(crate) struct Loaded {
    pub(crate) start: Start,
    /// Snapshots that were no good.
    set_aside: u64,
    /// The state is the empty one although the log is purged up to here: a peer must give a snapshot.
    lost_before: Option<LogPos>,
}

/// Opens the disk, or makes a node of an empty one, and loads the newest snapshot that is whole. Blocking.
fn open_disk(config: &NodeConfig, options: impl Fn(u128) -> LogOptions, hash_seed: u64) -> Result<Opened, StartError> {
    let unusable = |error: DataDirError| no_room(&config.data_dir, error);
    let mut data_dir = DataDir::open(&config.data_dir).map_err(unusable)?;
    if data_dir.presence().is_fresh() {
        let store_uuid = rand::random();
        let identity = Identity {
            cluster_id: None,
            node_id: rand::random_range(1..=u64::MAX),
            incarnation: 0,
            store_uuid,
            node_name: config.node_name.clone(),
        };
        data_dir.create(&identity, &options(store_uuid)).map_err(unusable)?;
    }
    // What an earlier start left half-written goes first: it may be just the room that is missing.
    let (snapshots, set_aside) = SnapshotStore::open(&data_dir.snapshots_path()).map_err(disk)?;
    tell_set_aside(&set_aside);
    let (identity, log) = match data_dir.load(&options) {
        Ok((identity, log)) => (identity, Ok(log)),
        Err(error) if error.is_disk_full() => (data_dir.peek_identity().map_err(disk)?, Err(error.to_string())),
        Err(error) => return Err(disk(error)),
    };
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
    // Who loads a snapshot below does the same thereby. Without room for it the first snapshot will say so.
    if log.is_ok()
        && snapshots.latest().is_none()
        && let Err(error) = snapshots.warm_up()
    {
        tracing::debug!(%error, "snapshots could not be warmed up");
    }
    let has_peers = config.peers.iter().any(|peer| peer.name != config.node_name);
    let mut loaded = load_snapshot((&config.data_dir, has_peers), &identity, log.as_ref().ok(), &snapshots, hash_seed)?;
    loaded.set_aside += set_aside.len() as u64;
    Ok(Opened { identity, data_dir, log, snapshots, loaded })
}

/// A disk without room to begin a life on: nothing lives there yet, or not even its lock can be taken.
fn no_room(data_dir: &Path, error: DataDirError) -> StartError {
    match error.is_disk_full() {
        true => disk(format!(
            "{error}: there is no room for a node here. Make some on the file system of {dir} (`df -h {dir}` shows it), \
             then start this node as before",
            dir = data_dir.display()
        )),
        false => disk(error),
    }
}

/// The state of the newest generation that is whole, or the empty one. Never one that the log can't bring up to date; a
/// log that is not open yet is compared once it is. Without peers to fetch one from, a log that nothing reaches is an error.
pub(crate) fn load_snapshot(
    (data_dir, has_peers): (&Path, bool),
    identity: &Identity,
    log: Option<&RedbLog>,
    snapshots: &SnapshotStore,
    hash_seed: u64,
) -> Result<Loaded, StartError> {
    let purged = log.and_then(|log| log.state().purged);
    let mut bad = 0;
    while let Some(generation) = snapshots.latest() {
        let file = SnapshotFile(generation.clone());
        let loaded = file.load(hash_seed).and_then(|index| Ok((index, file.meta()?)));
        let foreign = identity.cluster_id.is_some_and(|own| own != generation.manifest().cluster_id);
        match loaded {
            Ok((index, meta)) if !foreign => {
                let applied = meta.last_log_id.as_ref().map(log_pos);
                if applied.map(|pos| pos.index) < purged.map(|pos| pos.index) {
                    break;
                }
                let start = Start {
                    index,
                    applied,
                    membership_at: meta.last_membership.log_id().as_ref().map(log_pos),
                    membership: meta.last_membership.membership().clone(),
                };
                return Ok(Loaded { start, set_aside: bad, lost_before: None });
            }
            Ok(_) => bad += set_aside(snapshots, &generation, "it belongs to another cluster").map_err(disk)?,
            Err(error) => bad += set_aside(snapshots, &generation, &error.to_string()).map_err(disk)?,
        }
    }
    if let Some(purged) = purged
        && (identity.cluster_id.is_none() || !has_peers)
    {
        return Err(disk(format!(
            "{}: the log is purged up to index {}, no snapshot that reaches it is whole, and there is no peer to fetch \
             one from. {}",
            data_dir.display(),
            purged.index,
            Rejoin(data_dir)
        )));
    }
    let start =
        Start { index: Index::new(hash_seed), applied: None, membership_at: None, membership: Default::default() };
    Ok(Loaded { start, set_aside: bad, lost_before: purged })
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
        let told = Told {
            fsync: Arc::new(Mutex::new(fsync_histogram())),
            failed: watch::Sender::new(None),
            room: Arc::new(Room::new()),
        };
        let (for_disk, options) = (config.clone(), log_options(&told));
        let opened = tokio::task::spawn_blocking(move || open_disk(&for_disk, options, hash_seed));
        let opened = opened.await.map_err(|e| disk(format!("opening the disk failed: {e}")))??;
        let bound = listener.local_addr().map_err(StartError::Port)?;
        let (inner, proposer, forwarding) = assemble(config, opened, bound.to_string(), hash_seed, told)?;
        inner.look_at_room();
        let node = Node { inner: inner.clone() };
        serve(&node, listener)?;
        // They hold the node and the node holds the way to them: what breaks the ring is the end of the node.
        let (proposing, ended) = (inner.clone(), inner.stopped.clone());
        tokio::spawn(async move { ended.run_until_cancelled(proposer.run(proposing)).await });
        let (road, ended) = (inner.clone(), inner.stopped.clone());
        tokio::spawn(async move { ended.run_until_cancelled(forwarding.run(road)).await });
        let limits = LaneLimits {
            batch_bytes: inner.config.limits.entry_bytes,
            queue_bytes: inner.config.limits.queue_bytes,
            timeout: inner.config.timing.propose_timeout,
        };
        if inner.lanes.set(Lanes::start(inner.clone(), limits, rand::random, &inner.stopped)).is_err() {
            return Err(StartError::Config("a node starts once".into()));
        }
        drivers::start(inner.clone());
        tokio::spawn(find_place(inner));
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

/// Who is told what the log says of itself.
#[derive(Clone)]
struct Told {
    fsync: Arc<Mutex<Histogram>>,
    failed: watch::Sender<Option<String>>,
    room: Arc<Room>,
}

/// A full disk is survived (see [`crate::reopen`]); any other failure of the log ends the process.
fn log_options(told: &Told) -> impl Fn(u128) -> LogOptions + Send + Sync + 'static {
    let told = told.clone();
    move |store_uuid| {
        let Told { fsync, failed, room } = told.clone();
        LogOptions {
            on_fatal: Some(Arc::new(move |failure| {
                if failure.kind == FailureKind::DiskFull {
                    return room.ended_full(failure.to_string());
                }
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
    hash_seed: u64,
    told: Told,
) -> Result<(Arc<Inner>, ProposerTask, ForwardsTask), StartError> {
    let Opened { identity, data_dir, log, snapshots, loaded } = opened;
    let log_options = Box::new(log_options(&told));
    let Told { fsync, failed, room } = told;
    let (log, log_open) = (late::log_or_none(log, &room), CancellationToken::new());
    if !room.is_reopening() {
        log_open.cancel();
    }
    let Loaded { start, set_aside, lost_before } = loaded;
    let on_end = failed.clone();
    let core = Core::start(start, move |why| {
        on_end.send_if_modified(|failed| failed.is_none().then(|| *failed = Some(why)).is_some());
    })
    .map_err(|e| disk(format!("the index thread could not be started: {e}")))?;
    let dialer = Arc::new(Dialer::new(&config.peers, config.tls.as_ref().map(|tls| tls.client.clone())));
    let (proposer, task) = Proposer::new(config.limits.entry_bytes, config.limits.queue_bytes);
    let (forwards, forwarding) = Forwards::new(config.limits.entry_bytes);
    let founder = Founder::open(StoredDisk::new(data_dir)).map_err(disk)?;
    let inner = Inner {
        advertise_addr: config.advertise_addr.clone().unwrap_or(bound),
        incarnation: AtomicU64::new(identity.incarnation),
        log_open,
        founder: Arc::new(founder),
        core,
        log: PresentLog::new(RaftLog::new(log)),
        log_options,
        store_uuid: identity.store_uuid,
        hash_seed,
        room,
        refusals: Arc::default(),
        lost_before,
        committed_seen: AtomicU64::default(),
        mended: Mended { set_aside: set_aside.into(), ..Mended::default() },
        snapshots: Arc::new(snapshots),
        calls: Calls { dialer: dialer.clone(), node_name: config.node_name.clone(), feature_max: config.feature_max },
        dialer,
        proposer,
        forwards,
        lanes: OnceLock::new(),
        stamps: Stamps::default(),
        fsync,
        receiving: tokio::sync::Mutex::default(),
        backing_up: Arc::default(),
        changing: Arc::default(),
        looked_for_moved: Mutex::default(),
        leader_changes: Default::default(),
        process_stalls: AtomicU64::default(),
        leader_known_last: Default::default(),
        stopping: CancellationToken::new(),
        stopped: CancellationToken::new(),
        identity: OnceLock::new(),
        member: ArcSwapOption::empty(),
        life: Mutex::default(),
        heard: Mutex::default(),
        judge: Mutex::new(Judge::new()),
        level_proposed: AtomicU32::default(),
        outcast: Mutex::default(),
        waiting: watch::Sender::new("starting".into()),
        failed,
        config,
    };
    Ok((Arc::new(inner), task, forwarding))
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
async fn find_place(inner: Arc<Inner>) {
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
    if inner.stopping.run_until_cancelled(inner.log_open.cancelled()).await.is_none() {
        return;
    }
    let outcome = tokio::select! {
        () = inner.stopping.cancelled() => return,
        outcome = run_place(&inner, &newcomer, &mut rng) => outcome,
    };
    if let Err(why) = outcome {
        inner.fail(why);
    }
}

async fn run_place(
    inner: &Arc<Inner>,
    newcomer: &Newcomer<Calls, StoredDisk>,
    rng: &mut rand::rngs::StdRng,
) -> Result<(), String> {
    let established = newcomer.establish(rng).await.map_err(|e| e.to_string())?;
    let raft = run_raft(inner, &established).await.map_err(|e| format!("Raft did not start: {e}"))?;
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
    let mut asks = established.join;
    // Until Raft has begun its work its metrics know no members, and every voter would look like one that must join. One
    // that has ended already is another's to report.
    let _has_begun = raft.with_raft_state(|_| ()).await;
    // A log may say that this node is a voter and be cut off again: whoever finds itself a learner asks, at any time.
    loop {
        let members = inner.metrics().map(|metrics| current_members(&metrics));
        asks |= members.is_some_and(|members| must_join(&members, established.node_id, founder));
        if asks {
            match newcomer.become_voter(established.cluster_id, rng).await {
                Ok(()) => asks = false,
                // It stays, unready, and answers from what it has: only an operator lets it in again.
                Err(NotEstablished::Refused(why)) => {
                    inner.cast_out(Some(why));
                    return Ok(());
                }
                Err(why) => return Err(why.to_string()),
            }
        }
        tokio::time::sleep(inner.config.timing.election_max).await;
    }
}

async fn run_raft(inner: &Arc<Inner>, established: &Established) -> Result<Raft, String> {
    let me = inner.identity.get_or_init(|| {
        Arc::new(PeerIdentity {
            cluster_id: established.cluster_id,
            node_id: established.node_id,
            feature_level: AtomicU32::new(inner.core.published.summary().meta.feature_level),
            feature_max: inner.config.feature_max,
            is_deaf: AtomicBool::default(),
        })
    });
    if let Some(purged) = inner.lost_before {
        inner.rebuild(me, purged).await?;
    }
    let committed = inner.log.store().state().committed.map_or(0, |pos| pos.index);
    let raft = life::begin(inner, me.clone()).await?;
    let limits = ReadinessLimits {
        leader_wait: inner.config.timing.election_max * 2,
        max_lag_entries: inner.config.limits.max_lag_entries,
    };
    inner.judge.lock().unwrap_or_else(PoisonError::into_inner).began(limits, committed);
    Ok(raft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prefixd_storage::Failure;

    #[test]
    fn a_full_disk_is_survived_and_every_other_failure_of_the_log_ends_the_process() {
        let kinds = [FailureKind::DiskFull, FailureKind::Io, FailureKind::Corrupt, FailureKind::Panicked];
        for kind in kinds {
            let told = Told { fsync: Arc::default(), failed: watch::Sender::new(None), room: Arc::new(Room::new()) };
            let failure = Failure { kind, operation: "a sync".into(), detail: "it failed".into() };
            log_options(&told)(7).on_fatal.into_iter().for_each(|on_fatal| on_fatal(&failure));
            let survived = kind == FailureKind::DiskFull;
            assert_eq!((told.room.is_reopening(), told.failed.borrow().is_none()), (survived, survived), "{kind:?}");
        }
    }
}
