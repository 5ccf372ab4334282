//! The type configuration of openraft, and the conversions between its types, the disk's and the wire's. Nothing of
//! openraft is ever serialised: its types change between releases, ours do not.

use openraft::RaftTypeConfig;
use openraft::vote::RaftLeaderId;
use prefixd_proto::node as wire;
use prefixd_storage::{LogPos, Vote};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

openraft::declare_raft_types!(
    /// Standard leader ids: at most one leader a term.
    pub TypeConfig:
        D = Proposal,
        R = Reply,
        NodeId = u64,
        Node = MemberNode,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = openraft::impls::TokioRuntime,
);

type LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>;

/// A configuration with these types on whatever runtime: the product's, or the simulation's. What is written over it runs
/// in both.
pub(crate) trait OurConfig:
    RaftTypeConfig<D = Proposal, R = Reply, NodeId = u64, Node = MemberNode, Term = u64, LeaderId = LeaderId>
{
}

impl<C> OurConfig for C where
    C: RaftTypeConfig<D = Proposal, R = Reply, NodeId = u64, Node = MemberNode, Term = u64, LeaderId = LeaderId>
{
}

pub(crate) type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
pub(crate) type RaftVote = openraft::type_config::alias::VoteOf<TypeConfig>;
pub(crate) type Entry = openraft::type_config::alias::EntryOf<TypeConfig>;
pub(crate) type Payload = openraft::type_config::alias::PayloadOf<TypeConfig>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type Membership = openraft::Membership<u64, MemberNode>;
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;

/// An encoded, stamped command: the record body as it lies on disk and travels.
#[derive(Clone, PartialEq, Eq)]
pub struct Proposal(pub Arc<[u8]>);

impl fmt::Debug for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proposal({} bytes)", self.0.len())
    }
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What applying one entry tells the proposer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Entries that the command removed by expiry, quota, cap or purge.
    pub removed: u64,
    /// True when another sweep would find more to do.
    pub wants_sweep: bool,
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removed {}", self.removed)
    }
}

/// A member: the name of its place and the address that it announced.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MemberNode {
    /// The member's name.
    pub name: String,
    /// host:port of its node port; the peer list overrides it.
    pub addr: String,
}

pub(crate) fn log_id(pos: LogPos) -> LogId {
    LogId::new_term_index(pos.term, pos.index)
}

pub(crate) fn log_pos(id: &LogId) -> LogPos {
    LogPos { term: id.committed_leader_id().term, index: id.index() }
}

pub(crate) fn raft_vote(vote: Vote) -> Option<RaftVote> {
    let node = vote.voted_for?;
    Some(match vote.committed {
        true => RaftVote::new_committed(vote.term, node),
        false => RaftVote::new(vote.term, node),
    })
}

pub(crate) fn stored_vote(vote: &RaftVote) -> Vote {
    Vote { term: vote.leader_id.term(), voted_for: Some(*vote.leader_id.node_id()), committed: vote.committed }
}

pub(crate) fn wire_vote(vote: &RaftVote) -> wire::Ballot {
    wire::Ballot { term: vote.leader_id.term(), voted_for: Some(*vote.leader_id.node_id()), committed: vote.committed }
}

pub(crate) fn vote_from_wire(vote: Option<wire::Ballot>) -> Option<RaftVote> {
    let vote = vote?;
    raft_vote(Vote { term: vote.term, voted_for: vote.voted_for, committed: vote.committed })
}

pub(crate) fn wire_pos(id: &LogId) -> wire::LogPos {
    let pos = log_pos(id);
    wire::LogPos { term: pos.term, index: pos.index }
}

pub(crate) fn pos_from_wire(pos: Option<wire::LogPos>) -> Option<LogId> {
    pos.map(|pos| LogId::new_term_index(pos.term, pos.index))
}

/// The members of a membership as the wire shows them, by name.
pub(crate) fn wire_members(membership: &Membership) -> Vec<wire::Member> {
    let voters: BTreeSet<u64> = membership.voter_ids().collect();
    let mut members: Vec<wire::Member> = membership
        .nodes()
        .map(|(id, node)| wire::Member {
            node_id: *id,
            name: node.name.clone(),
            node_addr: node.addr.clone(),
            voter: voters.contains(id),
        })
        .collect();
    members.sort_by(|a, b| (&a.name, a.node_id).cmp(&(&b.name, b.node_id)));
    members
}
