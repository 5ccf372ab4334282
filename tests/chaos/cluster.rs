//! A cluster of `prefixd serve` processes and what a test does to it. What is sent to it and what must hold meanwhile is
//! in [`crate::load`] and [`crate::watcher`].

use crate::proxy::{Proxy, link_addr};
use prefixd_proto::admin::admin_client::AdminClient;
use prefixd_proto::admin::{DigestRequest, StatusRequest, StatusResponse};
use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// Longest wait for a condition that a healthy cluster reaches in a second or two; CI machines stall.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// Addresses of one cluster.
const PLACE_HOSTS: u32 = 16;
static TAKEN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// One node: its place, whether it runs or not.
pub struct Node {
    pub name: String,
    pub host: String,
    pub dir: PathBuf,
    /// What its ports are bound to, if not the host.
    pub bind: Option<String>,
    /// The command that its own is the end of: what puts it into other namespaces than the test's.
    pub behind: Vec<String>,
    /// Its `--peers`; none are given when there are none.
    pub peers: Vec<String>,
    pub flags: Vec<String>,
    /// Environment of its next process.
    pub env: Vec<(String, String)>,
    child: Option<Child>,
    starts: u32,
}

/// Addresses that no other cluster of this process has while this value lives.
pub struct Place(u32);

impl Place {
    /// The lowest that is free.
    pub fn take() -> Arc<Self> {
        let mut taken = TAKEN.lock().unwrap();
        let free = (0..254 / PLACE_HOSTS).find(|place| !taken.contains(place)).expect("fifteen clusters at a time");
        taken.insert(free);
        Arc::new(Self(free))
    }

    /// An address of 127.0.0.0/8 that no other test process uses, nor another cluster of this one.
    pub fn host(&self, node: u32) -> String {
        assert!(node < PLACE_HOSTS, "a place has {PLACE_HOSTS} addresses");
        let process = std::process::id();
        let (high, low) = (1 + process / 200 % 250, 1 + process % 200);
        format!("127.{high}.{low}.{}", 1 + self.0 * PLACE_HOSTS + node)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        TAKEN.lock().unwrap().remove(&self.0);
    }
}

/// Nodes of one test, ended when it ends.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub place: Arc<Place>,
    root: TempDir,
}

impl Cluster {
    /// Nodes named n0.. that all know each other; none runs yet.
    pub fn new(size: u32, flags: &[&str]) -> Self {
        let lists: Vec<Vec<u32>> = (0..size).map(|_| (0..size).collect()).collect();
        Self::with_lists(&lists, flags)
    }

    /// One node a list; each list holds the numbers of the nodes that it is started with as peers.
    pub fn with_lists(lists: &[Vec<u32>], flags: &[&str]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let place = Place::take();
        let nodes = lists.iter().zip(0..).map(|(list, i)| Node {
            name: format!("n{i}"),
            host: place.host(i),
            dir: root.path().join(format!("n{i}")),
            bind: None,
            behind: Vec::new(),
            peers: list.iter().map(|j| format!("n{j}={}:9091", place.host(*j))).collect(),
            flags: flags.iter().map(ToString::to_string).collect(),
            env: Vec::new(),
            child: None,
            starts: 0,
        });
        Self { nodes: nodes.collect(), place, root }
    }

    /// Nodes that reach each other through a proxy.
    pub fn proxied(size: u32, flags: &[&str], seed: u64) -> (Self, Proxy) {
        let mut cluster = Self::new(size, flags);
        let hosts: Vec<String> = cluster.nodes.iter().map(|node| node.host.clone()).collect();
        for (i, node) in cluster.nodes.iter_mut().enumerate() {
            let addr = |to: usize| if to == i { format!("{}:9091", node.host) } else { link_addr(&node.host, to) };
            node.peers = (0..hosts.len()).map(|to| format!("n{to}={}", addr(to))).collect();
        }
        (cluster, Proxy::new(&hosts, seed))
    }

    /// Starts every node that does not run.
    pub fn start_all(&mut self) {
        self.nodes.iter_mut().for_each(Node::start);
    }

