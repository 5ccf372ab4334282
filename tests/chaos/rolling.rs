//! A rolling restart: node after node is asked to stop, hands leadership over, and comes back. Clients that know all
//! nodes lose no lookup.

use crate::cluster::Cluster;
use crate::figures::{Figures, T, chances, judge, rounds_of};
use crate::load::Load;
use prefixd_client::{Client, Config};
use prefixd_proto::inferencecache::LookupRouteRequest;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NODES: usize = 3;
const MEDIAN_WRITE_GAP: Duration = Duration::from_millis(600);

/// Looks up through the shipped client until told to stop. Returns how many lookups were answered and which failed.
async fn lookups(endpoints: Vec<String>, stop: Arc<AtomicBool>) -> (u64, Vec<String>) {
    let client = Client::new(Config::new(endpoints)).unwrap();
    let (mut answered, mut failed) = (0, Vec::new());
    while !stop.load(Ordering::SeqCst) {
        let request = LookupRouteRequest {
            model_id: "model".into(),
            tenant_id: "tenant-0".into(),
            hash_scheme: "vllm".into(),
            prefix_hash: b"hash".as_slice().into(),
            ..Default::default()
        };
        match client.lookup(request).await {
            Ok(_) => answered += 1,
            Err(error) => failed.push(error.to_string()),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (answered, failed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_lookup_and_hardly_delays_a_write() {
    let (seed, _) = chances("9 rolling restart");
    let mut cluster = Cluster::new(NODES as u32, &["--snapshot-log-entries=400", "--keep-log-entries=100"]);
    cluster.start_all();
    cluster.settle().await;
    let load = Load::start(&cluster);
    let endpoints: Vec<String> = cluster.nodes.iter().map(|node| format!("{}:9090", node.host)).collect();
    let stop = Arc::<AtomicBool>::default();
    let asking: Vec<_> = (0..2).map(|_| tokio::spawn(lookups(endpoints.clone(), stop.clone()))).collect();
    let (mut gaps, mut of_leaders, mut stops) = (Figures::default(), Figures::default(), Figures::default());
    let total = rounds_of(2, 20);
    for _ in 0..total {
        // As a StatefulSet rolls: the last one first.
        for node in (0..NODES).rev() {
            load.flows(&[0, 1, 2], 10, &cluster).await;
            let led = cluster.leader().await == node;
            let others: Vec<usize> = (0..NODES).filter(|other| *other != node).collect();
            load.down(node);
            let asked = Instant::now();
            let status = cluster.nodes[node].stop().await;
            assert!(status.success(), "{status}\n{}", cluster.logs());
            stops.push(asked.elapsed());
            load.writes_since(&others, asked, &cluster).await;
            load.flows(&others, 5, &cluster).await;
            let gap = load.longest_gap(&others, asked);
            gaps.push(gap);
            if led {
                of_leaders.push(gap);
            }
            cluster.nodes[node].start();
            cluster.settle().await;
            load.up(node);
        }
    }
    stop.store(true, Ordering::SeqCst);
    let mut answered = 0;
    for task in asking {
        let (some, failed) = task.await.unwrap();
        assert!(failed.is_empty(), "{} lookups failed of {some}: {failed:?}\n{}", failed.len(), cluster.logs());
        answered += some;
    }
    let summary = load.finish(&mut cluster).await;
    println!(
        "CHAOS 9 | rolling restart with transfer | {total} rounds of {NODES} nodes, seed {seed} | 0 of {answered} lookups \
         failed; write gap on the others {}; of those where the leader stopped {}; time to stop {} | {summary}",
        gaps.line(),
        of_leaders.line(),
        stops.line()
    );
    judge("write gap", &gaps, &[(100.0, T)], MEDIAN_WRITE_GAP);
}
