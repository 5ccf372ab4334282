//! A node: what holds its parts together, and the face that the edges use.

use crate::calls::Calls;
use crate::core::{Core, Published};
use crate::dial::Dialer;
use crate::disk::StoredDisk;
use crate::face::{MemberStatus, NodeConfig, NodeFigures, NodeStatus, Role, SubmitError};
use crate::lanes::{self, Carrier, Lanes};
use crate::log::RaftLog;
use crate::machine::Machine;
use crate::membership::{Founder, Place, Promise, PromiseAnswer};
use crate::network::PeerIdentity;
use crate::proposer::{Done, Leadership, Proposer, Refusal};
use crate::record;
use crate::stamp::Stamps;
use crate::types::{TypeConfig, wire_members};
use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{RaftMetrics, ServerState};
use prefixd_index::command::{ClusterMeta, Command};
use prefixd_index::delta::Delta;
use prefixd_index::{Totals, View};
use prefixd_proto::node as wire;
use prefixd_storage::SnapshotStore;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// openraft's handle with this house's types.
pub(crate) type Raft = openraft::Raft<TypeConfig, Machine>;

/// Longest wait for a leader to appear within one try.
const LEADER_WAIT: Duration = Duration::from_millis(200);

/// A running node: cheap to clone, all clones are the same node. It ends by [`Node::stop`] or with the process.
#[derive(Clone)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
}

