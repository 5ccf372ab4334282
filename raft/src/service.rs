//! The answering side of the node port. A call that is meant for another cluster or another disk is refused before
//! anything looks at it.

use crate::dial::MAX_NODE_MESSAGE_BYTES;
use crate::face::SubmitError;
use crate::fetch;
use crate::generation;
use crate::node::{Inner, Raft};
use crate::pipeline;
use crate::proposer::Refusal;
use crate::record;
use crate::room;
use crate::types::{TypeConfig, pos_from_wire, vote_from_wire, wire_pos, wire_vote};
use futures::stream::BoxStream;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest};
use prefixd_proto::node as wire;
use prefixd_proto::node::node_server::{Node, NodeServer};
use prefixd_storage::LogPos;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tonic::{Request, Response, Status, Streaming};

/// The service of the node port.
pub(crate) struct NodeService(pub(crate) Arc<Inner>);

/// The service with this house's message limits.
pub(crate) fn server(inner: Arc<Inner>) -> NodeServer<NodeService> {
    NodeServer::new(NodeService(inner))
        .max_decoding_message_size(MAX_NODE_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_NODE_MESSAGE_BYTES)
}

fn bad(what: &str) -> Status {
    Status::invalid_argument(format!("the call carries no usable {what}"))
}

pub(crate) fn ended(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("Raft has ended on this node: {error}"))
}

impl NodeService {
    /// The running Raft, after the header was checked against this node.
    fn admit(&self, header: Option<&wire::PeerHeader>) -> Result<Raft, Status> {
        let header = header.ok_or_else(|| bad("header"))?;
        let (me, raft) = self.0.member().ok_or_else(|| Status::unavailable(self.0.no_raft()))?;
        if header.cluster_id.as_ref() != me.cluster_id.to_be_bytes() {
            return Err(Status::failed_precondition(format!(
                "cluster mismatch: the caller belongs to {}, this node ({}) to {:032x}",
                hex(&header.cluster_id),
                self.0.config.node_name,
                me.cluster_id
            )));
        }
        if header.to != me.node_id {
            return Err(Status::failed_precondition(format!(
                "node mismatch: the call is meant for node id {}, this disk is {}",
                header.to, me.node_id
            )));
        }
        if header.feature_level > self.0.config.feature_max {
            return Err(Status::failed_precondition(format!(
                "feature level mismatch: the cluster is at {}, this node reads up to {}",
                header.feature_level, self.0.config.feature_max
            )));
        }
        let level = me.feature_level.load(Ordering::Relaxed);
        if header.feature_max < level {
            return Err(Status::failed_precondition(format!(
                "feature level mismatch: the cluster is at {level}, the caller reads up to {}",
                header.feature_max
            )));
        }
        Ok(raft)
    }

