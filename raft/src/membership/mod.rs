//! Who belongs to the cluster, how a disk comes to belong to it, and what time it is there.
//!
//! This folder owns the founding of a cluster, the way in for an empty disk, readiness, and cluster time. What is
//! decided is decided by pure functions of what was seen ([`decide`], [`plan`], [`Readiness`], [`Stamper`]); the
//! loops around them ([`Newcomer::establish`], [`Newcomer::become_voter`]) only ask, write and wait. It must never let two clusters come
//! out of one peer list, never found one where a member of an older one may be alive, and it names no type of the
//! consensus library: the node translates.
//!
//! Where to look: [`decide`] for the rules of founding and why they are safe, [`founder`] for what a disk may promise,
//! [`establish`] for the loop, [`join_plan`] for the leader's side of joining, [`orders`] for what operators may ask,
//! [`recovery`] and [`outcast`] for disks whose cluster is lost or has gone on without them, [`features`] for what may be
//! written.

pub mod clock;
pub mod decide;
pub mod establish;
pub mod features;
pub mod founder;
pub mod join_plan;
pub mod joining;
pub mod member;
pub mod orders;
pub mod outcast;
pub mod pace;
pub mod peers;
pub mod promise;
pub mod readiness;
pub mod recovery;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod simulation;

pub use clock::{ClusterClock, Stamper, median_wall_us};
pub use decide::{Action, Answers, DiskState, Place, decide};
pub use establish::{Established, Newcomer, NotEstablished};
pub use features::level_to_propose;
pub use founder::{Disk, DiskFailure, Founder};
pub use join_plan::{JoinStep, JoinView, ghosts, plan};
pub use joining::must_join;
pub use member::Member;
pub use orders::{Candidate, Decision, Order, Roster, obey};
pub use outcast::{Sighting, cast_out};
pub use pace::Pace;
pub use peers::{JoinAnswer, JoinAsk, PeerAnswer, Peers, PromiseAnswer, Standing};
pub use promise::Promise;
pub use readiness::{Observed, Readiness, ReadinessLimits, Verdict};
pub use recovery::{Outlook, Sign, outlook};
