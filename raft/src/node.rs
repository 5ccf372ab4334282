//! A node: what holds its parts together, and the face that the edges use.

use crate::calls::Calls;
use crate::core::{Core, Published};
use crate::dial::Dialer;
use crate::disk::StoredDisk;
use crate::face::{NodeConfig, NodeFigures, NodeStatus, SubmitError};
use crate::forwards::Forwards;
use crate::lanes::{self, Carrier, Lanes};
use crate::life::LifeEnd;
use crate::log::PresentLog;
use crate::machine::Machine;
use crate::membership::{Founder, Place, PromiseAnswer};
use crate::network::PeerIdentity;
use crate::proposer::{Done, Proposer};
use crate::record;
use crate::room::{Refusals, Room};
use crate::stamp::Stamps;
use crate::types::TypeConfig;
use arc_swap::ArcSwapOption;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{RaftMetrics, ServerState};
use prefixd_index::command::{ClusterMeta, Command};
use prefixd_index::delta::Delta;
use prefixd_index::{Totals, View};
use prefixd_proto::node as wire;
use prefixd_storage::{LogOptions, LogPos, SnapshotStore};
use std::future::Future;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// openraft's handle with this house's types.
pub(crate) type Raft = openraft::Raft<TypeConfig, Machine>;

/// A running node: cheap to clone, all clones are the same node. It ends by [`Node::stop`] or with the process.
#[derive(Clone)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
}

/// The parts of a node.
pub(crate) struct Inner {
    pub(crate) config: NodeConfig,
    pub(crate) advertise_addr: String,
    pub(crate) incarnation: AtomicU64,
    /// Cancelled once the log is open: a node that was started on a full disk waits for that.
    pub(crate) log_open: CancellationToken,
    pub(crate) founder: Arc<Founder<StoredDisk>>,
    pub(crate) core: Core,
    pub(crate) log: PresentLog,
    /// How the log is opened, and whose it is.
    pub(crate) log_options: Box<dyn Fn(u128) -> LogOptions + Send + Sync>,
    pub(crate) store_uuid: u128,
    pub(crate) hash_seed: u64,
    /// What the disk has room for.
    pub(crate) room: Arc<Room>,
    pub(crate) refusals: Arc<Refusals>,
    /// The log position up to which the log is purged while no snapshot of this disk is whole.
    pub(crate) lost_before: Option<LogPos>,
    pub(crate) mended: Mended,
    /// The highest index that this life of the process knew to be committed.
    pub(crate) committed_seen: AtomicU64,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) calls: Calls,
    pub(crate) proposer: Proposer,
    pub(crate) forwards: Forwards,
    pub(crate) lanes: OnceLock<Lanes>,
    pub(crate) stamps: Stamps,
    pub(crate) fsync: Arc<Mutex<crate::face::Histogram>>,
    /// One snapshot is received at a time.
    pub(crate) receiving: tokio::sync::Mutex<()>,
    /// One backup is taken at a time.
    pub(crate) backing_up: Arc<tokio::sync::Mutex<()>>,
    /// One membership change is under way at a time.
    pub(crate) changing: Arc<tokio::sync::Mutex<()>>,
    /// When this leader last looked for a member at a new address.
    pub(crate) looked_for_moved: Mutex<Option<Instant>>,
    pub(crate) leader_changes: AtomicU64,
    /// How often this process stood still ([`crate::stalls`]).
    pub(crate) process_stalls: AtomicU64,
    /// The id of the leader that this process knew last; 0 before the first.
    pub(crate) leader_known_last: AtomicU64,
    /// Cancelled when the node begins to stop.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when Raft has ended: the node port closes.
    pub(crate) stopped: CancellationToken,
    /// What a node without a cluster waits for.
    pub(crate) waiting: watch::Sender<String>,
    /// Who this node is to its peers, from the first time that Raft began.
    pub(crate) identity: OnceLock<Arc<PeerIdentity>>,
    /// The present Raft; none before the first one, and between one that ended on a full disk and the next.
    pub(crate) member: ArcSwapOption<(Arc<PeerIdentity>, Raft)>,
    pub(crate) life: Mutex<LifeEnd>,
    pub(crate) heard: Mutex<Heard>,
    pub(crate) judge: Mutex<crate::ready::Judge>,
    /// The highest feature level that this node proposed.
    pub(crate) level_proposed: AtomicU32,
    /// Why this disk is no member any more, and since when it was told so.
    pub(crate) outcast: Mutex<Option<(String, Instant)>>,
    pub(crate) failed: watch::Sender<Option<String>>,
}