    /// Sends SIGKILL to all, as a power cut would end them: none sees another's end.
    pub fn kill_all(&mut self) {
        self.nodes.iter().for_each(|node| node.signal(Signal::KILL));
        self.nodes.iter_mut().for_each(Node::kill);
    }

    /// Waits until every running node is ready and knows the same leader.
    pub async fn settle(&mut self) -> Vec<StatusResponse> {
        let began = Instant::now();
        loop {
            let mut statuses = Vec::new();
            for node in self.nodes.iter_mut().filter(|node| node.child.is_some()) {
                node.assert_runs();
                statuses.extend(node.status().await);
            }
            let running = self.nodes.iter().filter(|node| node.child.is_some()).count();
            // The leader must be one that runs: survivors name a dead one until their election timeout.
            let leader = statuses.iter().find(|status| status.role == "leader").map(|status| status.node_id);
            if statuses.len() == running
                && leader.is_some()
                && statuses.iter().all(|status| status.ready && status.leader == leader)
            {
                return statuses;
            }
            assert!(began.elapsed() < PATIENCE, "no settled cluster: {statuses:#?}\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The number of the node that leads.
    pub async fn leader(&mut self) -> usize {
        let statuses = self.settle().await;
        let leader = statuses.iter().find(|status| Some(status.node_id) == status.leader).unwrap();
        self.nodes.iter().position(|node| node.name == leader.node_name).unwrap()
    }

    /// Waits until all nodes have applied the same index, and compares their digests there.
    pub async fn assert_digests_equal(&mut self) -> u64 {
        let began = Instant::now();
        loop {
            let statuses = self.settle().await;
            let index = statuses.iter().map(|status| status.applied_index).min().unwrap();
            let mut digests = Vec::new();
            for node in self.nodes.iter().filter(|node| node.child.is_some()) {
                digests.push(node.digest(index).await);
            }
            // A node that was restarted or got a snapshot may not remember that index: a later one will do.
            if digests.iter().all(Option::is_some) {
                assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "digests differ at {index}: {digests:02x?}");
                return index;
            }
            assert!(began.elapsed() < PATIENCE, "no common index: {digests:02x?}\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until `holds` is true of the status of node `i`.
    pub async fn wait_for(&mut self, i: usize, what: &str, holds: impl Fn(&StatusResponse) -> bool) -> StatusResponse {
        let began = Instant::now();
        loop {
            self.nodes[i].assert_runs();
            let status = self.nodes[i].status().await;
            if let Some(status) = &status
                && holds(status)
            {
                return status.clone();
            }
            assert!(began.elapsed() < PATIENCE, "n{i} never came to {what}: {status:#?}\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The end of each node's log, for a failure's message.
    pub fn logs(&self) -> String {
        self.nodes.iter().map(Node::log_tail).collect()
    }

    /// Fails if any node ever panicked.
    pub fn assert_no_panic(&self) {
        for node in &self.nodes {
            let log = node.log();
            assert!(!log.contains("panicked at"), "{} panicked:\n{}", node.name, node.log_tail());
        }
    }

    /// The test's own directory.
    pub fn root(&self) -> &Path {
        self.root.path()
    }
}

impl Node {
    /// Starts the process unless it runs.
    pub fn start(&mut self) {
        if self.child.is_some() {
            return;
        }
        self.starts += 1;
        std::fs::create_dir_all(&self.dir).unwrap();
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = match self.behind.split_first() {
            None => Command::new(env!("CARGO_BIN_EXE_prefixd")),
            Some((program, arguments)) => {
                // It becomes the node, so its process id is the node's.
                let mut command = Command::new(program);
                command.args(arguments).arg(env!("CARGO_BIN_EXE_prefixd"));
                command
            }
        };
        command.arg("serve").args(["--node-name", &self.name]).arg("--data-dir").arg(&self.dir);
        for (flag, port) in [("grpc", 9090), ("http", 8080), ("internal", 8081), ("node", 9091)] {
            command.arg(format!("--{flag}-addr={}:{port}", self.bind.as_ref().unwrap_or(&self.host)));
        }
        if !self.peers.is_empty() {
            command.arg(format!("--peers={}", self.peers.join(",")));
        }
        command.args(&self.flags).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command.env_remove("PREFIXD_CONFIG").envs(self.env.iter().map(|(name, value)| (name, value)));
        self.child = Some(command.spawn().unwrap());
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Sends a signal to the process, if it runs.
    pub fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).unwrap();
            kill_process(pid, signal).unwrap();
        }
    }

    /// Sends SIGSTOP and waits until no thread of it runs any more: a busy system lets them go on for a while.
    pub async fn freeze(&self) {
        self.signal(Signal::STOP);
        let began = Instant::now();
        while !self.stands_still() {
            assert!(began.elapsed() < PATIENCE, "{} goes on after SIGSTOP", self.name);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn stands_still(&self) -> bool {
        let threads = self.child.as_ref().and_then(|c| std::fs::read_dir(format!("/proc/{}/task", c.id())).ok());
        threads.into_iter().flatten().flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The state follows the name, which may have any character in it.
            stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
        })
    }

    /// Asks it to stop, and waits until it has.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let began = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "{} does not stop:\n{}", self.name, self.log_tail());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// How its process ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().unwrap()?;
        self.child = None;
        Some(status)
    }

    /// Whether a process was started and not yet seen to end.
    pub fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// The memory that its process holds now.
    pub fn resident_bytes(&self) -> u64 {
        let status = self.child.as_ref().and_then(|c| std::fs::read_to_string(format!("/proc/{}/status", c.id())).ok());
        let line = status.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("VmRSS:")));
        line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) << 10
    }

    /// Removes everything that the node ever stored.
    pub fn empty_disk(&mut self) {
        assert!(self.child.is_none(), "kill it first");
        std::fs::remove_dir_all(&self.dir).unwrap();
    }

    /// How often it was started.
    pub fn starts(&self) -> u32 {
        self.starts
    }

    /// Waits until the process ends of its own accord, which must be with a failure.
    pub async fn ends_by_itself(&mut self) {
        let began = Instant::now();
        loop {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
            if let Some(status) = ended {
                assert!(!status.success(), "{} ended as if all were well", self.name);
                self.child = None;
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{} does not end:\n{}", self.name, self.log_tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn assert_runs(&mut self) {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().unwrap());
        assert!(ended.is_none(), "{} ended by itself ({ended:?}):\n{}", self.name, self.log_tail());
    }

    /// Its answer to the status call, if there is one.
    pub async fn status(&self) -> Option<StatusResponse> {
        let mut client = AdminClient::new(channel(&self.host, 9091));
        let answer = tokio::time::timeout(Duration::from_secs(5), client.status(StatusRequest {})).await;
        answer.ok()?.ok().map(tonic::Response::into_inner)
    }

    /// Its digest at a log index, if it remembers it.
    pub async fn digest(&self, index: u64) -> Option<Vec<u8>> {
        let mut client = AdminClient::new(channel(&self.host, 9091));
        let answer = client.digest(DigestRequest { index: Some(index) }).await;
        answer.ok().map(|answer| answer.into_inner().digest)
    }

    /// A client of its public port.
    pub fn client(&self) -> InferenceCacheClient<Channel> {
        InferenceCacheClient::new(channel(&self.host, 9090))
    }

    /// Where it logs to.
    pub fn log_path(&self) -> PathBuf {
        self.dir.with_extension("log")
    }

    /// All that it ever printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        format!(
            "--- {} (started {} times)\n{}\n",
            self.name,
            self.starts,
            lines[lines.len().saturating_sub(40)..].join("\n")
        )
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.iter_mut().for_each(Node::kill);
    }
}

/// A channel to one port of a host; it connects when it is first used.
pub fn channel(host: &str, port: u16) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{host}:{port}")).unwrap();
    endpoint.connect_timeout(Duration::from_secs(2)).connect_lazy()
}
