//! The node: configuration, the gRPC and HTTP edges, telemetry, and the command line. Everything that replicates is in
//! prefixd-raft, everything that decides an answer is in prefixd-index.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test may panic"))]

pub mod auth;
pub mod cli;
pub mod config;
pub mod ctl;
pub mod environment;
pub mod grpc;
pub mod http;
pub mod metrics;
pub mod policy_file;
pub mod ports;
pub mod security;
pub mod serve;
pub mod telemetry;
mod threads;
pub mod tls;
pub mod vitals;
pub mod watched;

#[cfg(test)]
mod tests;
