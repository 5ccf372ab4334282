//! The command line: one binary, one subcommand a purpose. Each subcommand brings its own `Args` and an async `run`
//! that returns the exit code: 0 for success, 1 for failure, 2 for a wrong use.

pub mod backup;
pub mod bench;
pub mod dev;
mod input;
pub mod lookup;
pub(crate) mod print;
pub mod recover;
pub mod replay;
pub mod report;
pub mod restore;
mod scope;
pub mod table;
pub(crate) mod target;
mod wire_json;

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
    /// Ask a node how it is, or give it or its cluster an order, by its node port.
    Ctl(ctl::Args),
    /// Make a cluster of one of this disk, after a quorum was lost for good.
    Recover(recover::Args),
    /// Judge and describe backup files; `prefixd ctl backup` takes them.
    Backup(backup::Args),
    /// Make a new cluster's first data directory of a backup.
    Restore(restore::Args),
    /// Run a cluster of real processes on this machine.
    Dev(dev::Args),
    /// Ask which replicas hold a prompt's prefix.
    Lookup(lookup::Args),
    /// Say what a replica's cache holds.
    Report(report::Args),
    /// Replay a request trace against simulated engines.
    Replay(replay::Args),
    /// Put load on a live cluster and measure it.
    Bench(bench::Args),
}

/// Runs one subcommand to its end.
pub async fn run(command: Command) -> ExitCode {
    match command {
        Command::Serve(args) => {
            dev::exit_with_parent();
            serve::run(*args).await
        }
        Command::Ctl(args) => ctl::run(args).await,
        Command::Recover(args) => recover::run(args).await,
        Command::Backup(args) => backup::run(args).await,
        Command::Restore(args) => restore::run(args).await,
        Command::Dev(args) => dev::run(args).await,
        Command::Lookup(args) => lookup::run(args).await,
        Command::Report(args) => report::run(args).await,
        Command::Replay(args) => replay::run(args).await,
        Command::Bench(args) => bench::run(args).await,
    }
}
