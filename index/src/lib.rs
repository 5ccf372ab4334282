//! The deterministic core of prefixd: what producers reported, in an index that answers lookups without a lock, and
//! the pure function that applies the log to it. No async, no IO, no clock, no randomness (see `clippy.toml`).

pub mod command;
pub mod delta;
pub mod policy;
