//! A policy set pushed to a follower while the leader is being killed: what was answered with 204 governs every node,
//! and what was answered otherwise governs all of them or none.

use crate::cluster::{Cluster, PATIENCE};
use crate::controller::{governs, marked, push};
use crate::figures::rounds_of;
use std::time::{Duration, Instant};

/// What became of one push, in the order in which they were made.
struct Push {
    mark: String,
    answer: Result<(), String>,
}

/// Pushes set after set to one node until one that began after `killed` is answered, and returns them all.
async fn pushes(host: String, round: u32, mut killed: tokio::sync::watch::Receiver<bool>) -> Vec<Push> {
    let mut made = Vec::new();
    loop {
        let is_after = *killed.borrow_and_update();
        let mark = format!("round-{round}-push-{}", made.len());
        let answer = push(&host, &marked(&mark)).await;
        let is_last = is_after && answer.is_ok();
        made.push(Push { mark, answer });
        if is_last {
            return made;
        }
    }
}

/// The marks of those sets that govern a node, by the node's own word.
async fn in_force(cluster: &Cluster, node: usize, made: &[Push]) -> Vec<String> {
    let mut found = Vec::new();
    for push in made {
        if governs(&cluster.nodes[node], &push.mark).await {
            found.push(push.mark.clone());
        }
    }
    found
}

/// Waits until every node has applied all that is in the log, and compares the digests there.
async fn level(cluster: &mut Cluster) {
    let began = Instant::now();
    loop {
        let statuses = cluster.settle().await;
        let last = statuses.iter().map(|status| status.last_log_index).max().unwrap();
        if statuses.iter().all(|status| status.applied_index == last) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "not all is applied: {statuses:#?}\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.assert_digests_equal().await;
}

/// One kill of the leader in the midst of pushes to a follower. Returns (acknowledged, not acknowledged).
async fn round(cluster: &mut Cluster, round: u32) -> (usize, usize) {
    let leader = cluster.leader().await;
    let follower = (leader + 1 + round as usize % 2) % 3;
    let (killed, seen) = tokio::sync::watch::channel(false);
    let pushing = tokio::spawn(pushes(cluster.nodes[follower].host.clone(), round, seen));
    // Not a wait for anything: the moment of the kill within a push is what varies from round to round.
    tokio::time::sleep(Duration::from_millis(20 + u64::from(round) * 37 % 150)).await;
    cluster.nodes[leader].kill();
    killed.send(true).unwrap();
    let made = pushing.await.unwrap();
    cluster.settle().await;
    cluster.nodes[leader].start();
    level(cluster).await;
    let last = made.last().unwrap().mark.clone();
    for node in 0..3 {
        let found = in_force(cluster, node, &made).await;
        let answers: Vec<_> = made.iter().map(|push| (&push.mark, &push.answer)).collect();
        assert_eq!(found, std::slice::from_ref(&last), "round {round}, n{node}: {answers:?}\n{}", cluster.logs());
    }
    let acknowledged = made.iter().filter(|push| push.answer.is_ok()).count();
    (acknowledged, made.len() - acknowledged)
}

/// One push that is in flight when the leader dies and is not repeated: the only one whose fate may stay open.
async fn lone(cluster: &mut Cluster, round: u32) -> Result<(), String> {
    let leader = cluster.leader().await;
    let follower = (leader + 1 + round as usize % 2) % 3;
    let (host, mark) = (cluster.nodes[follower].host.clone(), format!("lone-{round}"));
    let document = marked(&mark);
    let pushing = tokio::spawn(async move { push(&host, &document).await });
    tokio::time::sleep(Duration::from_millis(u64::from(round) * 7 % 40)).await;
    cluster.nodes[leader].kill();
    let answer = pushing.await.unwrap();
    cluster.nodes[leader].start();
    level(cluster).await;
    let mut governed = Vec::new();
    for node in &cluster.nodes {
        governed.push(governs(node, &mark).await);
    }
    let is_whole = governed.iter().all(|one| *one == governed[0]);
    assert!(is_whole, "round {round}: on some nodes, {answer:?}: {governed:?}\n{}", cluster.logs());
    assert!(governed[0] || answer.is_err(), "round {round}: acknowledged and on no node\n{}", cluster.logs());
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_pushed_while_the_leader_dies_is_on_all_nodes_or_was_refused() {
    // Answers must come before a new leader can: so some pushes are answered with an error.
    let mut cluster =
        Cluster::new(3, &["--propose-timeout=600ms", "--snapshot-log-entries=50", "--keep-log-entries=10"]);
    cluster.start_all();
    cluster.settle().await;
    let (began, total) = (Instant::now(), rounds_of(10, 40));
    let (mut acknowledged, mut refused, mut lone_refused) = (0, 0, 0);
    for n in 0..total {
        let (yes, no) = round(&mut cluster, n).await;
        (acknowledged, refused) = (acknowledged + yes, refused + no);
        lone_refused += u32::from(lone(&mut cluster, n).await.is_err());
    }
    let last = format!("lone-{}", total - 1);
    let before = governs(&cluster.nodes[0], &last).await;
    for i in 0..3 {
        cluster.nodes[i].kill();
    }
    cluster.start_all();
    level(&mut cluster).await;
    for node in &cluster.nodes {
        assert_eq!(governs(node, &last).await, before, "{} lost its policy set when all were killed", node.name);
    }
    assert!(acknowledged >= total as usize && refused > 0, "{acknowledged} acknowledged, {refused} refused");
    cluster.assert_no_panic();
    println!(
        "{total} rounds in {:.0} s: {acknowledged} pushes acknowledged, {refused} not; of {total} lone ones {lone_refused} not",
        began.elapsed().as_secs_f64()
    );
}
