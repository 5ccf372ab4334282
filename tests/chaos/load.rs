//! Traffic on every node of a cluster: one producer and one gateway each, and what they have to say at the end.

use crate::cluster::{Cluster, PATIENCE};
use crate::oracle::{Alive, Latencies, Producer, gateway};
use crate::watcher::Watcher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tonic::Status;

/// Producers, gateways and the watcher of one cluster.
pub struct Load {
    pub producers: Vec<Producer>,
    pub watcher: Watcher,
    writing: Alive,
    reading: Alive,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    gateways: Vec<JoinHandle<Vec<Status>>>,
    asked: Vec<Arc<AtomicU64>>,
    latencies: Vec<Latencies>,
}

impl Load {
    /// Begins on all nodes, which must be settled.
    pub fn start(cluster: &Cluster) -> Self {
        let size = cluster.nodes.len();
        let producers: Vec<Producer> = (0..size).map(Producer::new).collect();
        let mut load = Self {
            watcher: Watcher::start(cluster, &producers),
            producers,
            writing: Alive::new(size),
            reading: Alive::new(size),
            stop: Arc::default(),
            tasks: Vec::new(),
            gateways: Vec::new(),
            asked: (0..size).map(|_| Arc::default()).collect(),
            latencies: (0..size).map(|_| Latencies::default()).collect(),
        };
        for (i, node) in cluster.nodes.iter().enumerate() {
            let producer = load.producers[i].clone();
            load.tasks.push(tokio::spawn(producer.run(node.client(), i, load.writing.clone(), load.stop.clone())));
            let (alive, stop, asked) = (load.reading.clone(), load.stop.clone(), load.asked[i].clone());
            let gateway = gateway(node.client(), i, alive, stop, asked, load.latencies[i].clone());
            load.gateways.push(tokio::spawn(gateway));
        }
        load
    }

    /// A node is about to be taken down: its calls may fail from now on, and no new ones are made.
    pub fn down(&self, node: usize) {
        self.writing.set(node, false);
        self.reading.set(node, false);
    }

    /// It is ready again.
    pub fn up(&self, node: usize) {
        self.writing.set(node, true);
        self.reading.set(node, true);
    }

    /// Its lookups may fail for a while; its producer goes on.
    pub fn may_not_answer(&self, node: usize) {
        self.reading.set(node, false);
    }

    /// Lookups must be answered again.
    pub fn must_answer(&self, node: usize) {
        self.reading.set(node, true);
    }

    /// Its producer goes on in a new life of the node.
    pub fn writes_again(&self, node: usize) {
        self.writing.set(node, true);
    }

    /// Waits until these nodes have acknowledged so many calls more.
    pub async fn flows(&self, nodes: &[usize], calls: u64, cluster: &Cluster) {
        for node in nodes {
            self.producers[*node].flows(calls, cluster).await;
        }
        self.watcher.assert_sound();
    }

    /// Waits until calls that began after `since` were acknowledged on these nodes, and gives the longest wait.
    pub async fn writes_since(&self, nodes: &[usize], since: Instant, cluster: &Cluster) -> Duration {
        let began = Instant::now();
        loop {
            let waits: Vec<Option<Duration>> =
                nodes.iter().map(|node| self.producers[*node].first_ack_since(since)).collect();
            if let Some(waits) = waits.into_iter().collect::<Option<Vec<_>>>() {
                return waits.into_iter().max().unwrap_or_default();
            }
            assert!(began.elapsed() < PATIENCE, "no writes on {nodes:?}\n{}", cluster.logs());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The longest time without an acknowledgement since then on any of these nodes.
    pub fn longest_gap(&self, nodes: &[usize], since: Instant) -> Duration {
        nodes.iter().map(|node| self.producers[*node].longest_gap(since)).max().unwrap_or_default()
    }

    /// How long lookups took that were answered by these nodes between two moments.
    pub fn lookups(&self, nodes: &[usize], from: Instant, to: Instant) -> Vec<Duration> {
        let one = |node: &usize| {
            let all = self.latencies[*node].lock().unwrap();
            let begin = all.partition_point(|(at, _)| *at < from);
            all[begin..].iter().take_while(|(at, _)| *at < to).map(|(_, took)| *took).collect::<Vec<_>>()
        };
        nodes.iter().flat_map(one).collect()
    }

    /// Ends the traffic and holds the cluster to everything: no lookup failed, digests are equal, what was acknowledged
    /// is there on every node, nobody panicked, the watcher saw nothing wrong. Returns a line about how much that was.
    pub async fn finish(self, cluster: &mut Cluster) -> String {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        for (i, gateway) in self.gateways.into_iter().enumerate() {
            let failures = gateway.await.unwrap();
            assert!(failures.is_empty(), "lookups failed on n{i} while it was alive: {failures:?}\n{}", cluster.logs());
        }
        let index = cluster.assert_digests_equal().await;
        let mut chains = 0;
        for producer in &self.producers {
            chains += producer.assert_holds(cluster).await;
            let failures = producer.failures.lock().unwrap().clone();
            assert!(failures.is_empty(), "producers may see UNAVAILABLE alone: {failures:?}\n{}", cluster.logs());
        }
        cluster.assert_no_panic();
        let watched = self.watcher.finish().await;
        let asked: u64 = self.asked.iter().map(|asked| asked.load(Ordering::SeqCst)).sum();
        let acknowledged: u64 = self.producers.iter().map(|p| p.acknowledged.load(Ordering::SeqCst)).sum();
        assert!(asked > 0 && chains > 0, "{asked} lookups, {chains} chains");
        format!(
            "{acknowledged} calls acknowledged, {chains} chains held on {} nodes at log index {index}, {asked} lookups; \
             {watched}",
            cluster.nodes.len()
        )
    }
}
