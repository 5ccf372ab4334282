//! Threads that serve ports. Each drives a runtime of its own, and a connection stays on one of them for good: the
//! task that reads a connection and the tasks of its calls take turns on one thread, so that a call wakes nobody, moves
//! between no cores, and its headers, message and trailers leave in one write. What waits (commits, timers) may be
//! elsewhere; what blocks must not be here. The node itself, its Raft and the connections of its peers have the thread that
//! `main` gives them, so that no client holds up a heartbeat.

use std::io;
use std::thread::{Builder, available_parallelism};
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A thread, ended when this is dropped. Whatever runs on it then is dropped as well.
pub(crate) struct PortThread {
    handle: Handle,
    _end: DropGuard,
}

impl PortThread {
    /// One of this name.
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let end = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (handle, ended) = (runtime.handle().clone(), end.clone());
        Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(ended.cancelled_owned()))?;
        Ok(Self { handle, _end: end.drop_guard() })
    }

    /// As many as the process may use cores.
    pub(crate) fn start_one_a_core(name: &str) -> io::Result<Vec<Self>> {
        let threads = available_parallelism().map_or(1, usize::from);
        (0..threads).map(|n| Self::start(&format!("{name}-{n}"))).collect()
    }

    /// Its runtime.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}
