//! The threads of the gRPC port. Each drives a runtime of its own, and a connection stays on one of them for good: the
//! task that reads a connection and the tasks of its calls take turns on one thread, so that a call wakes nobody, moves
//! between no cores, and its headers, message and trailers leave in one write. What waits (commits, timers) may be
//! elsewhere; what blocks must not be here.

use std::io;
use std::thread::Builder;
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The threads, ended when this is dropped. Whatever runs on them then is dropped as well.
pub(super) struct Workers {
    handles: Vec<Handle>,
    _end: DropGuard,
}

impl Workers {
    /// As many as the process may use cores.
    pub(super) fn start() -> io::Result<Self> {
        let end = CancellationToken::new();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let handles = (0..threads).map(|n| start_one(n, end.clone())).collect::<io::Result<_>>()?;
        Ok(Self { handles, _end: end.drop_guard() })
    }

    /// Their runtimes.
    pub(super) fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

fn start_one(n: usize, end: CancellationToken) -> io::Result<Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    Builder::new().name(format!("grpc-{n}")).spawn(move || runtime.block_on(end.cancelled_owned()))?;
    Ok(handle)
}
