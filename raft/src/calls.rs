//! The calls between nodes that are not Raft's: who are you, promise, let me in. It turns the membership folder's plain
//! values into messages and back, on both ends.

use crate::dial::{Dialer, Purpose};
use crate::face::Peer;
use crate::membership::{JoinAnswer, JoinAsk, Member, PeerAnswer, Peers, Promise, PromiseAnswer, Standing};
use crate::network;
use prefixd_proto::failure::{self, Port};
use prefixd_proto::node as wire;
use prefixd_proto::node::node_client::NodeClient;
use std::sync::Arc;
use tonic::transport::Channel;

/// The calls of one node.
#[derive(Clone)]
pub(crate) struct Calls {
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) node_name: String,
    /// The highest feature level that this node reads.
    pub(crate) feature_max: u32,
}

impl Calls {
    pub(crate) fn client(&self, addr: &str) -> Result<NodeClient<Channel>, String> {
        Ok(network::client(self.dialer.channel(addr, Purpose::Calls)?))
    }

    /// The whole status message, for the clock and for readiness.
    pub(crate) async fn raw_status(&self, addr: &str) -> Result<wire::PeerStatusResponse, String> {
        let request = wire::PeerStatusRequest { node_name: self.node_name.clone() };
        self.client(addr)?.peer_status(request).await.map(tonic::Response::into_inner).map_err(|e| told(&e))
    }
}

/// What a call to a peer that has no answer is told as.
pub(crate) fn told(status: &tonic::Status) -> String {
    failure::told(status, Port::Node)
}

impl Peers for Calls {
    async fn status(&self, peer: &Peer) -> Result<PeerAnswer, String> {
        peer_answer(self.raw_status(&peer.addr).await?)
    }

    async fn promise(&self, peer: &Peer, promise: &Promise) -> Result<PromiseAnswer, String> {
        let request = wire::PromiseRequest { promise: Some(promise_to_wire(promise)) };
        let answer = self.client(&peer.addr)?.promise(request).await.map_err(|e| told(&e))?.into_inner();
        Ok(match answer.promised {
            true => PromiseAnswer::Promised,
            false => {
                PromiseAnswer::Refused { reason: answer.reason, held: answer.held.map(promise_from_wire).transpose()? }
            }
        })
    }

    async fn join(&self, peer: &Peer, ask: &JoinAsk) -> Result<JoinAnswer, String> {
        let member =
            wire::Member { node_id: ask.node_id, name: ask.name.clone(), node_addr: ask.addr.clone(), voter: false };
        let cluster_id = ask.cluster_id.to_be_bytes().to_vec().into();
        let request = wire::JoinRequest {
            member: Some(member),
            feature_max: self.feature_max,
            cluster_id,
            promotion: ask.promotion,
            moved: false,
        };
        let answer = self.client(&peer.addr)?.join(request).await.map_err(|e| told(&e))?.into_inner();
        use wire::join_response::Outcome;
        Ok(match answer.outcome() {
            Outcome::Learner => JoinAnswer::Learner,
            Outcome::Voter => JoinAnswer::Voter,
            Outcome::Refused => JoinAnswer::Refused { reason: answer.reason },
            Outcome::Busy | Outcome::Unspecified => JoinAnswer::Busy { reason: answer.reason },
            Outcome::NotLeader => {
                let leader = answer.leader.and_then(|id| answer.members.into_iter().find(|m| m.node_id == id));
                JoinAnswer::NotLeader { leader: leader.map(member_from_wire) }
            }
        })
    }
}

/// What to answer to a node that wants to join.
pub(crate) fn join_to_wire(answer: JoinAnswer, members: Vec<wire::Member>) -> wire::JoinResponse {
    use wire::join_response::Outcome;
    let mut response = wire::JoinResponse { members, ..Default::default() };
    let outcome = match answer {
        JoinAnswer::Learner => Outcome::Learner,
        JoinAnswer::Voter => Outcome::Voter,
        JoinAnswer::Refused { reason } => {
            response.reason = reason;
            Outcome::Refused
        }
        JoinAnswer::Busy { reason } => {
            response.reason = reason;
            Outcome::Busy
        }
        JoinAnswer::NotLeader { leader } => {
            if let Some(leader) = leader {
                response.leader = Some(leader.node_id);
                response.leader_addr = leader.addr;
            }
            Outcome::NotLeader
        }
    };
    response.set_outcome(outcome);
    response
}

/// A member off the wire.
pub(crate) fn member_from_wire(member: wire::Member) -> Member {
    Member { node_id: member.node_id, name: member.name, addr: member.node_addr, voter: member.voter }
}

/// A member for the wire.
pub(crate) fn member_to_wire(member: &Member) -> wire::Member {
    wire::Member {
        node_id: member.node_id,
        name: member.name.clone(),
        node_addr: member.addr.clone(),
        voter: member.voter,
    }
}

/// A promise for the wire.
pub(crate) fn promise_to_wire(promise: &Promise) -> wire::BootstrapPromise {
    let members = promise.members().iter().map(|(name, node_id)| wire::Member {
        node_id: *node_id,
        name: name.clone(),
        node_addr: String::new(),
        voter: true,
    });
    wire::BootstrapPromise {
        cluster_id: promise.cluster_id().to_be_bytes().to_vec().into(),
        members: members.collect(),
    }
}

/// A promise off the wire; the error says what is wrong with it.
pub(crate) fn promise_from_wire(promise: wire::BootstrapPromise) -> Result<Promise, String> {
    let cluster_id = cluster_id(&promise.cluster_id)?;
    Promise::new(cluster_id, promise.members.into_iter().map(|m| (m.name, m.node_id)).collect())
}

/// A cluster id off the wire.
pub(crate) fn cluster_id(bytes: &[u8]) -> Result<u128, String> {
    let bytes: [u8; 16] = bytes.try_into().map_err(|_| format!("a cluster id of {} bytes", bytes.len()))?;
    Ok(u128::from_be_bytes(bytes))
}

/// A peer's answer off the wire.
pub(crate) fn peer_answer(status: wire::PeerStatusResponse) -> Result<PeerAnswer, String> {
    let standing = match (status.cluster_id.is_empty(), status.promise) {
        (false, _) => Standing::Member {
            cluster_id: cluster_id(&status.cluster_id)?,
            members: status.members.into_iter().map(member_from_wire).collect(),
            leader: status.leader,
        },
        (true, Some(promise)) => Standing::Promised(promise_from_wire(promise)?),
        (true, None) => Standing::Empty,
    };
    Ok(PeerAnswer { name: status.node_name, node_id: status.node_id, peer_names: status.peer_names, standing })
}
