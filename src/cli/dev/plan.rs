//! What each node of a local cluster is told: its name, ports, data directory and flags. Pure.

use super::super::table;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Between one node's ports and the next one's.
const PORT_STEP: u16 = 10;

/// One node to run.
#[derive(Debug, Clone)]
pub struct Node {
    /// n0, n1, …
    pub name: String,
    /// Where gateways and producers call.
    pub grpc: SocketAddr,
    /// Where /readyz and /metrics are.
    pub http: SocketAddr,
    /// Where the controller calls.
    pub internal: SocketAddr,
    /// Where the other nodes and operators call.
    pub node: SocketAddr,
    /// Its disk.
    pub data_dir: PathBuf,
    /// The whole command line, without the executable.
    pub arguments: Vec<String>,
}

/// Plans `count` nodes, or says why that can't be.
pub fn nodes(count: u16, base_port: u16, data_dir: &Path, serve_flags: &[String]) -> Result<Vec<Node>, String> {
    let highest = u32::from(base_port) + u32::from(count.saturating_sub(1) * PORT_STEP) + 3;
    if base_port == 0 || highest > u32::from(u16::MAX) {
        return Err(format!("ports {base_port} to {highest} are not to be had: choose another --base-port"));
    }
    let data_dir = data_dir.to_str().ok_or("the data directory's name is not UTF-8")?;
    let loopback = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let mut nodes: Vec<Node> = (0..count)
        .map(|i| {
            let port = base_port + i * PORT_STEP;
            Node {
                name: format!("n{i}"),
                grpc: loopback(port),
                http: loopback(port + 1),
                internal: loopback(port + 2),
                node: loopback(port + 3),
                data_dir: Path::new(data_dir).join(format!("n{i}")),
                arguments: Vec::new(),
            }
        })
        .collect();
    let peers: Vec<String> = nodes.iter().map(|node| format!("{}={}", node.name, node.node)).collect();
    for node in &mut nodes {
        node.arguments = arguments(node, &peers.join(","));
        node.arguments.extend_from_slice(serve_flags);
    }
    Ok(nodes)
}

fn arguments(node: &Node, peers: &str) -> Vec<String> {
    let flags: [(&str, String); 7] = [
        ("--node-name", node.name.clone()),
        ("--data-dir", node.data_dir.to_string_lossy().into_owned()),
        ("--grpc-addr", node.grpc.to_string()),
        ("--http-addr", node.http.to_string()),
        ("--internal-addr", node.internal.to_string()),
        ("--node-addr", node.node.to_string()),
        ("--peers", peers.to_owned()),
    ];
    let mut arguments = vec!["serve".to_owned()];
    arguments.extend(flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
    arguments
}

/// Who listens where, for people.
pub fn table(nodes: &[Node]) -> String {
    let mut rows = vec![["node", "gRPC", "HTTP", "internal", "node port", "data"].map(str::to_owned)];
    rows.extend(nodes.iter().map(|node| {
        [
            node.name.clone(),
            node.grpc.to_string(),
            node.http.to_string(),
            node.internal.to_string(),
            node.node.to_string(),
            node.data_dir.display().to_string(),
        ]
    }));
    table::render(&rows)
}

/// What to do with a cluster that is ready.
pub fn hint(nodes: &[Node]) -> String {
    let servers: Vec<String> = nodes.iter().map(|node| node.grpc.to_string()).collect();
    let admin = nodes.first().map(|node| node.node.to_string()).unwrap_or_default();
    format!("all {} nodes are ready: --server {}   ctl --admin {admin} status", nodes.len(), servers.join(","))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn ports_and_peers_follow_the_base_port() {
        let nodes = nodes(3, 19000, Path::new("/d"), &["--log-level".into(), "debug".into()]).unwrap();
        assert_eq!(nodes[2].grpc.to_string(), "127.0.0.1:19020");
        assert_eq!(
            nodes[1].arguments.join(" "),
            "serve --node-name n1 --data-dir /d/n1 --grpc-addr 127.0.0.1:19010 --http-addr 127.0.0.1:19011 \
             --internal-addr 127.0.0.1:19012 --node-addr 127.0.0.1:19013 \
             --peers n0=127.0.0.1:19003,n1=127.0.0.1:19013,n2=127.0.0.1:19023 --log-level debug"
        );
    }

    #[test]
    fn ports_that_do_not_exist_are_refused() {
        assert!(nodes(3, 0, Path::new("d"), &[]).is_err());
        assert!(nodes(3, 65_512, Path::new("d"), &[]).is_ok());
        assert!(nodes(3, 65_513, Path::new("d"), &[]).is_err());
    }
}
