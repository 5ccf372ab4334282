//! Log and snapshot files of a stopped node are cut or flipped at random places. It comes back with all that it had, or
//! goes to its peers, or refuses by name and with the way out, which is then taken. Nothing is lost in silence.

use crate::cluster::{Cluster, Node, PATIENCE};
use crate::figures::{chances, rounds_of};
use crate::load::Load;
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NODES: usize = 3;

/// Files of a node's log and snapshots that hold anything.
fn files(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::metadata(&path).unwrap();
            if metadata.is_dir() {
                folders.push(path);
            } else if metadata.len() > 0 && path.file_name().is_some_and(|name| name != "lock" && name != "identity") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Cuts one file, or flips bits of it at up to eight places. Says what was done.
fn damage(node: &Node, chances: &mut StdRng) -> String {
    let files = files(&node.dir);
    // The log half of the time: most files belong to snapshots.
    let logs: Vec<_> = files.iter().filter(|path| path.parent() == Some(&node.dir)).collect();
    let path = match chances.random_bool(0.5) && !logs.is_empty() {
        true => logs[chances.random_range(0..logs.len())],
        false => &files[chances.random_range(0..files.len())],
    };
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (len, name) = (file.metadata().unwrap().len(), path.strip_prefix(&node.dir).unwrap().display());
    if chances.random_bool(0.4) {
        // Near the end as often as anywhere.
        let most = if chances.random_bool(0.5) { len.min(4_096) } else { len };
        let cut = chances.random_range(1..=most);
        file.set_len(len - cut).unwrap();
        return format!("{name} cut from {len} to {}", len - cut);
    }
    let places: Vec<u64> = (0..chances.random_range(1..=8)).map(|_| chances.random_range(0..len)).collect();
    for place in &places {
        let mut byte = [0];
        file.read_exact_at(&mut byte, *place).unwrap();
        file.write_all_at(&[byte[0] ^ chances.random_range(1..=255_u8)], *place).unwrap();
    }
    format!("{name} of {len} bytes flipped at {places:?}")
}

/// What a damaged node did.
async fn outcome(cluster: &mut Cluster, victim: usize, what: &str) -> &'static str {
    fs::remove_file(cluster.nodes[victim].log_path()).unwrap();
    cluster.nodes[victim].start();
    let began = Instant::now();
    let outcome = loop {
        if let Some(status) = cluster.nodes[victim].ended() {
            let log = cluster.nodes[victim].log();
            let names_the_way = log.contains("rejoins as a fresh learner") && log.contains("--bootstrap=never");
            assert!(!status.success() && names_the_way, "{what}: ended with {status}:\n{log}");
            break "refused, and rejoined empty";
        }
        if cluster.nodes[victim].status().await.is_some_and(|status| status.ready) {
            let log = cluster.nodes[victim].log();
            break if log.contains("set aside") { "snapshot set aside" } else { "repaired or untouched" };
        }
        assert!(began.elapsed() < PATIENCE, "{what}: neither came back nor refused\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let log = cluster.nodes[victim].log();
    // An engine may panic over such a file, if the node makes a refusal of it.
    assert!(
        !log.contains("panicked at") || log.contains("panicked over it") || log.contains("set aside"),
        "{what}:\n{log}"
    );
    File::options().write(true).open(cluster.nodes[victim].log_path()).unwrap().set_len(0).unwrap();
    if !cluster.nodes[victim].runs() {
        cluster.nodes[victim].empty_disk();
        cluster.nodes[victim].flags.push("--bootstrap=never".into());
        cluster.nodes[victim].start();
        cluster.nodes[victim].flags.pop();
    }
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_files_lose_nothing_in_silence() {
    let (seed, mut chances) = chances("4 damaged files");
    let mut cluster = Cluster::new(NODES as u32, &["--snapshot-log-entries=100", "--keep-log-entries=20"]);
    cluster.start_all();
    cluster.settle().await;
    let load = Load::start(&cluster);
    load.flows(&[0, 1, 2], 100, &cluster).await;
    let (mut outcomes, total) = (BTreeMap::<&str, u32>::new(), rounds_of(50, 200));
    for n in 0..total {
        load.flows(&[0, 1, 2], 5, &cluster).await;
        // A follower mostly: an election each round would be another test.
        let leader = cluster.leader().await;
        let victim = if n % 10 == 9 { leader } else { (leader + 1 + n as usize % 2) % NODES };
        load.down(victim);
        cluster.nodes[victim].kill();
        let what = damage(&cluster.nodes[victim], &mut chances);
        let came = outcome(&mut cluster, victim, &what).await;
        cluster
            .wait_for(victim, "a voter", |s| s.ready && s.members.iter().any(|m| m.node_id == s.node_id && m.voter))
            .await;
        println!("{what}: {came}");
        *outcomes.entry(came).or_default() += 1;
        cluster.settle().await;
        load.up(victim);
        load.watcher.assert_sound();
    }
    let summary = load.finish(&mut cluster).await;
    println!(
        "CHAOS 4 | log and snapshot files cut or flipped | {total} rounds, seed {seed} | {outcomes:?} | {summary}"
    );
}
