//! The node: configuration, the gRPC and HTTP edges, telemetry, and the command line. Everything that replicates is in
//! prefixd-raft, everything that decides an answer is in prefixd-index.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test may panic"))]

pub mod config;
pub mod metrics;
