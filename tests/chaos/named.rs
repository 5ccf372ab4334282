//! Names stay, addresses change: every node moves under one unchanged `--peers`, as pods do. The names are in a hosts file
//! of the test's own, which takes a mount namespace; where there can be none, it says so and is skipped.

use crate::cluster::{PATIENCE, Place, channel};
use prefixd_proto::admin::admin_client::AdminClient;
use prefixd_proto::admin::{StatusRequest, StatusResponse};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NODES: u32 = 3;
/// Runs what follows with another /etc/hosts.
const WITH_HOSTS: [&str; 4] = ["-rm", "sh", "-c", "mount --bind \"$HOSTS\" /etc/hosts && exec \"$@\""];

struct Named {
    root: tempfile::TempDir,
    place: std::sync::Arc<Place>,
    /// The number of the address that each node has now.
    at: Vec<u32>,
    children: Vec<Option<Child>>,
}

impl Named {
    fn hosts_path(&self) -> PathBuf {
        self.root.path().join("hosts")
    }

    fn host(&self, i: usize) -> String {
        self.place.host(self.at[i])
    }

    /// Writes the file in place, so that those who have it mounted see it.
    fn publish(&self) {
        let lines: Vec<String> = (0..self.at.len()).map(|i| format!("{} n{i}.prefixd.test\n", self.host(i))).collect();
        std::fs::write(self.hosts_path(), lines.concat()).unwrap();
    }

    fn start(&mut self, i: usize) {
        let peers: Vec<String> = (0..NODES).map(|j| format!("n{j}=n{j}.prefixd.test:9091")).collect();
        let log = File::options().create(true).append(true).open(self.root.path().join(format!("n{i}.log"))).unwrap();
        let mut command = Command::new("unshare");
        command.args(WITH_HOSTS).arg("sh").arg(env!("CARGO_BIN_EXE_prefixd")).arg("serve");
        command.env("HOSTS", self.hosts_path()).env_remove("PREFIXD_CONFIG");
        command.args([format!("--node-name=n{i}"), format!("--peers={}", peers.join(","))]);
        command.arg(format!("--data-dir={}", self.root.path().join(format!("n{i}")).display()));
        for (flag, port) in [("grpc", 9090), ("http", 8080), ("internal", 8081), ("node", 9091)] {
            command.arg(format!("--{flag}-addr={}:{port}", self.host(i)));
        }
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.children[i] = Some(command.spawn().unwrap());
    }

    fn kill(&mut self, i: usize) {
        if let Some(mut child) = self.children[i].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    async fn status(&self, i: usize) -> Option<StatusResponse> {
        let mut client = AdminClient::new(channel(&self.host(i), 9091));
        let answer = tokio::time::timeout(Duration::from_secs(5), client.status(StatusRequest {})).await;
        answer.ok()?.ok().map(tonic::Response::into_inner)
    }

    /// Waits until all nodes are ready and have applied what the leader has.
    async fn settle(&self) -> Vec<StatusResponse> {
        let began = Instant::now();
        loop {
            let mut statuses = Vec::new();
            for i in 0..self.at.len() {
                statuses.extend(self.status(i).await);
            }
            let leader = statuses.iter().find(|status| status.role == "leader");
            if let Some(leader) = leader
                && statuses.len() == self.at.len()
                && statuses.iter().all(|s| s.ready && s.leader == Some(leader.node_id))
                && leader.members.iter().all(|m| m.lag.is_some_and(|lag| lag < 100))
            {
                return statuses;
            }
            assert!(began.elapsed() < PATIENCE, "not settled: {statuses:#?}\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn logs(&self) -> String {
        let read = |i: u32| std::fs::read_to_string(self.root.path().join(format!("n{i}.log"))).unwrap_or_default();
        (0..NODES).map(|i| format!("--- n{i}\n{}\n", read(i))).collect()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        (0..self.children.len()).for_each(|i| self.kill(i));
    }
}

/// Whether this machine lets a test have a hosts file of its own.
fn can_name(hosts: &Path) -> bool {
    let mut command = Command::new("unshare");
    command.args(WITH_HOSTS).args(["sh", "grep", "-q", "prefixd.test", "/etc/hosts"]).env("HOSTS", hosts);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_find_each_other_by_name_wherever_they_move() {
    let mut named = Named {
        root: tempfile::tempdir().unwrap(),
        place: Place::take(),
        at: (0..NODES).collect(),
        children: (0..NODES).map(|_| None).collect(),
    };
    named.publish();
    if !can_name(&named.hosts_path()) {
        println!(
            "CHAOS names | SKIPPED: no mount namespace with a hosts file of its own (`unshare -rm`) on this machine"
        );
        return;
    }
    (0..3).for_each(|i| named.start(i));
    let first = named.settle().await;
    let mut next = NODES;
    // One after the other, as a roll moves them, with those that stay dialling the new address under the old name.
    for i in [2, 1, 0] {
        named.kill(i);
        named.at[i] = next;
        next += 1;
        named.publish();
        named.start(i);
        named.settle().await;
    }
    // And all at once.
    (0..3).for_each(|i| named.kill(i));
    named.at = (next..next + NODES).collect();
    named.publish();
    let began = Instant::now();
    (0..3).for_each(|i| named.start(i));
    let last = named.settle().await;
    let took = began.elapsed();
    assert!(last.iter().all(|s| s.cluster_id == first[0].cluster_id && s.members.len() == 3 && s.incarnation == 3));
    println!(
        "CHAOS names | three nodes move one by one, then all at once, under one --peers | all ready again after {:.1} s",
        took.as_secs_f64()
    );
}
