//! A sync of the log fails once with EIO, and what it should have made durable is gone. The process ends and says why: it
//! tries nothing again, and acknowledges nothing that was not synced. The others go on, and the next start is like any other.

use crate::cluster::Cluster;
use crate::figures::{chances, rounds_of};
use crate::load::Load;
use crate::shim::{FailingSync, ForgetfulDisk, Loss, library};

const NODES: usize = 3;
const FLAGS: [&str; 2] = ["--snapshot-log-entries=300", "--keep-log-entries=50"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_ends_the_process_and_takes_nothing_that_was_acknowledged() {
    let Some(library) = library() else { return };
    let (seed, mut chances) = chances("failed sync");
    let (mut ended, total) = (0, rounds_of(1, 20));
    let mut summaries = Vec::new();
    for file in ["log.redb", "log.mark"] {
        let mut cluster = Cluster::new(NODES as u32, &FLAGS);
        let disks: Vec<(ForgetfulDisk, FailingSync)> = cluster
            .nodes
            .iter_mut()
            .map(|node| (ForgetfulDisk::under(node, library), FailingSync::under(node, library, file)))
            .collect();
        cluster.start_all();
        cluster.settle().await;
        let load = Load::start(&cluster);
        for phase in (0..total).flat_map(|_| ["a follower", "the leader"]) {
            load.flows(&[0, 1, 2], 30, &cluster).await;
            let leader = cluster.leader().await;
            let victim = if phase == "the leader" { leader } else { (leader + 1) % NODES };
            let (disk, sync) = &disks[victim];
            load.down(victim);
            sync.arm();
            cluster.nodes[victim].ends_by_itself().await;
            assert!(
                sync.has_failed(),
                "{} ended before its disk failed\n{}",
                cluster.nodes[victim].name,
                cluster.logs()
            );
            let log = cluster.nodes[victim].log();
            let named = log.lines().any(|line| line.contains("the log store failed") && line.contains(file));
            assert!(named && log.contains("prefixd ends"), "it ended without a word of {file}\n{}", cluster.logs());
            ended += 1;
            // After a failed sync nobody knows what the pages that it was to write have become.
            let taken = disk.lose(Loss::All, &mut chances);
            let others: Vec<usize> = (0..NODES).filter(|i| *i != victim).collect();
            load.flows(&others, 20, &cluster).await;
            cluster.nodes[victim].start();
            cluster.settle().await;
            load.up(victim);
            println!(
                "{phase}: a sync of {file} failed, {} writes were lost, the next start was like any other",
                taken.writes
            );
        }
        load.flows(&[0, 1, 2], 20, &cluster).await;
        summaries.push(load.finish(&mut cluster).await);
    }
    println!(
        "CHAOS 7 | a sync of the log fails with EIO, its writes are lost | {ended} rounds, seed {seed} | every process ended \
         by itself, with a failure and by name; 0 lost; {}",
        summaries.join("; ")
    );
}
