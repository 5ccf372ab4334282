//! The lookup: requests, answers, and the pure decisions on the way from one to the other. It must never change the
//! index. Reading the index itself is in the `view` module.

pub(crate) mod affinity;
pub(crate) mod config;
pub(crate) mod gates;
pub(crate) mod rank;
mod request;
pub(crate) mod resolve;

pub use config::RankConfig;
pub use request::{LookupAnswer, LookupRequest, Prompt, Reason, ReplicaScore};