    /// An append that may go to this node's Raft.
    pub(crate) fn admit_append(
        &self,
        request: wire::AppendEntriesRequest,
    ) -> Result<(Raft, AppendEntriesRequest<TypeConfig>), Status> {
        let raft = self.admit(request.header.as_ref())?;
        let vote = vote_from_wire(request.vote).ok_or_else(|| bad("vote"))?;
        if !request.entries.is_empty() {
            self.has_room()?;
        }
        let entries = request
            .entries
            .into_iter()
            .map(|e| record::entry(LogPos { term: e.term, index: e.index }, e.body.as_ref().into()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        let prev_log_id = pos_from_wire(request.prev);
        let leader_commit = pos_from_wire(request.commit);
        Ok((raft, AppendEntriesRequest { vote, prev_log_id, entries, leader_commit }))
    }

    /// Refuses what would be written, before anything is, while the disk is short of room.
    fn has_room(&self) -> Result<(), Status> {
        let Some(trouble) = self.0.room.trouble() else { return Ok(()) };
        Err(room::refusal(&format!("{}: {trouble}", self.0.config.node_name)))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn peer_status(
        &self,
        _request: Request<wire::PeerStatusRequest>,
    ) -> Result<Response<wire::PeerStatusResponse>, Status> {
        Ok(Response::new(self.0.peer_status()))
    }

    async fn promise(&self, request: Request<wire::PromiseRequest>) -> Result<Response<wire::PromiseResponse>, Status> {
        self.0.answer_promise(request.into_inner()).await.map(Response::new)
    }

    async fn join(&self, request: Request<wire::JoinRequest>) -> Result<Response<wire::JoinResponse>, Status> {
        Ok(Response::new(self.0.answer_join(request.into_inner()).await))
    }

    async fn append_entries(
        &self,
        request: Request<wire::AppendEntriesRequest>,
    ) -> Result<Response<wire::AppendEntriesResponse>, Status> {
        let (raft, rpc) = self.admit_append(request.into_inner())?;
        let leader_commit = rpc.leader_commit;
        let answer = raft.append_entries(rpc).await.map_err(ended)?;
        use wire::append_entries_response::Outcome;
        let mut response = wire::AppendEntriesResponse::default();
        let outcome = match answer {
            AppendEntriesResponse::Success => Outcome::Success,
            AppendEntriesResponse::PartialSuccess(matched) => {
                response.matched = matched.as_ref().map(wire_pos);
                Outcome::Partial
            }
            AppendEntriesResponse::Conflict => Outcome::Conflict,
            AppendEntriesResponse::HigherVote(vote) => {
                response.vote = Some(wire_vote(&vote));
                Outcome::HigherVote
            }
        };
        response.set_outcome(outcome);
        if response.outcome() != Outcome::HigherVote {
            self.0.heard_leader(leader_commit.map(|id| id.index()));
        }
        Ok(Response::new(response))
    }

    type StreamAppendStream = BoxStream<'static, Result<wire::AppendEntriesResponse, Status>>;

    async fn stream_append(
        &self,
        request: Request<Streaming<wire::AppendEntriesRequest>>,
    ) -> Result<Response<Self::StreamAppendStream>, Status> {
        let (_, raft) = self.0.member().ok_or_else(|| Status::unavailable(self.0.no_raft()))?;
        Ok(Response::new(pipeline::serve(Self(self.0.clone()), &raft, request.into_inner())))
    }

    async fn vote(&self, request: Request<wire::VoteRequest>) -> Result<Response<wire::VoteResponse>, Status> {
        let request = request.into_inner();
        let raft = self.admit(request.header.as_ref())?;
        let mut rpc: VoteRequest<TypeConfig> =
            VoteRequest::new(vote_from_wire(request.vote).ok_or_else(|| bad("vote"))?, pos_from_wire(request.last));
        rpc.leadership_transfer = request.leadership_transfer;
        let answer = match request.pre_vote {
            true => raft.pre_vote(rpc).await,
            false => raft.vote(rpc).await,
        }
        .map_err(ended)?;
        Ok(Response::new(wire::VoteResponse {
            vote: Some(wire_vote(&answer.vote)),
            granted: answer.vote_granted,
            last: answer.last_log_id.as_ref().map(wire_pos),
        }))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<wire::SnapshotChunk>>,
    ) -> Result<Response<wire::InstallSnapshotResponse>, Status> {
        let mut chunks = request.into_inner();
        let head = chunks.message().await?.and_then(|chunk| chunk.head).ok_or_else(|| bad("snapshot head"))?;
        let raft = self.admit(head.header.as_ref())?;
        let vote = vote_from_wire(head.vote).ok_or_else(|| bad("vote"))?;
        self.has_room()?;
        let _one_at_a_time = self.0.receiving.lock().await;
        let store = self.0.snapshots.clone();
        let cluster_id = self.0.identity.get().map_or(0, |me| me.cluster_id);
        let file = generation::receive(store, cluster_id, &head.manifest, chunks)
            .await
            .map_err(|e| Status::aborted(format!("the snapshot was not taken in: {e}")))?;
        let meta = file.meta().map_err(|e| Status::aborted(e.to_string()))?;
        let snapshot = openraft::Snapshot { meta, snapshot: file };
        let answer = raft.install_full_snapshot(vote, snapshot).await.map_err(ended)?;
        self.0.heard_leader(None);
        Ok(Response::new(wire::InstallSnapshotResponse { vote: Some(wire_vote(&answer.vote)) }))
    }

    type FetchSnapshotStream = fetch::Chunks;

    async fn fetch_snapshot(
        &self,
        request: Request<wire::FetchSnapshotRequest>,
    ) -> Result<Response<fetch::Chunks>, Status> {
        let request = request.into_inner();
        let raft = self.admit(request.header.as_ref())?;
        let caller = request.header.map_or(0, |header| header.from);
        self.0.serve_snapshot(&raft, caller, request.at_least).await.map(Response::new)
    }

    async fn transfer_leader(
        &self,
        request: Request<wire::TransferLeaderRequest>,
    ) -> Result<Response<wire::TransferLeaderResponse>, Status> {
        let request = request.into_inner();
        let raft = self.admit(request.header.as_ref())?;
        let from = vote_from_wire(request.from).ok_or_else(|| bad("vote"))?;
        let rpc = TransferLeaderRequest::new(from, request.successor, pos_from_wire(request.last));
        let answer = raft.handle_transfer_leader(rpc).await.map_err(ended)?;
        let reason = answer.as_ref().err().map(ToString::to_string).unwrap_or_default();
        Ok(Response::new(wire::TransferLeaderResponse { accepted: answer.is_ok(), reason }))
    }

    async fn forward(&self, request: Request<wire::ForwardRequest>) -> Result<Response<wire::ForwardResponse>, Status> {
        let request = request.into_inner();
        self.admit(request.header.as_ref())?;
        use wire::forward_response::Outcome;
        let mut response = wire::ForwardResponse::default();
        let bytes = request.command.len();
        let outcome = match record::decode_forward(&request.command) {
            Ok(command) => self.0.propose_here(command, bytes).await,
            Err(error) => Err(Refusal::Unreadable(error.to_string())),
        };
        let outcome = match outcome {
            Ok(done) => {
                response.index = done.index;
                response.removed = done.reply.removed;
                response.wants_sweep = done.reply.wants_sweep;
                Outcome::Committed
            }
            Err(Refusal::NotLeader(leader)) => {
                response.leader = leader;
                Outcome::NotLeader
            }
            Err(Refusal::Submit(SubmitError::QueueFull(reason))) => {
                response.reason = reason;
                Outcome::QueueFull
            }
            Err(Refusal::Submit(SubmitError::Unavailable(reason))) => {
                response.reason = reason;
                Outcome::Unavailable
            }
            Err(Refusal::Submit(SubmitError::NoRoom(reason))) => {
                response.reason = reason;
                Outcome::NoRoom
            }
            Err(Refusal::Unreadable(reason)) => {
                response.reason = reason;
                Outcome::Refused
            }
        };
        response.set_outcome(outcome);
        Ok(Response::new(response))
    }
}
