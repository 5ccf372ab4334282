//! The supervisor with shell scripts for nodes.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use std::io::Write;
use std::process::{Command, Stdio};

struct Cluster {
    dir: tempfile::TempDir,
    signals: mpsc::Sender<&'static str>,
    running: tokio::task::JoinHandle<ExitCode>,
}

/// Starts two nodes that run `script`, which sees its name as $name and the shared directory as $dir.
fn start(script: &str, stop_timeout_secs: u64) -> Cluster {
    let dir = tempfile::tempdir().unwrap();
    let executable = dir.path().join("node.sh");
    let text = format!("#!/bin/sh\nname=$3 dir={}\n{script}\n", dir.path().display());
    write_executable(&executable, &text);
    let args = Args {
        nodes: 2,
        base_port: 1, // nobody listens there; the scripts don't either
        data_dir: dir.path().join("data"),
        stop_timeout_secs,
        serve_flags: Vec::new(),
    };
    let (signals, receiver) = mpsc::channel(4);
    let running = tokio::spawn(async move { run_with(&executable, args, receiver).await });
    Cluster { dir, signals, running }
}

/// By another process: a file that this one has open for writing can't be run by anybody, and a child that another
/// test forks in that moment would hold it open longer.
fn write_executable(path: &Path, text: &str) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat > \"$0\"; chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}

impl Cluster {
    /// Waits until both nodes have made a file called `what`.
    async fn both(&self, what: &str) {
        for name in ["n0", "n1"] {
            while !self.dir.path().join(format!("{name}.{what}")).exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    fn pid(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("{name}.up"))).unwrap().trim().to_owned()
    }
}

fn is_alive(pid: &str) -> bool {
    Command::new("kill").args(["-0", pid]).stderr(Stdio::null()).status().unwrap().success()
}

/// Says that it is up, with its process id, in one step.
const UP: &str = "echo $$ > $dir/$name.tmp; mv $dir/$name.tmp $dir/$name.up";

fn is(code: ExitCode, expected: ExitCode) {
    assert_eq!(format!("{code:?}"), format!("{expected:?}"));
}

#[tokio::test]
async fn a_signal_ends_all_nodes_in_an_orderly_way() {
    let cluster = start(&format!("trap 'touch $dir/$name.down; exit 0' TERM; {UP}; while :; do sleep 0.05; done"), 60);
    cluster.both("up").await;
    cluster.signals.send("SIGINT").await.unwrap();
    is(cluster.running.await.unwrap(), ExitCode::SUCCESS);
    for name in ["n0", "n1"] {
        assert!(cluster.dir.path().join(format!("{name}.down")).exists(), "{name} was not told");
    }
}

#[tokio::test]
async fn nodes_that_do_not_listen_are_killed() {
    let script = format!("trap '' TERM; {UP}; while :; do sleep 0.05; done");
    let patient = start(&script, 0);
    patient.both("up").await;
    let pids = [patient.pid("n0"), patient.pid("n1")];
    patient.signals.send("SIGTERM").await.unwrap();
    is(patient.running.await.unwrap(), ExitCode::FAILURE);
    assert!(!pids.iter().any(|pid| is_alive(pid)), "{pids:?}");

    let hurried = start(&script, 3600);
    hurried.both("up").await;
    hurried.signals.send("SIGINT").await.unwrap();
    hurried.signals.send("SIGINT").await.unwrap();
    is(hurried.running.await.unwrap(), ExitCode::FAILURE);
}

#[tokio::test]
async fn nodes_that_end_by_themselves_are_not_restarted() {
    let cluster = start(&format!("{UP}; echo $$ >> $dir/$name.starts; exit 3"), 60);
    let (dir, signals) = (cluster.dir, cluster.signals);
    is(cluster.running.await.unwrap(), ExitCode::FAILURE);
    for name in ["n0", "n1"] {
        let starts = std::fs::read_to_string(dir.path().join(format!("{name}.starts"))).unwrap();
        assert_eq!(starts.lines().count(), 1);
    }
    drop(signals);
}

#[tokio::test]
async fn a_port_that_another_process_has_is_no_node_that_is_ready() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    // It is some port of n0 or n1, as far as there are ports.
    let base_port = port.saturating_sub(13).max(1);
    let nodes = plan::nodes(2, base_port, Path::new("d"), &[]).unwrap();
    assert!(taken(&nodes[1]).is_some());
    let dir = tempfile::tempdir().unwrap();
    let args =
        Args { nodes: 2, base_port, data_dir: dir.path().join("data"), stop_timeout_secs: 1, serve_flags: Vec::new() };
    let (_signals, receiver) = mpsc::channel(1);
    is(run_with(Path::new("/nonexistent"), args, receiver).await, ExitCode::from(2));
    assert!(!dir.path().join("data").exists(), "nothing was made");
}

#[tokio::test]
async fn children_know_their_parent() {
    let cluster = start(&format!("echo $PREFIXD_EXIT_WITH_PARENT > $dir/$name.parent; {UP}"), 60);
    let dir = cluster.dir;
    cluster.running.await.unwrap();
    let told = std::fs::read_to_string(dir.path().join("n0.parent")).unwrap();
    assert_eq!(told.trim(), std::process::id().to_string());
}
