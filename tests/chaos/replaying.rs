//! The shipped trace, replayed through three real nodes by the shipped command.

use crate::cluster::Cluster;
use std::process::Command;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_through_three_nodes_gives_no_wrong_hint_and_beats_round_robin() {
    let mut cluster = Cluster::new(3, &[]);
    cluster.start_all();
    cluster.settle().await;
    let servers: Vec<String> = cluster.nodes.iter().map(|node| format!("{}:9090", node.host)).collect();
    let output = Command::new(env!("CARGO_BIN_EXE_prefixd"))
        .args(["replay", "--trace", concat!(env!("CARGO_MANIFEST_DIR"), "/examples/trace.jsonl.gz")])
        .args(["--engines", "8", "--blocks-per-engine", "1000", "--speed", "0", "--json"])
        .arg(format!("--server={}", servers.join(",")))
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}\n{}", cluster.logs());
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let policy = |name: &str| {
        let policies = report["policies"].as_array().unwrap();
        policies.iter().find(|policy| policy["name"] == name).unwrap_or_else(|| panic!("{name}: {report}")).clone()
    };
    assert_eq!(policy("prefixd")["wrong_hints"], 0, "{report}");
    let ratio = |name: &str| policy(name)["block_hit_ratio"].as_f64().unwrap();
    assert!(ratio("prefixd") > 1.5 * ratio("round-robin"), "{report}");
    cluster.assert_digests_equal().await;
    cluster.assert_no_panic();
    assert!(cluster.root().exists());
}
