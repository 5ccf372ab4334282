//! The life of one child process: its start, its lines on our terminal, its end, orderly or not.

use super::super::print;
use super::PARENT_VARIABLE;
use super::plan::Node;
use crate::environment;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// Longer lines are shown in pieces.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What all children are told, once each.
#[derive(Clone)]
pub struct Orders {
    stop: CancellationToken,
    kill: CancellationToken,
    grace: Duration,
}

/// A running node.
pub struct Child {
    process: tokio::process::Child,
    pid: Option<Pid>,
    output: tokio::task::JoinHandle<()>,
}

/// How a child ended.
#[derive(Debug)]
pub enum End {
    /// By itself or on SIGTERM.
    Exited(ExitStatus),
    /// It did not heed SIGTERM in time, or was not given the time.
    Killed,
    /// It can't be said.
    Unknown(io::Error),
}

impl Orders {
    /// No orders yet; `grace` is the time between SIGTERM and SIGKILL.
    pub fn new(grace: Duration) -> Self {
        Self { stop: CancellationToken::new(), kill: CancellationToken::new(), grace }
    }

    /// Everybody ends, the orderly way first.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Everybody ends now.
    pub fn kill(&self) {
        self.stop.cancel();
        self.kill.cancel();
    }
}

impl Child {
    /// Starts a node. It is a process group of its own, so that Ctrl-C on our terminal reaches us alone and the end is
    /// an orderly one.
    pub fn start(executable: &Path, node: &Node) -> io::Result<Self> {
        let mut process = Command::new(executable)
            .args(&node.arguments)
            .env(PARENT_VARIABLE, std::process::id().to_string())
            .env_remove("PREFIXD_ADDR_FILE")
            .envs(environment::missing(|name| std::env::var_os(name).is_some()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = process.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let lines = (process.stdout.take().map(BufReader::new), process.stderr.take().map(BufReader::new));
        let name = node.name.clone();
        let output = tokio::spawn(async move {
            tokio::join!(show(&name, lines.0), show(&name, lines.1));
        });
        Ok(Self { process, pid, output })
    }

    /// Waits for its end, and brings it about when ordered to. All it wrote is shown by then.
    pub async fn live(mut self, orders: &Orders) -> End {
        let end = tokio::select! {
            status = self.process.wait() => status.map_or_else(End::Unknown, End::Exited),
            () = orders.stop.cancelled() => self.stop(orders).await,
        };
        // A grandchild that keeps the pipe open must not keep us.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.output).await;
        end
    }

    async fn stop(&mut self, orders: &Orders) -> End {
        // Not reaped yet, so the id is still its own; an error means that it is gone.
        let _ = self.pid.map(|pid| kill_process(pid, Signal::TERM));
        tokio::select! {
            status = self.process.wait() => return status.map_or_else(End::Unknown, End::Exited),
            () = tokio::time::sleep(orders.grace) => {}
            () = orders.kill.cancelled() => {}
        }
        match self.process.kill().await {
            Ok(()) => End::Killed,
            Err(error) => End::Unknown(error),
        }
    }
}

impl End {
    /// Whether it ended as it should when asked to.
    pub fn is_clean(&self) -> bool {
        matches!(self, Self::Exited(status) if status.success())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "ended ({status})"),
            Self::Killed => write!(f, "was killed: it did not end in time"),
            Self::Unknown(error) => write!(f, "is lost: {error}"),
        }
    }
}

/// Shows each line with the node's name before it.
async fn show(name: &str, output: Option<BufReader<impl AsyncRead + Unpin>>) {
    let Some(mut output) = output else { return };
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match (&mut output).take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes).await {
            Ok(read_bytes) if read_bytes > 0 => {
                print::line(&format!("{name} | {}", String::from_utf8_lossy(&bytes).trim_end()));
            }
            _ => return,
        }
    }
}