/// How long a stop takes at most, as far as it can be helped, when nobody says.
const STOP_BUDGET: Duration = Duration::from_secs(10);

/// What was amiss with snapshots, counted.
#[derive(Debug, Default)]
pub(crate) struct Mended {
    pub(crate) set_aside: AtomicU64,
    pub(crate) fetched: AtomicU64,
}

/// What this node heard of a leader.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) at: Option<Instant>,
    pub(crate) commit: Option<u64>,
}

/// This node's wall clock.
pub(crate) fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

impl Inner {
    /// Who this node is to its peers and its Raft, once it belongs to a cluster.
    pub(crate) fn member(&self) -> Option<(Arc<PeerIdentity>, Raft)> {
        self.member.load().as_ref().map(|member| member.as_ref().clone())
    }

    /// Why there is no Raft to ask.
    pub(crate) fn no_raft(&self) -> String {
        let cluster = || format!("this node belongs to no cluster yet: {}", self.readiness().1);
        self.room.trouble().filter(|_| self.identity.get().is_some()).unwrap_or_else(cluster)
    }

    pub(crate) fn metrics(&self) -> Option<RaftMetrics<TypeConfig>> {
        self.member().map(|(_, raft)| raft.metrics().borrow_watched().clone())
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.member().is_some_and(|(_, raft)| raft.metrics().borrow_watched().state == ServerState::Leader)
    }

    pub(crate) fn term(&self) -> u64 {
        self.member().map_or(0, |(_, raft)| raft.metrics().borrow_watched().current_term)
    }

    /// What this node waits for while it belongs to no cluster; never empty.
    pub(crate) fn waiting_for(&self) -> String {
        let waiting = self.waiting.borrow();
        if waiting.is_empty() { "its Raft is being started".into() } else { waiting.clone() }
    }

    /// This node's id and the addresses of all other voters, as far as they are known.
    pub(crate) fn voters_and_addrs(&self) -> Option<(u64, Vec<String>)> {
        let (me, _) = self.member()?;
        let metrics = self.metrics()?;
        let others = metrics.membership_config.membership().voter_ids().filter(|id| *id != me.node_id);
        Some((me.node_id, others.map(|id| self.addr_of(&metrics, id).unwrap_or_default()).collect()))
    }

    /// Answers a peer that wants to found a cluster with this disk.
    pub(crate) async fn answer_promise(
        &self,
        request: wire::PromiseRequest,
    ) -> Result<wire::PromiseResponse, tonic::Status> {
        let asked = request.promise.ok_or_else(|| tonic::Status::invalid_argument("no promise is named"))?;
        let asked = crate::calls::promise_from_wire(asked).map_err(tonic::Status::invalid_argument)?;
        let place = Place::new(&self.config.node_name, &self.config.peers, self.config.bootstrap);
        let founder = self.founder.clone();
        let answer = tokio::task::spawn_blocking(move || founder.answer(&place, &asked))
            .await
            .map_err(|e| tonic::Status::internal(e.to_string()))?;
        Ok(match answer {
            PromiseAnswer::Promised => wire::PromiseResponse { promised: true, ..Default::default() },
            PromiseAnswer::Refused { reason, held } => wire::PromiseResponse {
                promised: false,
                reason,
                held: held.as_ref().map(crate::calls::promise_to_wire),
            },
        })
    }

