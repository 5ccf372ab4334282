//! SIGKILL to a node, to the leader, to all, under traffic on every node.

use crate::cluster::{Cluster, rounds};
use crate::oracle::{Alive, Producer, gateway};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

const NODES: usize = 3;

/// Kills these nodes for real, and waits until they are back and settled.
async fn kill_and_restart(cluster: &mut Cluster, alive: &Alive, victims: &[usize]) {
    for victim in victims {
        alive.set(*victim, false);
        cluster.nodes[*victim].kill();
    }
    if victims.len() < NODES {
        // The survivors go on by themselves.
        cluster.settle().await;
    }
    cluster.start_all();
    cluster.settle().await;
    for victim in victims {
        alive.set(*victim, true);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_nodes_are_killed() {
    let mut cluster = Cluster::new(NODES as u32, &["--snapshot-log-entries=200", "--keep-log-entries=50"]);
    cluster.start_all();
    cluster.settle().await;
    let alive = Alive::new(NODES);
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicU64::new(0));
    let producers: Vec<Producer> = (0..NODES).map(Producer::new).collect();
    let mut tasks = Vec::new();
    let mut gateways = Vec::new();
    for (i, producer) in producers.iter().enumerate() {
        let node = &cluster.nodes[i];
        tasks.push(tokio::spawn(producer.clone().run(node.client(), i, alive.clone(), stop.clone())));
        gateways.push(tokio::spawn(gateway(node.client(), i, alive.clone(), stop.clone(), asked.clone())));
    }
    let total = rounds(10);
    for round in 0..total {
        let began = Instant::now();
        for producer in &producers {
            producer.flows(20, &cluster).await;
        }
        let leader = cluster.leader().await;
        kill_and_restart(&mut cluster, &alive, &[(leader + 1) % NODES]).await;
        producers[leader].flows(5, &cluster).await;
        let leader = cluster.leader().await;
        let term = cluster.nodes[leader].status().await.unwrap().term;
        kill_and_restart(&mut cluster, &alive, &[leader]).await;
        let next = cluster.nodes[(leader + 1) % NODES].status().await.unwrap();
        assert!(next.term > term, "the leader was killed and no other was elected: {next:?}");
        producers[(leader + 1) % NODES].flows(5, &cluster).await;
        kill_and_restart(&mut cluster, &alive, &[0, 1, 2]).await;
        println!("round {} of {total}: {:.1} s", round + 1, began.elapsed().as_secs_f64());
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    for (i, gateway) in gateways.into_iter().enumerate() {
        let failures = gateway.await.unwrap();
        assert!(failures.is_empty(), "lookups failed on n{i} while it was alive: {failures:?}\n{}", cluster.logs());
    }
    let index = cluster.assert_digests_equal().await;
    let mut chains = 0;
    for producer in &producers {
        chains += producer.assert_holds(&cluster).await;
        let failures = producer.failures.lock().unwrap().clone();
        assert!(failures.is_empty(), "producers may see UNAVAILABLE alone: {failures:?}");
    }
    cluster.assert_no_panic();
    assert!(asked.load(Ordering::SeqCst) > 0 && chains > 0);
    println!(
        "{chains} acknowledged chains held on {NODES} nodes at log index {index}; {} lookups",
        asked.load(Ordering::SeqCst)
    );
}
