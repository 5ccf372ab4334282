//! What must hold all the while, whatever is being done to the nodes. One task a node asks it ten times a second, by
//! its own address and never through the proxy, and writes down what contradicts an earlier answer of anybody:
//!
//! - what was acknowledged is there on every node that has applied it, and what was evicted is not;
//! - equal log index, equal digest, on all nodes and in all their lives, so also: what is committed never changes;
//! - at most one leader a term; a disk's term never goes back;
//! - cluster time, the committed and the applied index never go back within a life;
//! - purged <= snapshot <= applied <= committed, but that a received snapshot is ahead of both for as long as it is loaded;
//! - nobody's log tells of a panic.

use crate::cluster::{Cluster, channel};
use crate::oracle::Producer;
use prefixd_proto::admin::admin_client::AdminClient;
use prefixd_proto::admin::{DigestRequest, StatusRequest, StatusResponse};
use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

const POLL_PAUSE: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a received snapshot may take to be loaded.
const LOADING_LIMIT: Duration = Duration::from_secs(20);
/// Chains of each producer that each node is asked for at each poll.
const SAMPLES: usize = 3;
/// Digests that are remembered.
const MAX_DIGESTS: usize = 200_000;
/// Violations that are written down.
const MAX_VIOLATIONS: usize = 50;

/// What all nodes have said so far.
#[derive(Default)]
struct Seen {
    /// By cluster and term: the leader, and who said so.
    leaders: BTreeMap<(Vec<u8>, u64), (u64, String)>,
    /// By cluster and log index: the digest, and who said so.
    digests: BTreeMap<(Vec<u8>, u64), (Vec<u8>, String)>,
    /// By disk: the highest term.
    terms: BTreeMap<u64, u64>,
    /// By node: when it was asked last with success, and its answer.
    answers: BTreeMap<usize, (Instant, StatusResponse)>,
    /// By node: a moment, and a log index up to which everything is applied that the node had acknowledged before. Only
    /// a ready node is at such an index: one that restarted has yet to hear what it had acknowledged.
    fences: BTreeMap<usize, (Instant, u64)>,
    violations: Vec<String>,
}

/// Watches a cluster until it is finished.
pub struct Watcher {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    logs: Vec<(String, PathBuf)>,
    counts: Arc<Counts>,
}

/// How much was looked at.
#[derive(Default)]
struct Counts {
    polls: AtomicU64,
    digests_compared: AtomicU64,
    chains: AtomicU64,
}

struct Eye {
    number: usize,
    name: String,
    admin: AdminClient<Channel>,
    lookups: InferenceCacheClient<Channel>,
    producers: Vec<Producer>,
    seen: Arc<Mutex<Seen>>,
    counts: Arc<Counts>,
    chances: StdRng,
    last: Option<StatusResponse>,
    /// Since when the node has a newer snapshot than it has loaded.
    loading_since: Option<Instant>,
}

impl Watcher {
    /// Producer i reports to node i.
    pub fn start(cluster: &Cluster, producers: &[Producer]) -> Self {
        let (seen, stop, counts) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default(), Arc::default());
        let eyes = cluster.nodes.iter().enumerate().map(|(number, node)| Eye {
            number,
            name: node.name.clone(),
            admin: AdminClient::new(channel(&node.host, 9091)),
            lookups: node.client(),
            producers: producers.to_vec(),
            seen: seen.clone(),
            counts: Arc::clone(&counts),
            chances: StdRng::seed_from_u64(number as u64),
            last: None,
            loading_since: None,
        });
        let tasks = eyes.map(|eye| tokio::spawn(eye.watch(stop.clone()))).collect();
        let logs = cluster.nodes.iter().map(|node| (node.name.clone(), node.log_path())).collect();
        Self { seen, stop, tasks, logs, counts }
    }

    /// Fails if anything was wrong so far.
    pub fn assert_sound(&self) {
        let violations = self.seen.lock().unwrap().violations.clone();
        assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
    }

    /// Ends the watch, fails if anything was wrong, and says how much was looked at.
    pub async fn finish(self) -> String {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        for (name, path) in &self.logs {
            let log = std::fs::read_to_string(path).unwrap_or_default();
            let panic = log.lines().find(|line| line.contains("panicked at"));
            assert!(panic.is_none(), "{name} panicked: {panic:?}");
        }
        let violations = self.seen.lock().unwrap().violations.clone();
        assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
        let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        let (polls, digests) = (count(&self.counts.polls), count(&self.counts.digests_compared));
        assert!(polls > 0, "nobody was watched");
        format!("watched: {polls} polls, {digests} digests compared, {} chains", count(&self.counts.chains))
    }
}

impl Seen {
    fn violation(&mut self, what: String) {
        if self.violations.len() < MAX_VIOLATIONS {
            println!("VIOLATION {what}");
            self.violations.push(what);
        }
    }

    fn leader(&mut self, cluster: &[u8], term: u64, leader: u64, by: &str) {
        let known = self.leaders.entry((cluster.to_vec(), term)).or_insert_with(|| (leader, by.to_owned())).clone();
        if known.0 != leader {
            let first = known.1;
            self.violation(format!("two leaders in term {term}: {:016x} ({first}), {leader:016x} ({by})", known.0));
        }
    }

    /// True if somebody had given a digest of that index before.
    fn digest(&mut self, cluster: &[u8], index: u64, digest: &[u8], by: &str) -> bool {
        while self.digests.len() > MAX_DIGESTS {
            self.digests.pop_first();
        }
        let key = (cluster.to_vec(), index);
        let Some((known, first)) = self.digests.get(&key).cloned() else {
            self.digests.insert(key, (digest.to_vec(), by.to_owned()));
            return false;
        };
        if known != digest {
            self.violation(format!("digests differ at {index}: {known:02x?} ({first}), {digest:02x?} ({by})"));
        }
        first != by
    }
}

