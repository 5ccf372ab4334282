//! What a node asks of its peers while it has no place in a cluster yet, and what they answer. The network implements
//! [`Peers`]; tests do so without sockets.

use super::member::Member;
use super::promise::Promise;
use crate::face::Peer;
use std::future::Future;
use std::time::Duration;

/// Where a disk stands between empty and member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It belongs to no cluster and has promised nothing.
    Empty,
    /// It has promised to found a cluster and not adopted it yet.
    Promised(Promise),
    /// It has adopted a cluster.
    Member {
        /// The cluster.
        cluster_id: u128,
        /// The members that it knows, itself included once Raft told it so; a founder whose Raft is not initialised
        /// yet gives its founding list.
        members: Vec<Member>,
        /// The leader that it knows.
        leader: Option<u64>,
    },
}

/// A peer's answer to "who are you".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAnswer {
    /// The name under which it was started.
    pub name: String,
    /// The id of its disk.
    pub node_id: u64,
    /// The names of its peer list, itself included, sorted.
    pub peer_names: Vec<String>,
    /// Where its disk stands.
    pub standing: Standing,
}

/// A peer's answer to "make this promise".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromiseAnswer {
    /// The promise is on its disk, durably.
    Promised,
    /// It is not, and won't be.
    Refused {
        /// Why not.
        reason: String,
        /// What it holds instead, if that is why.
        held: Option<Promise>,
    },
}

/// "I want to become a member."
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinAsk {
    /// The disk that asks.
    pub node_id: u64,
    /// The name of its place.
    pub name: String,
    /// host:port of its node port as announced.
    pub addr: String,
    /// The cluster that it means to join.
    pub cluster_id: u128,
    /// It was let in before, and asks to become a voter.
    pub promotion: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinAnswer {
    /// A learner now; it will be promoted when it has caught up.
    Learner,
    /// A voter.
    Voter,
    /// Somebody else leads.
    NotLeader {
        /// Who, if known.
        leader: Option<Member>,
    },
    /// Refused for good.
    Refused {
        /// Why.
        reason: String,
    },
    /// Not now; ask again.
    Busy {
        /// Why not now.
        reason: String,
    },
}

/// Calls to one peer. Every call may fail, with a text for the log; the caller sets the timeout and drops the future
/// when it has passed, in which case the call may still reach the peer, at any time later.
pub trait Peers: Send + Sync {
    /// Who are you and where do you stand.
    fn status(&self, peer: &Peer) -> impl Future<Output = Result<PeerAnswer, String>> + Send;

    /// Make this promise durable, unless you hold another.
    fn promise(&self, peer: &Peer, promise: &Promise) -> impl Future<Output = Result<PromiseAnswer, String>> + Send;

    /// Let me in.
    fn join(&self, peer: &Peer, ask: &JoinAsk) -> impl Future<Output = Result<JoinAnswer, String>> + Send;

    /// Lets time pass. A simulation brings a clock of its own.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(duration)
    }
}
