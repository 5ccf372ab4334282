//! The calling side of Raft between nodes: one link a target. Each call carries the cluster and the node that it is
//! meant for, and has a limit in time.

use crate::dial::{Dialer, MAX_NODE_MESSAGE_BYTES, Purpose};
use crate::generation::SnapshotFile;
use crate::pipeline::{self, Appending};
use crate::record;
use crate::room::{self, Refusals};
use crate::types::{
    Entry, MemberNode, RaftVote, TypeConfig, log_pos, pos_from_wire, vote_from_wire, wire_pos, wire_vote,
};
use futures::Stream;
use openraft::AnyError;
use openraft::base::BoxFuture;
use openraft::error::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use prefixd_proto::node as wire;
use prefixd_proto::node::node_client::NodeClient;
use prefixd_storage::SnapshotStore;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Time for a snapshot to be received, loaded and installed, beside its transfer at [`MIN_BULK_RATE`].
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes per second below which a snapshot transfer is given up.
const MIN_BULK_RATE: u64 = 1 << 20;

/// Who this node is to its peers.
#[derive(Debug)]
pub(crate) struct PeerIdentity {
    pub(crate) cluster_id: u128,
    pub(crate) node_id: u64,
    /// The cluster's level, as it is applied here.
    pub(crate) feature_level: AtomicU32,
    /// The highest that this node reads.
    pub(crate) feature_max: u32,
    /// This node leads and hears no quorum: see [`crate::deaf`].
    pub(crate) is_deaf: AtomicBool,
}

impl PeerIdentity {
    pub(crate) fn header(&self, to: u64) -> wire::PeerHeader {
        wire::PeerHeader {
            cluster_id: self.cluster_id.to_be_bytes().to_vec().into(),
            from: self.node_id,
            to,
            feature_level: self.feature_level.load(Ordering::Relaxed),
            feature_max: self.feature_max,
        }
    }
}

/// Makes links.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) me: Arc<PeerIdentity>,
    pub(crate) dialer: Arc<Dialer>,
    /// The limit of an append that carries entries; heartbeats have openraft's own.
    pub(crate) append_timeout: Duration,
    /// Peers that did not answer last time, and whether they refused to: said once when it begins, once when silence
    /// turns into a refusal, which is for an operator to resolve, and once when it ends.
    pub(crate) silent: Arc<Mutex<BTreeMap<u64, bool>>>,
    /// Peers that refuse entries for want of room; likewise said once.
    pub(crate) refusals: Arc<Refusals>,
    /// Where a snapshot that can't be sent is set aside.
    pub(crate) snapshots: Arc<SnapshotStore>,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Link;

    async fn new_client(&mut self, target: u64, node: &MemberNode) -> Link {
        Link { network: self.clone(), target, node: node.clone(), knows_no_stream: false }
    }
}

/// The calls to one target.
pub(crate) struct Link {
    pub(crate) network: Network,
    pub(crate) target: u64,
    node: MemberNode,
    /// The peer runs a release that has no stream for appends.
    pub(crate) knows_no_stream: bool,
}

impl Link {
    pub(crate) fn client(&self, purpose: Purpose) -> Result<NodeClient<Channel>, Unreachable<TypeConfig>> {
        let addr = self.network.dialer.addr(&self.node.name, &self.node.addr);
        let channel = self.network.dialer.channel(&addr, purpose).map_err(|e| Unreachable::new(&AnyError::error(e)))?;
        Ok(client(channel))
    }

    fn header(&self) -> Option<wire::PeerHeader> {
        Some(self.network.me.header(self.target))
    }

