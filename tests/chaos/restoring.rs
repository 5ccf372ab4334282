//! A cluster under load, backed up from a follower and destroyed; a new one from the file. What was acknowledged before
//! the backup is there, the digest is the backup's, nodes join, and a disk of the old cluster stays outside. A restore
//! that is killed is never served.

use crate::cluster::{Cluster, PATIENCE};
use crate::figures::{Figures, rounds_of};
use crate::oracle::{Alive, Producer};
use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tonic::transport::Channel;

const NODES: usize = 3;
const FLAGS: [&str; 2] = ["--snapshot-log-entries=100", "--keep-log-entries=20"];
/// Chains that the follower acknowledged before the backup.
const CHAINS: u64 = 60;

fn prefixd(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_prefixd")).args(arguments).output().unwrap()
}

/// What a successful command printed as JSON.
fn told(arguments: &[&str]) -> serde_json::Value {
    let output = prefixd(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reports a chain until it is acknowledged: a busy machine may cost a cluster its leader for a moment.
async fn acknowledged(known: &Producer, client: &mut InferenceCacheClient<Channel>, chain: u64) {
    let began = Instant::now();
    while let Err(status) = known.report(client, chain).await {
        assert!(status.code() == tonic::Code::Unavailable && began.elapsed() < PATIENCE, "{status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Takes a backup of a follower while every node is written to, and gives what was told of it. The cluster is gone then.
async fn backed_up_and_destroyed(cluster: &mut Cluster, known: &Producer, file: &Path) -> serde_json::Value {
    let leader = cluster.leader().await;
    let follower = (leader + 1) % NODES;
    let (alive, stop) = (Alive::new(NODES), Arc::new(AtomicBool::new(false)));
    let producers: Vec<Producer> = (0..NODES).map(Producer::new).collect();
    let run = |(i, producer): (usize, &Producer)| {
        tokio::spawn(producer.clone().run(cluster.nodes[i].client(), i, alive.clone(), stop.clone()))
    };
    let tasks: Vec<_> = producers.iter().enumerate().map(run).collect();
    let mut client = cluster.nodes[follower].client();
    for chain in 0..CHAINS {
        acknowledged(known, &mut client, chain).await;
    }
    producers[leader].flows(20, cluster).await;
    let admin = format!("{}:9091", cluster.nodes[follower].host);
    let arguments = ["ctl", "--admin", &admin, "backup", text(file), "--json"].map(str::to_owned);
    let taken = tokio::task::spawn_blocking(move || told(&arguments.each_ref().map(String::as_str))).await.unwrap();
    producers[leader].flows(5, cluster).await;
    let at = taken["log_index"].as_u64().unwrap();
    let digest = cluster.nodes[follower].digest(at).await.map(|digest| hex(&digest));
    assert_eq!(digest.as_deref(), taken["digest"].as_str(), "the follower's own digest at {at}");
    assert!(!file.with_extension("pfbk.partial").exists());
    (0..NODES).for_each(|i| {
        alive.set(i, false);
        cluster.nodes[i].kill();
    });
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    taken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destroyed_cluster_comes_back_from_a_backup_and_the_old_disks_stay_outside() {
    let (mut restores, mut whole, total) = (Figures::default(), Figures::default(), rounds_of(1, 10));
    for _ in 0..total {
        let (restored, grown) = destroyed_and_restored().await;
        restores.push(restored);
        whole.push(grown);
    }
    println!(
        "CHAOS 12 | destroy all, restore a backup, grow to three | {total} rounds | digests equal; an old node's disk \
         refused; restore {}; from the restore to three voters {}",
        restores.line(),
        whole.line()
    );
}

/// One round: how long the restore took, and until the new cluster had three voters.
async fn destroyed_and_restored() -> (Duration, Duration) {
    let mut old = Cluster::new(NODES as u32, &FLAGS);
    old.start_all();
    old.settle().await;
    let known = Producer::new(NODES);
    let file = old.root().join("nightly.pfbk");
    let taken = backed_up_and_destroyed(&mut old, &known, &file).await;
    assert!(said(&prefixd(&["backup", "verify", text(&file)])).contains(": good"));
    // Nothing is replaced unasked, and no node is asked first.
    let again = prefixd(&["ctl", "--admin", "127.0.0.1:1", "backup", text(&file)]);
    assert!(!again.status.success() && said(&again).contains("exists"), "{}", said(&again));

    let mut new = Cluster::new(NODES as u32, &FLAGS);
    let home = new.nodes[0].dir.clone();
    let began = Instant::now();
    let restored = told(&["restore", text(&file), "--data-dir", text(&home), "--node-name", "n0", "--json"]);
    let took = began.elapsed();
    assert_eq!((&restored["digest"], &restored["log_index"]), (&taken["digest"], &taken["log_index"]));
    assert_ne!(restored["cluster_id"], taken["cluster_id"]);
    new.nodes[0].start();
    let alone = new.wait_for(0, "a leader of one", |s| s.ready && s.role == "leader").await;
    assert_eq!((hex(&alone.cluster_id).as_str(), alone.members.len()), (restored["cluster_id"].as_str().unwrap(), 1));
    let at = taken["log_index"].as_u64().unwrap();
    let digest = new.nodes[0].digest(at).await.map(|digest| hex(&digest));
    assert_eq!(digest.as_deref(), taken["digest"].as_str(), "the digest at the backup's position");

    new.start_all();
    for i in 0..NODES {
        new.wait_for(i, "three voters", |s| s.ready && s.members.len() == NODES && s.members.iter().all(|m| m.voter))
            .await;
    }
    let grown = began.elapsed();
    assert_eq!(known.assert_holds(&new).await as u64, CHAINS);
    let mut client = new.nodes[1].client();
    for chain in CHAINS..CHAINS + 10 {
        acknowledged(&known, &mut client, chain).await;
    }
    new.assert_digests_equal().await;
    an_old_disk_stays_outside(&old, &mut new, &taken).await;
    assert_eq!(known.assert_holds(&new).await as u64, CHAINS + 10);
    old.assert_no_panic();
    new.assert_no_panic();
    (took, grown)
}

/// Starts the last node on the disk that it had in the old cluster, and after that on its own again.
async fn an_old_disk_stays_outside(old: &Cluster, new: &mut Cluster, taken: &serde_json::Value) {
    let (last, own) = (NODES - 1, new.root().join("aside"));
    let before = new.settle().await;
    new.nodes[last].kill();
    std::fs::rename(&new.nodes[last].dir, &own).unwrap();
    std::fs::rename(&old.nodes[last].dir, &new.nodes[last].dir).unwrap();
    new.nodes[last].start();
    let began = Instant::now();
    while !new.nodes[last].log().contains("they can't talk to each other") {
        assert!(began.elapsed() < PATIENCE, "the old disk never said what is wrong\n{}", new.logs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let outside = new.wait_for(last, "an answer", |_| true).await;
    assert!(!outside.ready && hex(&outside.cluster_id) == taken["cluster_id"].as_str().unwrap(), "{outside:?}");
    let inside = new.wait_for(0, "a quorum without it", |s| s.ready && s.leader.is_some()).await;
    let ids = |s: &prefixd_proto::admin::StatusResponse| s.members.iter().map(|m| m.node_id).collect::<Vec<_>>();
    assert_eq!(ids(&inside), ids(&before[0]), "the membership is what it was");
    new.nodes[last].kill();
    new.nodes[last].empty_disk();
    std::fs::rename(&own, &new.nodes[last].dir).unwrap();
    new.start_all();
    new.settle().await;
    new.assert_digests_equal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_is_killed_is_never_served() {
    let mut cluster = Cluster::new(1, &[]);
    cluster.start_all();
    cluster.settle().await;
    let producer = Producer::new(0);
    let mut client = cluster.nodes[0].client();
    for chain in 0..CHAINS {
        producer.report(&mut client, chain).await.unwrap();
    }
    let file = cluster.root().join("one.pfbk");
    let admin = format!("{}:9091", cluster.nodes[0].host);
    told(&["ctl", "--admin", &admin, "backup", text(&file), "--json"]);
    cluster.nodes[0].kill();
    cluster.nodes[0].empty_disk();
    let home = cluster.nodes[0].dir.clone();
    let restore = ["restore", text(&file), "--data-dir", text(&home), "--node-name", "n0"];
    let (mut half, mut whole) = (0, 0);
    let began = Instant::now();
    assert!(prefixd(&restore).status.success());
    let full = began.elapsed();
    let total = rounds_of(12, 48);
    for round in 0..total {
        std::fs::remove_dir_all(&home).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_prefixd"));
        let mut child = child.args(restore).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Somewhere within what a whole one takes: the point is where the kill finds it.
        tokio::time::sleep(full * (2 * round + 1) / (2 * total)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        let serve = ["serve", "--node-name", "n0", "--data-dir", text(&home)];
        if home.join("restoring").exists() {
            half += 1;
            let flags = ["grpc", "http", "internal", "node"].map(|port| format!("--{port}-addr=127.0.0.1:0"));
            let served = prefixd(&[&serve[..], &flags.each_ref().map(String::as_str)].concat());
            assert!(!served.status.success() && said(&served).contains("cut short"), "{}", said(&served));
        }
        let again = prefixd(&restore);
        match again.status.success() {
            true => {}
            // It had come to its end.
            false => {
                assert!(said(&again).contains("not empty (identity is there)"), "{}", said(&again));
                whole += 1;
            }
        }
    }
    println!("{half} of {total} restores were killed halfway, {whole} had ended");
    assert!(half > 0, "no kill found a restore at work");
    cluster.start_all();
    cluster.settle().await;
    assert_eq!(producer.assert_holds(&cluster).await as u64, CHAINS);
    cluster.assert_no_panic();
}
