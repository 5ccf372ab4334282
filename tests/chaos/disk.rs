//! Disks in trouble under traffic on every node: short of room, full to the last byte, with snapshots or a log that are
//! no longer what was written. Lookups never fail, nothing acknowledged is lost, and what can mend itself does.

use crate::cluster::{Cluster, PATIENCE};
use crate::controller::series;
use crate::figures::{Figures, rounds_of};
use crate::oracle::{Alive, Latencies, Producer, gateway, hash};
use crate::small_disks::SmallDisks;
use crate::watcher::Watcher;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

const NODES: usize = 3;

/// A producer and a gateway on every node.
struct Traffic {
    producers: Vec<Producer>,
    /// None where a node may show a purged log without its snapshot for a moment.
    watcher: Option<Watcher>,
    alive: Alive,
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    reports: Vec<JoinHandle<()>>,
    gateways: Vec<JoinHandle<Vec<Status>>>,
}

impl Traffic {
    fn start(cluster: &Cluster, is_watched: bool) -> Self {
        let alive = Alive::new(NODES);
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let producers: Vec<Producer> = (0..NODES).map(Producer::new).collect();
        let (mut reports, mut gateways) = (Vec::new(), Vec::new());
        for (i, producer) in producers.iter().enumerate() {
            let node = &cluster.nodes[i];
            reports.push(tokio::spawn(producer.clone().run(node.client(), i, alive.clone(), stop.clone())));
            let asking = gateway(node.client(), i, alive.clone(), stop.clone(), asked.clone(), Latencies::default());
            gateways.push(tokio::spawn(asking));
        }
        let watcher = is_watched.then(|| Watcher::start(cluster, &producers));
        Self { producers, watcher, alive, stop, asked, reports, gateways }
    }