    async fn call<T>(
        &self,
        limit: Duration,
        what: &'static str,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Unreachable<TypeConfig>> {
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(response)) => {
                self.answered();
                Ok(response.into_inner())
            }
            Ok(Err(status)) => Err(self.refused(what, &status)),
            Err(_) => Err(self.unanswered(what, limit)),
        }
    }

    pub(crate) fn answered(&self) {
        if self.silent().remove(&self.target).is_some() {
            tracing::info!(peer = self.node.name, "the peer answers again");
        }
    }

    /// What to tell openraft of a call that ended with a status.
    pub(crate) fn refused(&self, what: &'static str, status: &Status) -> Unreachable<TypeConfig> {
        if room::is_refusal(status) {
            return self.failed(what, self.has_no_room(status));
        }
        self.did_not_answer(what, status.code() == Code::FailedPrecondition, crate::calls::told(status))
    }

    /// The same of one that was not answered in time.
    pub(crate) fn unanswered(&self, what: &'static str, limit: Duration) -> Unreachable<TypeConfig> {
        self.did_not_answer(what, false, format!("no answer within {limit:?}"))
    }

    pub(crate) fn failed(&self, what: &'static str, why: impl Display) -> Unreachable<TypeConfig> {
        Unreachable::new(&AnyError::error(format!("{what} to {} ({}): {why}", self.node.name, self.target)))
    }

    fn did_not_answer(&self, what: &'static str, is_refusal: bool, why: String) -> Unreachable<TypeConfig> {
        let said = self.silent().get(&self.target).copied();
        if said.is_none_or(|refused| is_refusal && !refused) {
            self.silent().insert(self.target, is_refusal);
            tracing::warn!(
                peer = self.node.name,
                call = what,
                why,
                "the peer does not answer; said once until it does"
            );
        }
        self.failed(what, why)
    }

    /// It answers, and it refuses on purpose: others are to make the quorum meanwhile.
    fn has_no_room(&self, status: &Status) -> String {
        if self.network.refusals.refused(self.target, Instant::now()) {
            tracing::warn!(
                peer = self.node.name,
                why = status.message(),
                "the peer refuses log entries; said once until it takes them"
            );
        }
        status.message().to_owned()
    }

    pub(crate) fn took_entries(&self) {
        if self.network.refusals.took(self.target) {
            tracing::info!(peer = self.node.name, "the peer takes log entries again");
        }
    }

    fn silent(&self) -> MutexGuard<'_, BTreeMap<u64, bool>> {
        self.network.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn missing(&self, what: &str) -> Unreachable<TypeConfig> {
        Unreachable::new(&AnyError::error(format!("{} answered without {what}", self.node.name)))
    }

    /// What the peer said to an append.
    pub(crate) fn append_answer(
        &self,
        answer: &wire::AppendEntriesResponse,
    ) -> Result<AppendEntriesResponse<TypeConfig>, Unreachable<TypeConfig>> {
        use wire::append_entries_response::Outcome;
        Ok(match answer.outcome() {
            Outcome::Success => AppendEntriesResponse::Success,
            Outcome::Partial => AppendEntriesResponse::PartialSuccess(pos_from_wire(answer.matched)),
            Outcome::Conflict => AppendEntriesResponse::Conflict,
            Outcome::HigherVote => AppendEntriesResponse::HigherVote(
                vote_from_wire(answer.vote).ok_or_else(|| self.missing("its higher vote"))?,
            ),
            Outcome::Unspecified => return Err(self.missing("an outcome")),
        })
    }

    async fn ballot(&self, rpc: VoteRequest<TypeConfig>, option: RPCOption, pre_vote: bool) -> VoteResult {
        let request = wire::VoteRequest {
            header: self.header(),
            vote: Some(wire_vote(&rpc.vote)),
            last: rpc.last_log_id.as_ref().map(wire_pos),
            pre_vote,
            leadership_transfer: rpc.leadership_transfer,
        };
        let mut client = self.client(Purpose::Raft)?;
        let answer = self.call(option.soft_ttl(), "vote", client.vote(request)).await?;
        let vote = vote_from_wire(answer.vote).ok_or_else(|| self.missing("a vote"))?;
        Ok(VoteResponse::new(vote, pos_from_wire(answer.last), answer.granted))
    }
}

type VoteResult = Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>>;

/// A client of the node port with this house's message limits.
pub(crate) fn client(channel: Channel) -> NodeClient<Channel> {
    NodeClient::new(channel)
        .max_decoding_message_size(MAX_NODE_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_NODE_MESSAGE_BYTES)
}

