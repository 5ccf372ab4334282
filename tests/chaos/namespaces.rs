//! A network that loses packets: each node in a network namespace of its own, between two bridges, one for peers and one
//! for everybody else. A way is cut by sending its frames to an address that nobody has: they vanish as behind a broken
//! switch, no end is told, and TCP tries again when it thinks fit, where the proxy would deliver at once what it held.
//!
//! It needs no root where the kernel lets users make namespaces, and iproute2; without either it says that it was skipped.
//! Clients have to be in the namespaces too, so the test runs itself again inside of them.

use crate::cluster::Cluster;
use crate::figures::chances;
use crate::network::Network;
use crate::partitions::come_apart;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const NODES: usize = 3;
/// Tells the test that it is inside.
const INSIDE: &str = "PREFIXD_CHAOS_INSIDE";
/// What goes there is lost, and counted.
const NOWHERE: &str = "02:00:00:00:00:ff";
const BRIDGES: &str = "
    ip link set lo up
    ip link add clients type bridge
    ip link add peers type bridge
    ip address add 10.76.0.254/24 dev clients
    ip link set clients up
    ip link set peers up
    ip link add hole type veth peer name hole-end
    ip link set hole master peers up
    ip link set hole-end up
    ip link set hole type bridge_slave flood off mcast_flood off bcast_flood off
";

fn client_ip(node: usize) -> String {
    format!("10.76.0.{}", node + 1)
}

fn peer_ip(node: usize) -> String {
    format!("10.77.0.{}", node + 1)
}

fn peer_mac(node: usize) -> String {
    format!("02:00:00:00:00:0{}", node + 1)
}

/// Runs a script, in the namespace of a process if one is given.
fn shell(script: &str, inside: Option<u32>) -> Result<(), String> {
    let mut command = match inside {
        None => Command::new("sh"),
        Some(process) => {
            let mut command = Command::new("nsenter");
            command.arg(format!("--target={process}")).args(["--net", "--", "sh"]);
            command
        }
    };
    let output = command.args(["-ec", script]).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{}: {script}", said.trim())) }
}

/// The bridges, and the namespaces, each held by a process that ends with the test.
struct Bridges {
    holders: Vec<Child>,
}

impl Bridges {
    fn build() -> Result<Self, String> {
        shell(BRIDGES, None)?;
        shell(&format!("bridge fdb add {NOWHERE} dev hole master static"), None)?;
        let mut bridges = Self { holders: Vec::new() };
        for node in 0..NODES {
            bridges.add(node)?;
        }
        bridges.heal();
        Ok(bridges)
    }

    fn add(&mut self, node: usize) -> Result<(), String> {
        // It ends when its standard input does.
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo apart; exec cat >/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).map_err(|error| error.to_string())?;
        let process = holder.id();
        self.holders.push(holder);
        if said != "apart\n" {
            return Err("no network namespace can be made here".into());
        }
        let link = |own: &str, bridge: &str| {
            format!(
                "ip link add {own}{node} type veth peer name {bridge} netns {process}; ip link set {own}{node} master {bridge} up\n"
            )
        };
        shell(&(link("c", "clients") + &link("p", "peers")), None)?;
        let (client, peer, mac) = (client_ip(node), peer_ip(node), peer_mac(node));
        let script = format!(
            "ip link set lo up; ip address add {client}/24 dev clients; ip link set clients up
             ip link set peers address {mac}; ip address add {peer}/24 dev peers; ip link set peers up"
        );
        shell(&script, Some(process))
    }

    /// Sends what one node says to another to an address.
    fn point(&self, from: usize, to: usize, mac: &str) {
        let script = format!("ip neighbour replace {} lladdr {mac} dev peers nud permanent", peer_ip(to));
        shell(&script, Some(self.holders[from].id())).unwrap();
    }

    /// Three nodes that don't run yet, one in each namespace.
    fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::new(NODES as u32, &[]);
        for (i, node) in cluster.nodes.iter_mut().enumerate() {
            node.host = client_ip(i);
            node.bind = Some("0.0.0.0".into());
            let holder = format!("--target={}", self.holders[i].id());
            node.behind = ["nsenter", &holder, "--net", "--"].map(String::from).to_vec();
            node.peers = (0..NODES).map(|j| format!("n{j}={}:9091", peer_ip(j))).collect();
            node.flags.push(format!("--node-advertise-addr={}:9091", peer_ip(i)));
            // Nobody is in these networks but the test.
            node.flags.push("--insecure-disable-auth".into());
        }
        cluster
    }
}

/// A counter of an interface here: received bytes are 0, sent packets 9.
fn counted(interface: &str, field: usize) -> u64 {
    let counters = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    let line = counters.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    line.and_then(|fields| fields.split_whitespace().nth(field)?.parse().ok()).expect("a counter of the interface")
}

impl Network for Bridges {
    fn size(&self) -> usize {
        NODES
    }

    fn cut(&self, from: usize, to: usize) {
        self.point(from, to, NOWHERE);
    }

    fn heal(&self) {
        for from in 0..NODES {
            (0..NODES).filter(|to| *to != from).for_each(|to| self.point(from, to, &peer_mac(to)));
        }
    }

    fn carried_bytes(&self) -> u64 {
        (0..NODES).map(|node| counted(&format!("p{node}"), 0)).sum()
    }

    fn faults(&self) -> u64 {
        counted("hole", 9)
    }
}

impl Drop for Bridges {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            drop(holder.stdin.take());
            let _ = holder.wait();
        }
    }
}

async fn inside() {
    let bridges = match Bridges::build() {
        Ok(bridges) => bridges,
        Err(why) => return println!("skipped: no network of namespaces can be made here: {why}"),
    };
    let (seed, chances) = chances("5 lost packets");
    come_apart("packets lost between network namespaces", bridges.cluster(), &bridges, seed, chances).await;
}

#[test]
fn lost_packets_cost_time_and_nothing_else() {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(inside());
    }
    let again = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "namespaces::lost_packets_cost_time_and_nothing_else", "--nocapture"])
        .env(INSIDE, "1")
        .output();
    match again {
        Err(error) => println!("skipped: unshare can't be run: {error}"),
        Ok(output) => {
            let (said, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            println!("{said}{why}");
            if why.starts_with("unshare:") {
                return println!("skipped: no namespaces can be made here");
            }
            assert!(output.status.success() && said.contains("1 passed"), "it failed inside");
        }
    }
}