    /// Ends the process, through its owner: see [`Node::failed`].
    pub(crate) fn fail(&self, why: String) {
        if self.stopping.is_cancelled() {
            return;
        }
        self.failed.send_if_modified(|failed| {
            let first = failed.is_none();
            if first {
                tracing::error!(why, "this node can't go on");
                *failed = Some(why);
            }
            first
        });
    }

    /// Notes that a leader spoke, and what it said is committed.
    pub(crate) fn heard_leader(&self, commit: Option<u64>) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.at = Some(Instant::now());
        heard.commit = heard.commit.max(commit);
    }

    /// Notes how far a peer says that the cluster has committed, without a leader's word.
    pub(crate) fn note_commit(&self, commit: Option<u64>) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.commit = heard.commit.max(commit);
    }

    pub(crate) fn heard(&self) -> Heard {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the newest snapshot reaches that the state has reached too.
    pub(crate) fn snapshot_pos(&self) -> Option<LogPos> {
        // One that was received lies on the disk before it is the state.
        let applied = self.core.published.summary().applied.map_or(0, |pos| pos.index);
        let generations = self.snapshots.generations();
        let reached = generations.iter().filter_map(|generation| generation.manifest().last);
        reached.filter(|pos| pos.index <= applied).max_by_key(|pos| pos.index)
    }

    pub(crate) fn snapshot_index(&self) -> u64 {
        self.snapshot_pos().map_or(0, |pos| pos.index)
    }

    /// The index of the older of two kept generations; `None` while there is only one, so that it is never alone.
    pub(crate) fn oldest_snapshot_index(&self) -> Option<u64> {
        let generations = self.snapshots.generations();
        generations.get(1)?.manifest().last.map(|pos| pos.index)
    }

    /// The parameters that this node would have, at the cluster's feature level: that one is raised by itself.
    pub(crate) fn wanted_meta(&self, current: &ClusterMeta) -> ClusterMeta {
        ClusterMeta { feature_level: current.feature_level, ..self.config.meta.clone() }
    }

    /// Proposes for a driver: true when it was committed and another one of its kind would find more to do.
    pub(crate) async fn propose_quietly(&self, command: Command) -> bool {
        match tokio::time::timeout(self.config.timing.propose_timeout, self.propose_here(command, 256)).await {
            Ok(Ok(done)) => done.reply.wants_sweep,
            // The next leader's driver, or the next tick, does it.
            Ok(Err(refusal)) => {
                tracing::debug!(?refusal, "a background proposal was not committed");
                false
            }
            Err(_) => false,
        }
    }

    /// The address of a member's node port, as this node reaches it.
    pub(crate) fn addr_of(&self, metrics: &RaftMetrics<TypeConfig>, id: u64) -> Option<String> {
        let node = metrics.membership_config.membership().get_node(&id)?;
        Some(self.dialer.addr(&node.name, &node.addr))
    }
}

