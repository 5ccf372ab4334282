//! The command line: one binary, one subcommand a purpose. Each subcommand brings its own `Args` and an async `run`
//! that returns the exit code: 0 for success, 1 for failure, 2 for a wrong use.

use crate::config::ServeArgs;
use crate::{ctl, serve};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// prefixd: a persistent, replicated prefix index that tells LLM gateways which replica holds a prompt's KV cache.
#[derive(Debug, Parser)]
#[command(name = "prefixd", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What prefixd can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one node; with no flags, a cluster of one on loopback.
    Serve(Box<ServeArgs>),
    /// Ask a node how it is, by its node port.
    Ctl(ctl::Args),
}

/// Runs one subcommand to its end.
pub async fn run(command: Command) -> ExitCode {
    match command {
        Command::Serve(args) => serve::run(*args).await,
        Command::Ctl(args) => ctl::run(args).await,
    }
}