    /// Lookups go on: more are answered from now on.
    async fn lookups_go_on(&self, cluster: &Cluster) {
        let (before, began) = (self.asked.load(Ordering::SeqCst), Instant::now());
        while self.asked.load(Ordering::SeqCst) < before + 50 {
            assert!(began.elapsed() < PATIENCE, "no lookup is answered\n{}", cluster.logs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it, holds the cluster to what it acknowledged, and returns what there is to say of it.
    async fn end(self, cluster: &mut Cluster) -> String {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.reports {
            task.await.unwrap();
        }
        for (i, gateway) in self.gateways.into_iter().enumerate() {
            let failures = gateway.await.unwrap();
            assert!(failures.is_empty(), "lookups failed on n{i}: {failures:?}\n{}", cluster.logs());
        }
        let index = cluster.assert_digests_equal().await;
        let mut chains = 0;
        for producer in &self.producers {
            chains += producer.assert_holds(cluster).await;
            let failures = producer.failures.lock().unwrap().clone();
            let others: Vec<_> = failures.iter().filter(|failure| failure.code() != Code::ResourceExhausted).collect();
            assert!(others.is_empty(), "neither UNAVAILABLE nor RESOURCE_EXHAUSTED: {others:?}");
        }
        cluster.assert_no_panic();
        let watched = match self.watcher {
            Some(watcher) => watcher.finish().await,
            None => "not watched".into(),
        };
        let asked = self.asked.load(Ordering::SeqCst);
        assert!(asked > 0 && chains > 0);
        format!(
            "{chains} acknowledged chains held on {NODES} nodes at log index {index}; {asked} lookups, none failed; \
             {watched}"
        )
    }
}

/// Who is in trouble in a phase: a follower, the leader, or all.
async fn victims_of(cluster: &mut Cluster, phase: &str) -> Vec<usize> {
    let leader = cluster.leader().await;
    match phase {
        "a follower" => vec![(leader + 1) % NODES],
        "the leader" => vec![leader],
        _ => (0..NODES).collect(),
    }
}

/// Waits until the cluster is whole again and traffic flows through every node.
async fn recovers(cluster: &mut Cluster, traffic: &Traffic) {
    cluster.settle().await;
    for producer in &traffic.producers {
        producer.flows(10, cluster).await;
    }
    for i in 0..NODES {
        cluster.wait_for(i, "no complaint", |s| s.ready && s.unready_reason.is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn below_the_reserve_lookups_go_on_and_all_resumes_by_itself() {
    let flags = ["--disk-reserve-bytes=24MiB", "--snapshot-log-entries=300", "--keep-log-entries=50"];
    let mut cluster = Cluster::new(NODES as u32, &flags);
    let Some(disks) = SmallDisks::mount(&mut cluster, 96) else { return };
    cluster.start_all();
    cluster.settle().await;
    let traffic = Traffic::start(&cluster, true);
    let (mut resumed, total) = (Figures::default(), rounds_of(1, 10));
    for _ in 0..total {
        for phase in ["a follower", "the leader", "all"] {
            recovers(&mut cluster, &traffic).await;
            let victims = victims_of(&mut cluster, phase).await;
            let leader = cluster.leader().await;
            for victim in &victims {
                disks.fill(*victim, 12 << 20);
            }
            for victim in &victims {
                let short = |s: &prefixd_proto::admin::StatusResponse| s.unready_reason.contains("short of room");
                cluster.wait_for(*victim, "being short of room", short).await;
            }
            let others: Vec<usize> = (0..NODES).filter(|i| !victims.contains(i)).collect();
            if phase == "the leader" {
                let next = cluster.wait_for(others[0], "another leader", |s| {
                    s.leader
                        .is_some_and(|id| s.members.iter().any(|m| m.node_id == id && m.name != format!("n{leader}")))
                });
                next.await;
            }
            for other in &others {
                traffic.producers[*other].flows(20, &cluster).await;
            }
            let mut client = cluster.nodes[victims[0]].client();
            let refused = Producer::new(10 + victims[0]).report(&mut client, 1).await.unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
            traffic.lookups_go_on(&cluster).await;
            let host = cluster.nodes[victims[0]].host.clone();
            assert_eq!(series(&host, "prefixd_storage_disk_condition{condition=\"short\"}").await, 1.0);
            assert_eq!(series(&host, "prefixd_storage_disk_reserve_bytes").await, f64::from(24 << 20));
            assert!(disks.free_bytes(victims[0]) > 2 << 20, "it went on writing");
            for victim in &victims {
                disks.make_room(*victim);
            }
            let freed = Instant::now();
            recovers(&mut cluster, &traffic).await;
            resumed.push(freed.elapsed());
            for victim in &victims {
                let log = cluster.nodes[*victim].log();
                assert!(!log.contains("the disk is full"), "the reserve did not hold:\n{}", cluster.logs());
            }
        }
    }
    println!(
        "CHAOS 7 | less room than the reserve on a follower, the leader, all | {total} rounds of each | writes flow again {} \
         after there is room | {}",
        resumed.line(),
        traffic.end(&mut cluster).await
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_all_the_same_ends_no_process() {
    // No snapshots here: the log is to grow until there is no room for it.
    let flags = ["--disk-reserve-bytes=0", "--snapshot-log-entries=1000000"];
    let mut cluster = Cluster::new(NODES as u32, &flags);
    let Some(disks) = SmallDisks::mount(&mut cluster, 128) else { return };
    cluster.start_all();
    cluster.settle().await;
    let traffic = Traffic::start(&cluster, true);
    let (mut resumed, total) = (Figures::default(), rounds_of(1, 10));
    for _ in 0..total {
        for phase in ["a follower", "the leader", "all"] {
            recovers(&mut cluster, &traffic).await;
            let victims = victims_of(&mut cluster, phase).await;
            let ends = |cluster: &Cluster, i: usize| cluster.nodes[i].log().matches("the disk is full:").count();
            let before: Vec<usize> = (0..NODES).map(|i| ends(&cluster, i)).collect();
            for victim in &victims {
                disks.fill(*victim, 0);
            }
            let began = Instant::now();
            // With all disks full the first quorum that ends stops the traffic, and with it the others' growth.
            let wanted = victims.len().min(NODES - 1);
            loop {
                let hit = victims.iter().filter(|victim| ends(&cluster, **victim) > before[**victim]).count();
                if hit >= wanted {
                    break;
                }
                assert!(began.elapsed() < PATIENCE, "no disk was ever full\n{}", cluster.logs());
                // What a node frees by itself goes too.
                victims.iter().for_each(|victim| disks.fill_further(*victim));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            for other in (0..NODES).filter(|i| !victims.contains(i)) {
                traffic.producers[other].flows(20, &cluster).await;
            }
            traffic.lookups_go_on(&cluster).await;
            for victim in &victims {
                disks.make_room(*victim);
            }
            let freed = Instant::now();
            recovers(&mut cluster, &traffic).await;
            resumed.push(freed.elapsed());
        }
    }
    let mut reopenings = 0.0;
    for node in &mut cluster.nodes {
        reopenings += series(&node.host, "prefixd_storage_log_reopenings_total").await;
        assert_eq!(node.starts(), 1, "{} was started again", node.name);
    }
    assert!(reopenings > 0.0);
    println!(
        "CHAOS 7 | disk full on a follower, the leader, all | {total} rounds of each | writes flow again {} after there is \
         room; {reopenings} logs opened anew in the process | {}",
        resumed.line(),
        traffic.end(&mut cluster).await
    );
}

/// The files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// Flips bytes in every snapshot generation of a data directory. Returns how many generations those were.
fn damage_snapshots(dir: &Path) -> usize {
    let generations: Vec<PathBuf> = std::fs::read_dir(dir.join("snapshots"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("gen-"))
        .collect();
    for generation in &generations {
        let largest = files(generation).into_iter().max_by_key(|file| file.metadata().unwrap().len()).unwrap();
        let mut bytes = std::fs::read(&largest).unwrap();
        let stride = (bytes.len() / 7).max(1);
        bytes.iter_mut().step_by(stride).for_each(|byte| *byte ^= 0x20);
        std::fs::write(&largest, bytes).unwrap();
    }
    generations.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_snapshots_are_all_damaged_comes_back_from_its_peers() {
    let mut cluster = Cluster::new(NODES as u32, &["--snapshot-log-entries=60", "--keep-log-entries=10"]);
    cluster.start_all();
    cluster.settle().await;
    let traffic = Traffic::start(&cluster, false);
    let (mut ready, total) = (Figures::default(), rounds_of(1, 10));
    for round in 0..total {
        recovers(&mut cluster, &traffic).await;
        let victim = (cluster.leader().await + 1 + round as usize % 2) % NODES;
        // A purge shows before it is on the disk; the next one comes after that.
        let first = cluster.wait_for(victim, "a purged log", |s| s.purged_index > 0).await.purged_index;
        let before = cluster.wait_for(victim, "the next purge", |s| s.purged_index > first).await;
        traffic.alive.set(victim, false);
        cluster.nodes[victim].kill();
        assert_eq!(damage_snapshots(&cluster.nodes[victim].dir), 2);
        let began = Instant::now();
        cluster.nodes[victim].start();
        let back = cluster.wait_for(victim, "being ready", |s| s.ready).await;
        ready.push(began.elapsed());
        assert_eq!((back.node_id, &back.cluster_id), (before.node_id, &before.cluster_id), "it is the same disk");
        assert!(back.term >= before.term, "its vote went back");
        assert!(back.members.iter().any(|m| m.node_id == back.node_id && m.voter), "{back:?}");
        let host = cluster.nodes[victim].host.clone();
        assert_eq!(series(&host, "prefixd_storage_snapshots_set_aside_total").await, 2.0);
        assert_eq!(series(&host, "prefixd_storage_snapshots_fetched_total").await, 1.0);
        traffic.alive.set(victim, true);
    }
    recovers(&mut cluster, &traffic).await;
    // With one good generation nobody is asked.
    let victim = (cluster.leader().await + 1) % NODES;
    traffic.alive.set(victim, false);
    cluster.nodes[victim].kill();
    cluster.nodes[victim].start();
    cluster.wait_for(victim, "being ready", |s| s.ready).await;
    assert_eq!(series(&cluster.nodes[victim].host, "prefixd_storage_snapshots_fetched_total").await, 0.0);
    traffic.alive.set(victim, true);
    println!(
        "CHAOS 4 | all snapshots of a follower damaged, its log purged | {total} rounds | from its start to ready {} | {}",
        ready.line(),
        traffic.end(&mut cluster).await
    );
}

/// Flips a byte of the log's file, within the record that holds these bytes.
fn damage_log(dir: &Path, holding: &[u8]) {
    let path = dir.join("log.redb");
    let mut bytes = std::fs::read(&path).unwrap();
    let places: Vec<usize> = (0..bytes.len() - holding.len()).filter(|at| bytes[*at..].starts_with(holding)).collect();
    assert!(!places.is_empty(), "the record is not in the log");
    for at in places {
        bytes[at] ^= 0x40;
    }
    std::fs::write(&path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_log_is_refused_with_the_command_that_brings_the_node_back() {
    let mut cluster = Cluster::new(NODES as u32, &[]);
    cluster.start_all();
    cluster.settle().await;
    let producer = Producer::new(0);
    let leader = cluster.leader().await;
    let mut client = cluster.nodes[leader].client();
    for chain in 0..20 {
        producer.report(&mut client, chain).await.unwrap();
    }
    cluster.assert_digests_equal().await;
    let victim = (leader + 1) % NODES;
    let old = cluster.nodes[victim].status().await.unwrap();
    cluster.nodes[victim].kill();
    // Neither the first record nor the last.
    damage_log(&cluster.nodes[victim].dir, &hash(0, 7, 0));
    cluster.nodes[victim].start();
    cluster.nodes[victim].ends_by_itself().await;
    let log = cluster.nodes[victim].log();
    let refusal = log.lines().rfind(|line| line.contains("can no longer be vouched for")).expect("a refusal");
    println!("{refusal}");
    let words: Vec<&str> = refusal.split('`').collect();
    let ran = std::process::Command::new("sh").args(["-c", words[1]]).status().unwrap();
    assert!(ran.success(), "{}", words[1]);
    let flag = words[2].split_whitespace().find(|word| word.starts_with("--")).expect("a flag");
    cluster.nodes[victim].flags.push(flag.trim_end_matches([':', '.', ',']).to_owned());
    cluster.nodes[victim].start();
    let back = cluster
        .wait_for(victim, "a voter again", |s| {
            s.ready && s.members.len() == NODES && s.members.iter().any(|m| m.node_id == s.node_id && m.voter)
        })
        .await;
    assert_ne!(back.node_id, old.node_id, "it rejoined with a disk of its own");
    assert_eq!(back.cluster_id, old.cluster_id);
    cluster.assert_digests_equal().await;
    assert!(producer.assert_holds(&cluster).await > 0);
    cluster.assert_no_panic();
}