impl Eye {
    async fn watch(mut self, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::SeqCst) {
            self.poll().await;
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }

    async fn poll(&mut self) {
        let asked = Instant::now();
        let Ok(Ok(answer)) = tokio::time::timeout(ANSWER_TIMEOUT, self.admin.status(StatusRequest {})).await else {
            return;
        };
        let status = answer.into_inner();
        if status.cluster_id.is_empty() {
            self.last = None;
            return;
        }
        self.counts.polls.fetch_add(1, Ordering::Relaxed);
        self.loading_since = match self.loading_since {
            _ if status.snapshot_index <= status.applied_index => None,
            since => since.or(Some(asked)),
        };
        self.judge(&status);
        {
            let mut seen = self.seen.lock().unwrap();
            seen.answers.insert(self.number, (asked, status.clone()));
            if status.ready {
                seen.fences.insert(self.number, (asked, status.applied_index));
            }
        }
        let _late = tokio::time::timeout(ANSWER_TIMEOUT, self.compare_digests(&status)).await;
        let _late = tokio::time::timeout(ANSWER_TIMEOUT, self.look_up(&status)).await;
        self.last = Some(status);
    }

    /// Holds one answer to itself, to this node's last one, and to what others said.
    fn judge(&self, status: &StatusResponse) {
        let mut seen = self.seen.lock().unwrap();
        let (name, cluster) = (&self.name, &status.cluster_id);
        let order = [status.purged_index, status.snapshot_index, status.applied_index, status.committed_index];
        let [purged, snapshot, applied, committed] = order;
        let is_loading = self.loading_since.is_some_and(|since| since.elapsed() < LOADING_LIMIT);
        // Of a disk that has no whole snapshot left one is fetched before Raft begins; until then it serves nobody.
        let is_fetching = status.role == "unassigned" && !status.ready && snapshot == 0 && applied == 0;
        if (purged > snapshot && !is_fetching) || applied > committed || (snapshot > applied && !is_loading) {
            seen.violation(format!("{name}: purged, snapshot, applied, committed: {order:?}"));
        }
        if status.role == "leader" {
            seen.leader(cluster, status.term, status.node_id, name);
        }
        if let Some(leader) = status.leader {
            seen.leader(cluster, status.term, leader, name);
        }
        let term = *seen.terms.entry(status.node_id).and_modify(|term| *term = status.term.max(*term)).or_default();
        if status.term < term && status.term > 0 {
            seen.violation(format!("{name}: its term went back from {term} to {}", status.term));
        }
        let life = |status: &StatusResponse| (status.node_id, status.incarnation);
        if let Some(last) = self.last.as_ref().filter(|last| life(last) == life(status)) {
            let pairs = [
                ("cluster time", last.cluster_time_us, status.cluster_time_us),
                ("the applied index", last.applied_index, status.applied_index),
                ("the committed index", last.committed_index, status.committed_index),
                ("the purged index", last.purged_index, status.purged_index),
            ];
            for (what, before, now) in pairs.into_iter().filter(|(_, before, now)| now < before) {
                seen.violation(format!("{name}: {what} went back from {before} to {now}"));
            }
        }
        seen.digest(cluster, status.applied_index, &status.digest, name);
    }

    /// Asks for the digest at an index that all have applied, so that all are compared although none stands still.
    async fn compare_digests(&mut self, status: &StatusResponse) {
        let common = {
            let seen = self.seen.lock().unwrap();
            let same = seen.answers.values().filter(|(_, other)| other.cluster_id == status.cluster_id);
            same.map(|(_, other)| other.applied_index).min()
        };
        let Some(index) = common.filter(|index| *index > 0) else { return };
        let Ok(answer) = self.admin.digest(DigestRequest { index: Some(index) }).await else { return };
        let compared =
            self.seen.lock().unwrap().digest(&status.cluster_id, index, &answer.into_inner().digest, &self.name);
        self.counts.digests_compared.fetch_add(u64::from(compared), Ordering::Relaxed);
    }

    /// Looks up what was acknowledged by nodes that had applied no more than this one has.
    async fn look_up(&mut self, status: &StatusResponse) {
        for (number, producer) in self.producers.clone().into_iter().enumerate() {
            let fence = self.seen.lock().unwrap().fences.get(&number).copied();
            let Some((until, index)) = fence.filter(|(_, index)| *index <= status.applied_index) else { continue };
            let (checked, wrong) = producer.contradictions(&mut self.lookups, until, SAMPLES, &mut self.chances).await;
            self.counts.chains.fetch_add(checked as u64, Ordering::Relaxed);
            if wrong.is_empty() || !self.is_still(status).await {
                continue;
            }
            let mut seen = self.seen.lock().unwrap();
            for what in wrong {
                let own = status.applied_index;
                seen.violation(format!("{} at {own}, n{number} having been at {index}: {what}", self.name));
            }
        }
    }

    /// Whether the node lives the life that this answer came from: one that restarted meanwhile knows less.
    async fn is_still(&mut self, status: &StatusResponse) -> bool {
        let again = tokio::time::timeout(ANSWER_TIMEOUT, self.admin.status(StatusRequest {})).await;
        let again = again.ok().and_then(Result::ok).map(tonic::Response::into_inner);
        again.is_some_and(|again| again.node_id == status.node_id && again.incarnation == status.incarnation)
    }
}
