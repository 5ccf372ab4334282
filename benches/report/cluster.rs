//! Three nodes of `prefixd dev` on ports that were free a moment ago, and what the system and the nodes say of them.

use super::figures::Fault;
use super::metrics;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
/// Ports that three nodes take from their base on.
const PORTS: u16 = 24;

/// The cluster, ended with the bench.
pub struct Cluster {
    dev: Child,
    base: u16,
    dir: tempfile::TempDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The nodes ask the kernel to end with it.
        let _ = self.dev.kill();
        let _ = self.dev.wait();
    }
}

impl Cluster {
    /// Three empty nodes, ready.
    pub fn start() -> Result<Self, Fault> {
        let dir = tempfile::tempdir()?;
        let base = free_ports()?;
        let mut dev = Command::new(env!("CARGO_BIN_EXE_prefixd"))
            .args(["dev", "--nodes=3", &format!("--base-port={base}")])
            .arg(format!("--data-dir={}", dir.path().display()))
            .args(["--", "--log-level=warn"])
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(dev.stdout.take().ok_or("no output")?).lines();
        let (said, ready) = mpsc::channel();
        std::thread::spawn(move || {
            // Read to the end, so that nobody waits for a full pipe.
            for line in lines.map_while(Result::ok) {
                if line.contains("nodes are ready") {
                    let _ = said.send(());
                }
            }
        });
        let cluster = Self { dev, base, dir };
        ready.recv_timeout(PATIENCE).map_err(|_| "three nodes were not ready in time")?;
        Ok(cluster)
    }

    /// gRPC address of a node.
    pub fn grpc(&self, node: u16) -> String {
        format!("127.0.0.1:{}", self.base + 10 * node)
    }

    /// Where all nodes keep their data.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// The sum of a metric's series on a node.
    pub fn metric(&self, node: u16, name: &str) -> Result<f64, Fault> {
        metrics::sum(&format!("http://127.0.0.1:{}/metrics", self.base + 10 * node + 1), name)
    }

    /// CPU time that a node's live threads have taken.
    pub fn cpu(&self, node: u16) -> Result<Duration, Fault> {
        let mut spent = Duration::ZERO;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.process(node)?))? {
            // A thread may end between the listing and the look.
            let stat = std::fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
            spent += Duration::from_nanos(stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0));
        }
        Ok(spent)
    }

    fn process(&self, node: u16) -> Result<u32, Fault> {
        let name = format!("n{node}");
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.dev.id()))? {
            let children = std::fs::read_to_string(thread?.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace() {
                let command = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
                if command.split('\0').any(|argument| argument == name) {
                    return Ok(child.parse()?);
                }
            }
        }
        Err(format!("{name} has ended").into())
    }
}

/// The first of so many neighbouring ports that nobody has.
fn free_ports() -> Result<u16, Fault> {
    let first = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().min(u16::MAX - PORTS);
    let free = |base: u16| (base..base + PORTS).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    let below = (20_000..first).rev().step_by(usize::from(PORTS));
    below.take(100).find(|base| free(*base)).ok_or_else(|| "no free ports".into())
}
