//! Replication: the only crate that names openraft. It joins submitted deltas into log entries, has them committed by
//! a quorum's disks, applies them to the index on every node, and keeps the membership.

pub mod face;

pub use face::{
    BootstrapMode, Bound, Histogram, Limits, MemberStatus, NodeConfig, NodeFigures, NodeStatus, Peer, Role,
    SubmitError, Timing,
};
use prefixd_index::command::Command;
use prefixd_index::delta::Delta;

/// A running node: cheap to clone, all clones are the same node.
#[derive(Clone)]
pub struct Node;

impl Node {
    /// Takes deltas in, in order behind everything submitted before for the same replica, and returns once they are
    /// committed by a quorum and applied on this node. Returns the log index.
    pub async fn submit(&self, _deltas: Vec<Delta>) -> Result<u64, SubmitError> {
        Err(SubmitError::Unavailable("not started".into()))
    }

    /// Proposes one command through the leader and returns its log index once it is committed and applied here.
    pub async fn propose(&self, _command: Command) -> Result<u64, SubmitError> {
        Err(SubmitError::Unavailable("not started".into()))
    }

    /// This node's view of itself and the cluster.
    pub fn status(&self) -> NodeStatus {
        NodeStatus::default()
    }

    /// Figures for /metrics.
    pub fn figures(&self) -> NodeFigures {
        NodeFigures::default()
    }

    /// Cluster time in microseconds since the Unix epoch; never runs backwards on one node. Cheap.
    pub fn now_us(&self) -> u64 {
        0
    }
}
