//! What operators may ask of a node, on the node port.

use crate::backup;
use crate::face::{MemberStatus, SubmitError};
use crate::node::Node;
use crate::operate::Ask;
use crate::orders::answered_within;
use prefixd_index::command::Command;
use prefixd_index::policy::PolicySource;
use prefixd_proto::admin as wire;
use prefixd_proto::admin::admin_server::{Admin, AdminServer};
use prefixd_proto::{patience, policy};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

/// Sweeps that one request proposes at most; each removes a slice.
const MAX_SWEEPS: u64 = 100_000;

/// The admin service of one node.
pub(crate) struct AdminService(pub(crate) Node);

/// The service, to be added to a server.
pub(crate) fn server(node: Node) -> AdminServer<AdminService> {
    AdminServer::new(AdminService(node))
}

#[tonic::async_trait]
impl Admin for AdminService {
    type BackupStream = backup::take::Parts;

    async fn status(&self, _request: Request<wire::StatusRequest>) -> Result<Response<wire::StatusResponse>, Status> {
        let status = self.0.status();
        let totals = self.0.totals();
        let members = status.members.iter().map(member_to_wire);
        Ok(Response::new(wire::StatusResponse {
            members: members.collect(),
            node_name: status.node_name,
            node_id: status.node_id,
            cluster_id: status.cluster_id.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default(),
            role: status.role.as_str().into(),
            term: status.term,
            leader: status.leader,
            last_log_index: status.last_log_index,
            committed_index: status.committed_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index,
            purged_index: status.purged_index,
            entries: totals.entries,
            prefixes: totals.prefixes,
            index_bytes: totals.bytes,
            log_bytes: status.log_bytes,
            snapshot_bytes: status.snapshot_bytes,
            digest: status.digest.to_be_bytes().to_vec(),
            ready: status.ready,
            unready_reason: status.unready_reason,
            cluster_time_us: status.cluster_time_us,
            wall_us: status.wall_us,
            feature_level: status.feature_level,
            release: env!("CARGO_PKG_VERSION").into(),
            incarnation: status.incarnation,
        }))
    }

    async fn digest(&self, request: Request<wire::DigestRequest>) -> Result<Response<wire::DigestResponse>, Status> {
        let asked = request.into_inner().index.filter(|index| *index != 0);
        let (index, digest) = self.0.digest(asked).ok_or_else(|| {
            let status = self.0.status();
            Status::not_found(format!(
                "the digest at {} is not remembered here; this node has applied {}",
                asked.unwrap_or(status.applied_index),
                status.applied_index
            ))
        })?;
        Ok(Response::new(wire::DigestResponse { index, digest: digest.to_be_bytes().to_vec() }))
    }

    async fn sweep(&self, request: Request<wire::SweepRequest>) -> Result<Response<wire::SweepResponse>, Status> {
        let due = due(&request);
        let mut response = wire::SweepResponse::default();
        while response.sweeps < MAX_SWEEPS {
            let done = self.0.propose_by(Command::Sweep, due).await.map_err(status_of)?;
            response.sweeps += 1;
            response.entries_removed += done.reply.removed;
            if !done.reply.wants_sweep {
                break;
            }
        }
        Ok(Response::new(response))
    }

    async fn get_policy(
        &self,
        _request: Request<wire::GetPolicyRequest>,
    ) -> Result<Response<wire::GetPolicyResponse>, Status> {
        let view = self.0.view();
        let applied_index = view.published().applied_index;
        let (set, source) = view.policies();
        let pushed = source == PolicySource::Pushed;
        Ok(Response::new(wire::GetPolicyResponse { document: policy::encode(&set), pushed, applied_index }))
    }

    async fn set_policy(
        &self,
        request: Request<wire::SetPolicyRequest>,
    ) -> Result<Response<wire::SetPolicyResponse>, Status> {
        let due = due(&request);
        let document = request.into_inner().document;
        if document.len() > policy::MAX_BYTES {
            return Err(Status::invalid_argument(format!("the document is over {} bytes", policy::MAX_BYTES)));
        }
        let set = policy::decode(document.as_bytes()).map_err(Status::invalid_argument)?;
        let done = self.0.propose_by(Command::SetPolicy(set), due).await.map_err(status_of)?;
        Ok(Response::new(wire::SetPolicyResponse { index: done.index }))
    }

    async fn list_members(
        &self,
        request: Request<wire::ListMembersRequest>,
    ) -> Result<Response<wire::ListMembersResponse>, Status> {
        Ok(Response::new(self.0.inner.list_members(request.into_inner().forwarded).await))
    }

    async fn add_member(&self, request: Request<wire::AddMemberRequest>) -> Changed {
        let patience = patience::of_caller(request.metadata());
        let wire::AddMemberRequest { name, node_addr: addr, forwarded } = request.into_inner();
        self.0.inner.give_order(Ask::Add { name, addr }, forwarded, patience).await.map(Response::new)
    }

    async fn remove_member(&self, request: Request<wire::RemoveMemberRequest>) -> Changed {
        let patience = patience::of_caller(request.metadata());
        let wire::RemoveMemberRequest { member, forwarded } = request.into_inner();
        self.0.inner.give_order(Ask::Remove(member), forwarded, patience).await.map(Response::new)
    }

    async fn promote_member(&self, request: Request<wire::PromoteMemberRequest>) -> Changed {
        let patience = patience::of_caller(request.metadata());
        let wire::PromoteMemberRequest { member, forwarded } = request.into_inner();
        self.0.inner.give_order(Ask::Promote(member), forwarded, patience).await.map(Response::new)
    }

    async fn transfer_leader(&self, request: Request<wire::TransferLeaderRequest>) -> Changed {
        let patience = patience::of_caller(request.metadata());
        let wire::TransferLeaderRequest { to, forwarded } = request.into_inner();
        let to = Some(to).filter(|to| !to.is_empty());
        self.0.inner.give_order(Ask::HandOver(to), forwarded, patience).await.map(Response::new)
    }

    async fn backup(&self, _request: Request<wire::BackupRequest>) -> Result<Response<Self::BackupStream>, Status> {
        self.0.inner.take_backup().map(Response::new)
    }
}

type Changed = Result<Response<wire::ChangeResponse>, Status>;

/// A member for the wire.
pub(crate) fn member_to_wire(member: &MemberStatus) -> wire::MemberStatus {
    wire::MemberStatus {
        node_id: member.node_id,
        name: member.name.clone(),
        node_addr: member.node_addr.clone(),
        voter: member.voter,
        lag: member.lag,
        heard_ms: member.heard_ms,
        ..wire::MemberStatus::default()
    }
}

/// When a call must be answered at the latest for its caller to learn the answer, if the caller said how long it waits.
fn due<T>(request: &Request<T>) -> Option<Instant> {
    patience::of_caller(request.metadata()).map(|patience| Instant::now() + answered_within(patience))
}

fn status_of(error: SubmitError) -> Status {
    match error {
        SubmitError::QueueFull(_) | SubmitError::NoRoom(_) => Status::resource_exhausted(error.to_string()),
        SubmitError::Unavailable(_) => Status::unavailable(error.to_string()),
    }
}
