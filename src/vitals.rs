//! How current this node is, sampled a few times a second: for the headers of lookups, /readyz and grpc.health.v1.
//! Lookups read the last sample without a lock instead of asking the node each time.

use arc_swap::ArcSwap;
use prefixd_raft::Node;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::HeaderValue;

/// Between samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// Whether the node takes work, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It does.
    Ready,
    /// It doesn't; the reason is for people.
    Unready(String),
}

/// The last sample, shared.
#[derive(Debug)]
pub struct Vitals {
    sample: ArcSwap<Sample>,
    readiness: watch::Sender<Readiness>,
    stopping: CancellationToken,
}

/// What one look at the node saw.
#[derive(Debug)]
pub struct Sample {
    /// The cluster's id in hex; empty while there is none.
    pub cluster: HeaderValue,
    stale_ms: u64,
    taken: Instant,
}

impl Sample {
    fn of(node: &Node) -> Self {
        let cluster = node.cluster_id().and_then(|id| format!("{id:032x}").parse().ok());
        Self {
            cluster: cluster.unwrap_or_else(|| HeaderValue::from_static("")),
            stale_ms: node.stale_ms(),
            taken: Instant::now(),
        }
    }

    /// Milliseconds since this node last knew that it was current, as of now.
    pub fn stale_ms(&self) -> u64 {
        match self.stale_ms {
            0 => 0,
            ms => ms.saturating_add(u64::try_from(self.taken.elapsed().as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

impl Vitals {
    /// Takes a first sample. Once `stopping` is cancelled the node counts as unready.
    pub fn new(node: &Node, stopping: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            sample: ArcSwap::from_pointee(Sample::of(node)),
            readiness: watch::Sender::new(readiness(node)),
            stopping,
        })
    }

    /// The last sample.
    pub fn sample(&self) -> arc_swap::Guard<Arc<Sample>> {
        self.sample.load()
    }

    /// Readiness, to look at or to wait on.
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Samples until the node stops; ends with the node unready.
    pub async fn run(self: Arc<Self>, node: Node) {
        let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while self.stopping.run_until_cancelled(ticks.tick()).await.is_some() {
            self.sample.store(Arc::new(Sample::of(&node)));
            let now = readiness(&node);
            self.readiness.send_if_modified(|last| {
                let changed = *last != now;
                last.clone_from(&now);
                changed
            });
        }
        self.readiness.send_replace(Readiness::Unready("stopping".into()));
    }
}

fn readiness(node: &Node) -> Readiness {
    match node.readiness() {
        (true, _) => Readiness::Ready,
        (false, reason) => Readiness::Unready(reason),
    }
}
