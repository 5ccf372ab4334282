//! The prefixd binary: reads the command line, runs one subcommand on a Tokio runtime, returns its exit code.

use clap::Parser;
use prefixd::cli::{Cli, Command, run};
use std::io;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Calls allocate small things on one thread and free them there or on another: what the system's allocator keeps in
/// arenas and this one in pages of each thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long threads that still block may hold up the end of the process.
const LINGER: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let runtime = match runtime_for(&command) {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("the runtime could not be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(run(command));
    runtime.shutdown_timeout(LINGER);
    code
}

/// A node has one thread for its Raft, the connections of its peers and what else it does by itself: a write passes through
/// many tasks, and each that runs on another thread than the last costs two switches.
fn runtime_for(command: &Command) -> io::Result<Runtime> {
    let mut builder = match command {
        Command::Serve(_) => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.enable_all().build()
}