/// The parts of a node.
pub(crate) struct Inner {
    pub(crate) config: NodeConfig,
    pub(crate) advertise_addr: String,
    pub(crate) incarnation: u64,
    pub(crate) founder: Arc<Founder<StoredDisk>>,
    pub(crate) core: Core,
    pub(crate) log: RaftLog,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) calls: Calls,
    pub(crate) proposer: Proposer,
    pub(crate) lanes: OnceLock<Lanes>,
    pub(crate) stamps: Stamps,
    pub(crate) fsync: Arc<Mutex<crate::face::Histogram>>,
    /// One snapshot is received at a time.
    pub(crate) receiving: tokio::sync::Mutex<()>,
    /// One membership change is under way at a time.
    pub(crate) changing: Arc<tokio::sync::Mutex<()>>,
    pub(crate) leader_changes: AtomicU64,
    /// Cancelled when the node begins to stop.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when Raft has ended: the node port closes.
    pub(crate) stopped: CancellationToken,
    /// What a node without a cluster waits for.
    pub(crate) waiting: watch::Sender<String>,
    pub(crate) member: OnceLock<(Arc<PeerIdentity>, Raft)>,
    pub(crate) heard: Mutex<Heard>,
    pub(crate) judge: Mutex<crate::ready::Judge>,
    pub(crate) failed: watch::Sender<Option<String>>,
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
    pub(crate) fn member(&self) -> Option<(&Arc<PeerIdentity>, &Raft)> {
        self.member.get().map(|(me, raft)| (me, raft))
    }

    fn metrics(&self) -> Option<RaftMetrics<TypeConfig>> {
        self.member().map(|(_, raft)| raft.metrics().borrow_watched().clone())
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.member().is_some_and(|(_, raft)| raft.metrics().borrow_watched().state == ServerState::Leader)
    }

    pub(crate) fn term(&self) -> u64 {
        self.member().map_or(0, |(_, raft)| raft.metrics().borrow_watched().current_term)
    }

    /// What this node waits for while it belongs to no cluster.
    pub(crate) fn waiting_for(&self) -> String {
        self.waiting.borrow().clone()
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

    pub(crate) fn heard(&self) -> Heard {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot_index(&self) -> u64 {
        self.snapshots.latest().and_then(|generation| generation.manifest().last).map_or(0, |pos| pos.index)
    }

    /// The index of the older of two kept generations; `None` while there is only one, so that it is never alone.
    pub(crate) fn oldest_snapshot_index(&self) -> Option<u64> {
        let generations = self.snapshots.generations();
        generations.get(1)?.manifest().last.map(|pos| pos.index)
    }

    /// The parameters that this node would have, at the cluster's feature level or its own, whichever is higher.
    pub(crate) fn wanted_meta(&self, current: &ClusterMeta) -> ClusterMeta {
        let feature_level = self.config.meta.feature_level.max(current.feature_level);
        ClusterMeta { feature_level, ..self.config.meta.clone() }
    }

    /// Proposes for a driver: true when it was committed and another one of its kind would find more to do.
    pub(crate) async fn propose_quietly(&self, command: Command) -> bool {
        match tokio::time::timeout(self.config.timing.propose_timeout, self.proposer.propose(command, 256)).await {
            Ok(Ok(done)) => done.reply.wants_sweep,
            // The next leader's driver, or the next tick, does it.
            Ok(Err(refusal)) => {
                tracing::debug!(?refusal, "a background proposal was not committed");
                false
            }
            Err(_) => false,
        }
    }

    /// Fills in the answer to "who are you".
    pub(crate) fn peer_status(&self) -> wire::PeerStatusResponse {
        let disk = self.founder.state();
        let metrics = self.metrics();
        let summary = self.core.published.summary();
        let mut peer_names: Vec<String> = self.config.peers.iter().map(|peer| peer.name.clone()).collect();
        peer_names.sort();
        let members = match &metrics {
            Some(m) if m.membership_config.membership().nodes().next().is_some() => {
                wire_members(m.membership_config.membership())
            }
            _ => disk.promise.iter().flat_map(Promise::as_members).map(|m| crate::calls::member_to_wire(&m)).collect(),
        };
        let state = self.log.store().state();
        wire::PeerStatusResponse {
            node_name: self.config.node_name.clone(),
            node_id: disk.node_id,
            cluster_id: disk.cluster_id.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default().into(),
            promise: disk.promise.as_ref().map(crate::calls::promise_to_wire),
            peer_names,
            wall_us: wall_us(),
            members,
            leader: metrics.as_ref().and_then(|m| m.current_leader),
            term: metrics.as_ref().map_or(0, |m| m.current_term),
            last_log_index: state.last.map(|pos| pos.index),
            committed_index: state.committed.map(|pos| pos.index),
            applied_index: summary.applied.map(|pos| pos.index),
            feature_level: summary.meta.feature_level,
            feature_max: record::FEATURE_MAX,
            release: env!("CARGO_PKG_VERSION").into(),
            incarnation: self.incarnation,
            cluster_time_us: self.core.published.now_us(),
            ready: self.readiness().0,
        }
    }

    /// The address of a member's node port, as this node reaches it.
    fn addr_of(&self, metrics: &RaftMetrics<TypeConfig>, id: u64) -> Option<String> {
        let node = metrics.membership_config.membership().get_node(&id)?;
        Some(self.dialer.addr(&node.name, &node.addr).to_owned())
    }

    /// One try at a leader that is not this node, given up as soon as another leads.
    async fn forward(&self, leader: u64, command: &Command, until: Instant) -> Result<Done, Refusal> {
        let unavailable = |why: String| Refusal::Submit(SubmitError::Unavailable(why));
        let Some((me, raft)) = self.member() else { return Err(Refusal::NotLeader(None)) };
        let mut watched = raft.metrics();
        let addr = self.addr_of(&watched.borrow_watched(), leader).ok_or(Refusal::NotLeader(None))?;
        let command = record::encode_forward(command).map_err(|e| Refusal::Unreadable(e.to_string()))?;
        let mut client = self.calls.client(&addr).map_err(unavailable)?;
        let mut request =
            tonic::Request::new(wire::ForwardRequest { header: Some(me.header(leader)), command: command.into() });
        request.set_timeout(until.saturating_duration_since(Instant::now()));
        let another_leads = async {
            while watched.changed().await.is_ok() {
                if watched.borrow_watched().current_leader.is_some_and(|id| id != leader) {
                    return;
                }
            }
        };
        let response = tokio::select! {
            response = client.forward(request) => response,
            () = another_leads => return Err(Refusal::NotLeader(None)),
            () = tokio::time::sleep_until(until) => return Err(unavailable("the leader did not answer in time".into())),
        };
        let response = response
            .map_err(|e| unavailable(format!("the leader at {addr}: {:?} {}", e.code(), e.message())))?
            .into_inner();
        use wire::forward_response::Outcome;
        match response.outcome() {
            Outcome::Committed => Ok(Done {
                index: response.index,
                reply: crate::types::Reply { removed: response.removed, wants_sweep: response.wants_sweep },
            }),
            Outcome::NotLeader | Outcome::Unspecified => Err(Refusal::NotLeader(response.leader)),
            Outcome::QueueFull => Err(Refusal::Submit(SubmitError::QueueFull(response.reason))),
            Outcome::Unavailable => Err(unavailable(response.reason)),
            Outcome::Refused => Err(Refusal::Unreadable(response.reason)),
        }
    }
}

impl Leadership for Inner {
    fn raft(&self) -> Option<&Raft> {
        self.member().map(|(_, raft)| raft)
    }

    async fn stamp(&self) -> u64 {
        self.stamps.next(self).await
    }
}

impl Carrier for Inner {
    async fn carry(&self, command: Command, bytes: usize, until: Instant) -> Result<Done, Refusal> {
        let Some((me, raft)) = self.member() else {
            let why = format!("this node belongs to no cluster yet: {}", self.readiness().1);
            return Err(Refusal::Submit(SubmitError::Unavailable(why)));
        };
        let mut watched = raft.metrics();
        let known = watched.borrow_watched().current_leader;
        let leader = match known {
            Some(leader) => leader,
            None => {
                // Whether it changed or the wait was over, the next try looks again.
                let _looked = tokio::time::timeout_at(until.min(Instant::now() + LEADER_WAIT), watched.changed()).await;
                watched.borrow_watched().current_leader.ok_or(Refusal::NotLeader(None))?
            }
        };
        if leader != me.node_id {
            return self.forward(leader, &command, until).await;
        }
        let unavailable = || Refusal::Submit(SubmitError::Unavailable("no quorum took it in time".into()));
        tokio::time::timeout_at(until, self.proposer.propose(command, bytes))
            .await
            .unwrap_or_else(|_| Err(unavailable()))
    }

    async fn applied(&self, index: u64, until: Instant) -> bool {
        let mut applied = self.core.published.applied();
        let reached = tokio::time::timeout_at(until, applied.wait_for(|at| *at >= index)).await;
        matches!(reached, Ok(Ok(_)))
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
        let entered = match self.inner.lanes.get() {
            Some(lanes) if !self.inner.stopping.is_cancelled() => Ok(lanes.submit(deltas)),
            _ => Err(SubmitError::Unavailable("this node is stopping".into())),
        };
        async move { entered?.await }
    }

    /// Proposes one command through the leader and returns its log index once it is committed and applied here.
    pub async fn propose(&self, command: Command) -> Result<u64, SubmitError> {
        self.propose_for(command).await.map(|done| done.index)
    }

    pub(crate) async fn propose_for(&self, command: Command) -> Result<Done, SubmitError> {
        let until = Instant::now() + self.inner.config.timing.propose_timeout;
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
        self.inner.member().map(|(me, _)| me.cluster_id)
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

    /// Hands leadership over if this node has it, ends Raft and closes the log. Takes at most a few seconds.
    pub async fn stop(&self) {
        self.inner.stop().await;
    }
}

impl Inner {
    pub(crate) fn stale_ms(&self) -> u64 {
        let never = self.core.published.mono_us() / 1_000;
        let Some((_, raft)) = self.member() else { return never };
        let millis = |since: Duration| u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state == ServerState::Leader {
            let alone = metrics.membership_config.membership().voter_ids().count() == 1;
            return match metrics.last_quorum_acked {
                _ if alone => 0,
                Some(at) => millis(at.elapsed()),
                None => never,
            };
        }
        self.heard().at.map_or(never, |at| millis(at.elapsed()))
    }

    fn status(&self) -> NodeStatus {
        let disk = self.founder.state();
        let summary = self.core.published.summary();
        let metrics = self.metrics();
        let state = self.log.store().state();
        let (ready, unready_reason) = self.readiness();
        let wall = wall_us();
        let now = self.core.published.now_us();
        let latest = self.snapshots.latest();
        let mut status = NodeStatus {
            node_name: self.config.node_name.clone(),
            node_id: disk.node_id,
            incarnation: self.incarnation,
            cluster_id: disk.cluster_id,
            leader_changes: self.leader_changes.load(Ordering::Relaxed),
            last_log_index: state.last.map_or(0, |pos| pos.index),
            committed_index: state.committed.map_or(0, |pos| pos.index),
            applied_index: summary.applied.map_or(0, |pos| pos.index),
            snapshot_index: self.snapshot_index(),
            purged_index: state.purged.map_or(0, |pos| pos.index),
            log_bytes: self.log.store().stats().disk_bytes,
            snapshot_bytes: latest.as_ref().map_or(0, |generation| generation.bytes()),
            snapshot_age_seconds: latest
                .as_ref()
                .map(|generation| now.saturating_sub(generation.manifest().taken_at_us) / 1_000_000),
            digest: summary.digest,
            cluster_time_us: now,
            wall_us: wall,
            clock_skew_us: i64::try_from(i128::from(wall) - i128::from(now)).unwrap_or(i64::MAX),
            stale_ms: self.stale_ms(),
            ready,
            unready_reason,
            feature_level: summary.meta.feature_level,
            queue_bytes: self.lanes.get().map_or(0, |lanes| lanes.waiting_bytes() as u64),
            disk_free_bytes: prefixd_storage::disk_free_bytes(&self.config.data_dir).unwrap_or(0),
            sweeps: summary.sweeps,
            audit_mismatches: summary.audit_mismatches,
            duplicate_batches: summary.duplicate_batches,
            ..NodeStatus::default()
        };
        if let Some(metrics) = metrics {
            fill_from_raft(&mut status, &metrics, &self.dialer);
        }
        status
    }

    async fn stop(&self) {
        self.stopping.cancel();
        let Some((me, raft)) = self.member() else {
            self.stopped.cancel();
            return;
        };
        self.hand_over(me.node_id, raft).await;
        if let Err(error) = raft.shutdown().await {
            tracing::warn!(%error, "Raft did not end cleanly");
        }
        self.stopped.cancel();
        let store = self.log.store().clone();
        let closed = tokio::task::spawn_blocking(move || store.close()).await;
        match closed {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the log was not closed cleanly"),
            Err(error) => tracing::error!(%error, "closing the log did not return"),
        }
    }

    /// Names a voter that is close behind as the next leader, and waits a moment for it to lead.
    async fn hand_over(&self, own_id: u64, raft: &Raft) {
        let metrics = raft.metrics().borrow_watched().clone();
        if metrics.state != ServerState::Leader {
            return;
        }
        let Some(successor) = successor(own_id, &metrics) else { return };
        if let Err(error) = raft.trigger().transfer_leader(successor).await {
            tracing::warn!(%error, "leadership could not be handed over");
            return;
        }
        let mut watched = raft.metrics();
        let gone = async {
            while watched.borrow_watched().current_leader == Some(own_id) && watched.changed().await.is_ok() {}
        };
        if tokio::time::timeout(self.config.timing.election_max, gone).await.is_err() {
            tracing::warn!(successor, "nobody took leadership over in time");
        }
    }
}

/// The voter that has most of the log.
fn successor(own_id: u64, metrics: &RaftMetrics<TypeConfig>) -> Option<u64> {
    let voters: Vec<u64> = metrics.membership_config.membership().voter_ids().filter(|id| *id != own_id).collect();
    let replication = metrics.replication.as_ref()?;
    voters.into_iter().filter_map(|id| Some((replication.get(&id)?.as_ref()?.index(), id))).max().map(|(_, id)| id)
}

fn fill_from_raft(status: &mut NodeStatus, metrics: &RaftMetrics<TypeConfig>, dialer: &Dialer) {
    let membership = metrics.membership_config.membership();
    status.term = metrics.current_term;
    status.leader = metrics.current_leader;
    status.role = match metrics.state {
        ServerState::Learner => Role::Learner,
        ServerState::Follower => Role::Follower,
        ServerState::Candidate => Role::Candidate,
        ServerState::Leader => Role::Leader,
        ServerState::Shutdown => Role::Unassigned,
    };
    if let Some(committed) = &metrics.local_committed {
        status.committed_index = status.committed_index.max(committed.index());
    }
    status.members = wire_members(membership)
        .into_iter()
        .map(|member| MemberStatus {
            lag: lag(metrics, member.node_id),
            node_id: member.node_id,
            node_addr: dialer.addr(&member.name, &member.node_addr).to_owned(),
            name: member.name,
            voter: member.voter,
        })
        .collect();
}

fn lag(metrics: &RaftMetrics<TypeConfig>, id: u64) -> Option<u64> {
    let last = metrics.last_log_index.unwrap_or(0);
    if metrics.state != ServerState::Leader {
        return None;
    }
    if id == metrics.id {
        return Some(0);
    }
    let matched = metrics.replication.as_ref()?.get(&id)?.as_ref().map_or(0, |pos| pos.index());
    Some(last.saturating_sub(matched))
}
