//! Replication: the only crate that names openraft. It joins submitted deltas into log entries, has them committed by
//! a quorum's disks, applies them to the index on every node, and keeps the membership.
//!
//! Where to look: [`node`] for the face, `start` for how a node comes up, `lanes` and `proposer` for the way of a
//! write, `core` for the thread that owns the index, `log` and `machine` for openraft's seams, `network` and `service`
//! for the two ends of the node port, [`membership`] for who belongs to the cluster.

mod admin;
mod ambient;
mod calls;
mod carry;
mod core;
mod dial;
mod disk;
mod drivers;
pub mod face;
mod generation;
mod join;
mod lanes;
mod log;
mod machine;
pub mod membership;
mod network;
pub mod node;
mod proposer;
mod ready;
mod record;
mod service;
mod stamp;
mod start;
mod status;
mod stop;
pub mod tls;
mod types;

pub use face::{
    BootstrapMode, Histogram, Limits, MemberStatus, NodeConfig, NodeFigures, NodeStatus, Peer, Role, SubmitError,
    Timing,
};
pub use node::Node;
pub use record::{decode_command, encode_command};
pub use start::StartError;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod suite;
