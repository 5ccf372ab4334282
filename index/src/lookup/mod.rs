//! The lookup: requests, answers, and the pure decisions on the way from one to the other. It must never change the
//! index. Reading the index itself is in the `view` module.

pub(crate) mod config;
mod request;

pub use config::RankConfig;
pub use request::{LookupAnswer, LookupRequest, Prompt, Reason, ReplicaScore};
