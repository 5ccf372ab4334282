//! Mutual TLS on the node port: three nodes that found a cluster, and those who don't belong.

use super::certs::{Authority, Files, Issued};
use super::tls::{connect, dialling};
use super::*;
use prefixd_proto::admin::StatusRequest;
use prefixd_proto::admin::admin_client::AdminClient;

/// A node of a cluster to be, not yet ready.
struct Member {
    running: Running,
    bound: Bound,
    files: Files,
}

impl Member {
    async fn start(name: &str, peers: &str, addr: &str, ca: &Authority, own: &Issued) -> Self {
        let files = Files::new();
        let (cert, key) = files.pair("node", own);
        let ca = files.write("ca.crt", &ca.pem());
        let data_dir = files.path("data");
        let mut args = ServeArgs::default();
        for (flag, text) in [
            ("grpc_addr", "127.0.0.1:0"),
            ("http_addr", "127.0.0.1:0"),
            ("internal_addr", "127.0.0.1:0"),
            ("node_addr", addr),
            ("node_name", name),
            ("peers", peers),
            ("data_dir", data_dir.to_str().unwrap()),
            ("node_tls_cert_file", &cert),
            ("node_tls_key_file", &key),
            ("node_tls_ca_file", &ca),
            ("reload_interval", "20ms"),
        ] {
            args.said.flags.insert(flag.into(), text.into());
        }
        let config = Config::resolve(&args, None).unwrap();
        let ports = Ports::bind(&config).unwrap();
        let bound = ports.bound;
        Self { running: Running::start(&config, ports).await.unwrap(), bound, files }
    }

    fn is_ready(&self) -> bool {
        self.running.node.status().ready
    }
}

/// Addresses that were free a moment ago.
fn free_addrs<const N: usize>() -> [String; N] {
    let listeners: [_; N] = std::array::from_fn(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().to_string())
}

/// The status of a node as an operator with this certificate sees it.
async fn status(addr: SocketAddr, ca: &Authority, own: Option<&Issued>) -> Result<String, String> {
    let channel = connect(addr, None, dialling(&Files::new(), &ca.pem(), own)).await?;
    let status = AdminClient::new(channel).status(StatusRequest {}).await;
    status.map(|status| status.into_inner().node_name).map_err(|status| status.to_string())
}

#[tokio::test]
async fn three_nodes_found_a_cluster_over_mutual_tls_and_nobody_else_gets_in() {
    let (ca, gateways) = (Authority::new(), Authority::new());
    let addrs: [String; 3] = free_addrs();
    let peers = addrs.iter().enumerate().map(|(i, addr)| format!("n{i}={addr}")).collect::<Vec<_>>().join(",");
    let mut members = Vec::new();
    for (i, addr) in addrs.iter().enumerate() {
        members.push(Member::start(&format!("n{i}"), &peers, addr, &ca, &ca.issue(&["127.0.0.1"])).await);
    }
    eventually("all are ready", async || members.iter().all(Member::is_ready)).await;
    for member in &members {
        let url = format!("http://{}", member.bound.grpc);
        let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
        let ack = InferenceCacheClient::new(channel).report_cache_state(tokio_stream::iter([update("p", 100)])).await;
        assert!(ack.unwrap().into_inner().accepted, "writes are forwarded over mutual TLS");
    }
    let node_port = members[0].bound.node;
    assert_eq!(status(node_port, &ca, Some(&ca.issue(&["operator"]))).await.unwrap(), "n0");
    for (what, own) in [
        ("no certificate", None),
        ("a gateway's", Some(gateways.issue(&["127.0.0.1"]))),
        ("an expired one", Some(ca.issue_until(&["operator"], 2001))),
    ] {
        let refused = status(node_port, &ca, own.as_ref()).await;
        assert!(refused.is_err(), "{what}: {refused:?}");
    }
    let in_clear = Endpoint::from_shared(format!("http://{node_port}")).unwrap().connect_lazy();
    assert!(AdminClient::new(in_clear).status(StatusRequest {}).await.is_err());

    // Every node gets a new certificate while the cluster runs, and shows it to a node that joins.
    for member in &members {
        member.files.pair("node", &ca.issue_until(&["127.0.0.1"], 3999));
    }
    let ends = "prefixd_tls_certificate_not_after_seconds{port=\"node\"}";
    for member in &members {
        eventually("the new certificate is in force", async || {
            value(&get(member.bound.http, "/metrics").await.1, ends) < Some(64_060_588_800.0)
        })
        .await;
    }
    members.pop().unwrap().running.stop(PATIENCE).await.unwrap();
    // With an empty disk: it is found, answered and sent everything over connections that are new.
    members.push(Member::start("n2", &peers, &addrs[2], &ca, &ca.issue(&["127.0.0.1"])).await);
    eventually("it is back", async || members.iter().all(Member::is_ready)).await;
    let before = members[0].running.node.applied_index();
    let channel = Endpoint::from_shared(format!("http://{}", members[1].bound.grpc)).unwrap().connect().await.unwrap();
    let ack = InferenceCacheClient::new(channel).report_cache_state(tokio_stream::iter([update("q", 100)])).await;
    assert!(ack.unwrap().into_inner().accepted);
    eventually("all nodes have it", async || members.iter().all(|m| m.running.node.applied_index() > before)).await;
    for member in members {
        member.running.stop(PATIENCE).await.unwrap();
    }
}

/// Two nodes that name each other, the second with this certificate: true if they become a cluster.
async fn become_a_cluster(ca: &Authority, other_ca: &Authority, second: &Issued) -> bool {
    let addrs: [String; 2] = free_addrs();
    let peers = format!("n0={},n1={}", addrs[0], addrs[1]);
    let first = Member::start("n0", &peers, &addrs[0], ca, &ca.issue(&["127.0.0.1"])).await;
    let second = Member::start("n1", &peers, &addrs[1], other_ca, second).await;
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end && !(first.is_ready() && second.is_ready()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let together = first.is_ready() && second.is_ready();
    for member in [first, second] {
        member.running.stop(PATIENCE).await.unwrap();
    }
    together
}

#[tokio::test]
async fn a_node_with_a_wrong_name_or_a_wrong_ca_is_no_peer() {
    let (ca, other) = (Authority::new(), Authority::new());
    assert!(!become_a_cluster(&ca, &ca, &ca.issue(&["elsewhere.example"])).await, "the name was not dialled");
    assert!(!become_a_cluster(&ca, &other, &other.issue(&["127.0.0.1"])).await, "another cluster's CA");
}
