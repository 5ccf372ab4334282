//! Whole clusters in one thread, by one seed: the real Raft, the real core, lanes, proposer and stamps, over disks that
//! lose what isn't synced, a network that loses and delays, and clocks that are wrong.
//!
//! [`executor`] is time and chance, [`runtime`] what Raft sees of them; [`disk`], [`network`] and [`node`] are what is
//! simulated, with [`reopening`] for disks that were full; [`clients`], [`governor`], [`members`] and [`faults`] are what
//! happens, [`truth`] and [`limits`] what must hold, [`run`] is one seed, `tests` all of them.
//! One seed is one history: a failure names it, and `PREFIXD_SIM_SEED` shows it again. docs/SIMULATION.md says what is
//! covered and what isn't. Nothing in here may ask the real clock, a real disk or a random number that the seed doesn't
//! decide.
#![expect(clippy::unwrap_used, reason = "a simulation that cannot go on says so by panicking")]

mod clients;
mod disk;
mod executor;
mod faults;
mod governor;
mod limits;
mod log;
mod machine;
mod members;
mod network;
mod node;
mod places;
mod reopening;
mod run;
mod runtime;
mod tests;
mod truth;
mod world;

use crate::types::{MemberNode, Proposal, Reply};

openraft::declare_raft_types!(
    /// The product's types on the simulated runtime.
    pub(crate) SimConfig:
        D = Proposal,
        R = Reply,
        NodeId = u64,
        Node = MemberNode,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = runtime::SimRuntime,
);