impl Node {
    /// Takes deltas in at once, in order behind everything submitted before for the same replica, and gives a future
    /// that resolves when they are committed by a quorum and applied on this node, with the log index. Dropping the
    /// future takes nothing back.
    pub fn submit(
        &self,
        deltas: Vec<Delta>,
    ) -> impl Future<Output = Result<u64, SubmitError>> + Send + 'static + use<> {
        let refusal = self.inner.exile().map(SubmitError::Unavailable).or_else(|| self.inner.no_room());
        let lanes = self.inner.lanes.get().filter(|_| !self.inner.stopping.is_cancelled());
        let entered = match (lanes, refusal) {
            (Some(lanes), None) => Ok(lanes.submit(deltas)),
            (Some(_), Some(refusal)) => Err(refusal),
            (None, _) => Err(SubmitError::Unavailable("this node is stopping".into())),
        };
        async move { entered?.await }
    }

    /// Proposes one command through the leader and returns its log index once it is committed and applied here.
    pub async fn propose(&self, command: Command) -> Result<u64, SubmitError> {
        self.propose_by(command, None).await.map(|done| done.index)
    }

    /// The same for a caller who waits no longer than until `due`, if it said so.
    pub(crate) async fn propose_by(&self, command: Command, due: Option<Instant>) -> Result<Done, SubmitError> {
        if let Some(refusal) = self.inner.no_room() {
            return Err(refusal);
        }
        let own = Instant::now() + self.inner.config.timing.propose_timeout;
        let until = due.map_or(own, |due| own.min(due));
        let bytes = record::encode_forward(&command).map_or(0, |bytes| bytes.len());
        let done = lanes::carry_until(&*self.inner, command, bytes, until).await?;
        match self.inner.applied(done.index, until).await {
            true => Ok(done),
            false => Err(SubmitError::Unavailable("committed, but not applied on this node in time".into())),
        }
    }

    /// The index as it is now: one load of a pointer. It changes under the caller as entries are applied, and is
    /// another one after a snapshot was installed.
    pub fn view(&self) -> Arc<View> {
        self.published().view.load_full()
    }

    /// Cluster time in microseconds since the Unix epoch; never runs backwards on one node. Cheap.
    pub fn now_us(&self) -> u64 {
        self.published().now_us()
    }

    fn published(&self) -> &Published {
        &self.inner.core.published
    }

    /// Highest log index applied here. Cheap.
    pub fn applied_index(&self) -> u64 {
        self.published().applied_index()
    }

    /// The cluster that this node belongs to. Cheap.
    pub fn cluster_id(&self) -> Option<u128> {
        self.inner.identity.get().map(|me| me.cluster_id)
    }

    /// Milliseconds since this node last knew that it was current: on a follower, since a leader spoke; on the
    /// leader, since a quorum did; before the first time, since it started.
    pub fn stale_ms(&self) -> u64 {
        self.inner.stale_ms()
    }

    /// Sizes of the index.
    pub fn totals(&self) -> Totals {
        self.published().summary().totals
    }

    /// True while this node leads. Cheap.
    pub fn leads(&self) -> bool {
        self.inner.is_leader()
    }

    /// The digest at a log index that is still remembered, or the latest.
    pub fn digest(&self, index: Option<u64>) -> Option<(u64, u128)> {
        match index {
            Some(index) => self.published().digest_at(index).map(|digest| (index, digest)),
            None => self.published().latest_digest(),
        }
    }

    /// Resolves with the reason when this node can't go on and its process must end.
    pub async fn failed(&self) -> String {
        let mut failed = self.inner.failed.subscribe();
        match failed.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether this node is ready to answer, and why not.
    pub fn readiness(&self) -> (bool, String) {
        self.inner.readiness()
    }

    /// This node's view of itself and the cluster.
    pub fn status(&self) -> NodeStatus {
        self.inner.status()
    }

    /// Figures for /metrics.
    pub fn figures(&self) -> NodeFigures {
        let evictions = self.published().summary().evictions;
        NodeFigures {
            fsync: self.inner.fsync.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            proposal: self.inner.proposer.latency(),
            evictions_lru_cap: evictions.lru_cap,
            evictions_lfu_cap: evictions.lfu_cap,
            evictions_lru_ttl: evictions.lru_ttl,
            evictions_lfu_ttl: evictions.lfu_ttl,
            tenant_evictions: evictions.over_quota.into_iter().collect(),
        }
    }

    /// [`Node::stop_within`] ten seconds.
    pub async fn stop(&self) {
        self.stop_within(STOP_BUDGET).await;
    }

    /// Hands leadership over if this node has it, answers what was taken in, ends Raft and closes the log. All but the
    /// last, which syncs, is given up when its share of `budget` is over.
    pub async fn stop_within(&self, budget: Duration) {
        self.inner.stop(budget).await;
    }
}