/// An append as it crosses the wire; none from a leader that is to be silent.
pub(crate) fn append_to_wire(
    me: &PeerIdentity,
    target: u64,
    rpc: &AppendEntriesRequest<TypeConfig>,
) -> Result<wire::AppendEntriesRequest, Unreachable<TypeConfig>> {
    if me.is_deaf.load(Ordering::Relaxed) {
        return Err(Unreachable::new(&AnyError::error("this leader hears no quorum and is silent")));
    }
    Ok(wire::AppendEntriesRequest {
        header: Some(me.header(target)),
        vote: Some(wire_vote(&rpc.vote)),
        prev: rpc.prev_log_id.as_ref().map(wire_pos),
        entries: rpc.entries.iter().map(wire_entry).collect::<Result<_, _>>()?,
        commit: rpc.leader_commit.as_ref().map(wire_pos),
    })
}

fn wire_entry(entry: &Entry) -> Result<wire::LogEntry, Unreachable<TypeConfig>> {
    let pos = log_pos(&entry.log_id);
    let body = record::body(&entry.payload).map_err(|e| Unreachable::new(&e))?;
    Ok(wire::LogEntry { term: pos.term, index: pos.index, body: bytes::Bytes::from_owner(body) })
}

impl RaftNetworkV2<TypeConfig> for Link {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let limit = match rpc.entries.is_empty() {
            true => option.soft_ttl(),
            false => self.network.append_timeout,
        };
        let request = append_to_wire(&self.network.me, self.target, &rpc)?;
        let mut client = self.client(Purpose::Raft)?;
        let answer = self.call(limit, "append", client.append_entries(request)).await;
        // It may be started anew as a release that has the stream.
        self.knows_no_stream &= answer.is_ok();
        let answer = answer?;
        if !rpc.entries.is_empty() {
            self.took_entries();
        }
        self.append_answer(&answer).map_err(Into::into)
    }

    fn stream_append<'s, S>(&'s mut self, input: S, option: RPCOption) -> BoxFuture<'s, Appending<'s>>
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        pipeline::append(self, input, option)
    }

    async fn vote(&mut self, rpc: VoteRequest<TypeConfig>, option: RPCOption) -> VoteResult {
        self.ballot(rpc, option, false).await
    }

    async fn pre_vote(&mut self, rpc: VoteRequest<TypeConfig>, option: RPCOption) -> VoteResult {
        self.ballot(rpc, option, true).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: openraft::type_config::alias::SnapshotOf<TypeConfig, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let limit = SNAPSHOT_TIMEOUT + Duration::from_secs(snapshot.snapshot.bytes() / MIN_BULK_RATE);
        let head = wire::SnapshotHead {
            header: self.header(),
            vote: Some(wire_vote(&vote)),
            manifest: snapshot.snapshot.wire_manifest().map_err(|e| Unreachable::new(&e))?.into(),
        };
        let mut client = self.client(Purpose::Bulk)?;
        let chunks = snapshot.snapshot.chunks(head, Some(self.network.snapshots.clone()));
        let sent = self.call(limit, "snapshot", client.install_snapshot(chunks));
        let answer = tokio::select! {
            answer = sent => answer?,
            closed = cancel => return Err(closed.into()),
        };
        self.took_entries();
        let vote = vote_from_wire(answer.vote).ok_or_else(|| self.missing("a vote"))?;
        Ok(SnapshotResponse::new(vote))
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<openraft::raft::TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let request = wire::TransferLeaderRequest {
            header: self.header(),
            from: Some(wire_vote(req.from_leader())),
            successor: *req.to_node_id(),
            last: req.last_log_id().map(wire_pos),
        };
        let mut client = self.client(Purpose::Raft)?;
        let answer = self.call(option.soft_ttl(), "transfer", client.transfer_leader(request)).await?;
        match answer.accepted {
            true => Ok(Ok(())),
            false => Err(Unreachable::new(&AnyError::error(format!("declined: {}", answer.reason))).into()),
        }
    }
}
