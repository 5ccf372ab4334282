//! Nodes that are all started with the same policy file, and operators with `prefixd ctl policy`: the file is offered
//! once and not fought over, and a set that was pushed outlives kills, restarts and what files say.

use crate::cluster::{Cluster, Node, PATIENCE};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn ctl(node: &Node, what: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prefixd"));
    command.args(["ctl", "--admin", &format!("{}:9091", node.host), "policy"]).args(what);
    command.output().unwrap()
}

/// (pushed, matched-tokens floor of tenant t) as one node has it.
fn governing(node: &Node) -> (bool, Option<i64>) {
    let shown = ctl(node, &["get", "--json"]);
    assert!(shown.status.success(), "{shown:?}");
    let value: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let floor = value["document"]["policies"][0]["minimumMatchedTokens"].as_i64();
    (value["pushed"].as_bool().unwrap(), floor)
}

async fn all_have(cluster: &Cluster, expected: (bool, Option<i64>)) {
    let began = Instant::now();
    loop {
        let seen: Vec<_> = cluster.nodes.iter().map(governing).collect();
        if seen.iter().all(|seen| *seen == expected) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{seen:?}, not {expected:?}\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn write(path: &Path, floor: u32) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, format!("version: 7\npolicies: [{{namespace: t, minimumMatchedTokens: {floor}}}]\n"))
        .unwrap();
    std::fs::rename(draft, path).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_file_on_three_nodes_governs_until_an_operator_pushes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    write(&path, 11);
    let mut cluster = Cluster::new(3, &["--policy-file", path.to_str().unwrap()]);
    cluster.start_all();
    cluster.settle().await;
    all_have(&cluster, (false, Some(11))).await;
    write(&path, 12);
    all_have(&cluster, (false, Some(12))).await;
    let leader = cluster.leader().await;
    cluster.nodes[leader].kill();
    cluster.settle().await;
    cluster.nodes[leader].start();
    cluster.settle().await;
    all_have(&cluster, (false, Some(12))).await;
    let offers: usize = cluster.nodes.iter().map(|node| node.log().matches("set was offered").count()).sum();
    assert!((2..=4).contains(&offers), "{offers} offers of two contents: nobody fights\n{}", cluster.logs());

    let pushed = dir.path().join("pushed.json");
    std::fs::write(&pushed, r#"{"version":7,"policies":[{"namespace":"t","minimumMatchedTokens":90}],"x":1}"#).unwrap();
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    for what in ["set", "validate"] {
        let refused = ctl(&cluster.nodes[follower], &[what, pushed.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && said.contains("unknown field `x`"), "{what}: {said}");
    }
    std::fs::write(&pushed, r#"{"version":7,"policies":[{"namespace":"t","minimumMatchedTokens":90}]}"#).unwrap();
    for what in ["validate", "set"] {
        let done = ctl(&cluster.nodes[follower], &[what, pushed.to_str().unwrap()]);
        assert!(done.status.success(), "{what}: {done:?}");
    }
    all_have(&cluster, (true, Some(90))).await;
    write(&path, 13);
    cluster.nodes.iter_mut().for_each(Node::kill);
    cluster.start_all();
    cluster.settle().await;
    // Time for a leader to offer what it must not.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    all_have(&cluster, (true, Some(90))).await;
    cluster.assert_digests_equal().await;
    cluster.assert_no_panic();
}
