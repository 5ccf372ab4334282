//! The deterministic core of prefixd: what producers reported, in an index that answers lookups without a lock, and
//! the pure function that applies the log to it. No async, no IO, no clock, no randomness (see `clippy.toml`).

pub mod applied;
mod block_hash;
pub mod command;
pub mod delta;
mod digest;
pub mod engine;
pub mod fingerprint;
mod formula;
pub mod limits;
pub mod lookup;
pub mod policy;
pub mod snapshot;
mod store;
pub mod view;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

pub use applied::{Applied, AuditResult, BatchOutcome, Evictions, Totals};
pub use engine::Index;
pub use lookup::{LookupAnswer, LookupRequest, Prompt, RankConfig, Reason, ReplicaScore};
pub use snapshot::{LoadError, Loader, RecordDigest, SnapshotInfo, SnapshotOverflow, SnapshotRecord, SnapshotSlice};
pub use view::{AnswerRef, CacheState, LookupScratch, ScoreRef, View};
