//! Replication: the only crate that names openraft. It joins submitted deltas into log entries, has them committed by
//! a quorum's disks, applies them to the index on every node, and keeps the membership.
//!
//! Where to look: [`node`] for the face, `start` for how a node comes up, `lanes` and `proposer` for the way of a
//! write, `core` for the thread that owns the index, `log` and `machine` for openraft's seams, `network` and `service`
//! for the two ends of the node port, `pipeline` for the stream of log entries between them, [`membership`] for who
//! belongs to the cluster, [`backup`] for a state as a file.

mod admin;
mod ambient;
pub mod backup;
mod calls;
mod carry;
mod core;
mod deaf;
mod dial;
mod disk;
mod drivers;
pub mod face;
mod features;
mod fetch;
mod flights;
mod forwards;
mod generation;
mod guests;
mod join;
mod lanes;
mod late;
mod leaderless;
mod life;
mod log;
mod machine;
mod margin;
pub mod membership;
mod moved;
mod network;
pub mod node;
mod operate;
mod orders;
mod outcast;
mod pipeline;
mod proposer;
mod ready;
mod record;
pub mod recover;
mod reopen;
mod room;
mod service;
mod stalls;
mod stamp;
mod start;
mod status;
mod step_aside;
mod stop;
pub mod tls;
mod types;

pub use face::{
    BootstrapMode, DiskCondition, Histogram, Limits, MemberStatus, NodeConfig, NodeFigures, NodeStatus, Peer, Role,
    SubmitError, Timing,
};
pub use node::Node;
pub use record::{FEATURE_MAX, decode_command, encode_command};
pub use start::StartError;

#[cfg(test)]
#[expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so by panicking")]
mod fixture_tests;
#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod suite;
