//! Clients that remember what was acknowledged. A report that was not acknowledged may or may not be there; one that
//! was must be, on every node, and what was evicted and acknowledged must not.

use crate::cluster::{Cluster, PATIENCE};
use crate::figures::Figures;
use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use prefixd_proto::inferencecache::{
    CacheEvent, CacheStateUpdate, LookupRouteRequest, LookupRouteResponse, PrefixEntry, cache_event,
};
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Blocks of each reported chain.
const BLOCKS: u64 = 16;
const BLOCK_TOKENS: i32 = 64;
/// Chains that a producer keeps reporting, one after the other. Small enough to be checked whole, large enough that
/// the index is more than a few pages.
const CHAINS: usize = 600;
/// Longest wait for one answer: a node gives up after ten seconds, and it may be stopped for twenty.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Contradictions that are told of each node.
pub const TOLD: usize = 20;
/// Between two calls of a producer.
const PRODUCER_PAUSE: Duration = Duration::from_millis(4);

/// What one producer knows of one chain that it reported.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Acknowledged: all of it must be there.
    Present,
    /// Its eviction was acknowledged after its report was.
    Evicted,
    /// The last call about it was not acknowledged.
    Unknown,
}

/// A chain's fate, and since when it is known.
#[derive(Copy, Clone, Debug)]
pub struct Known {
    pub fate: Fate,
    pub since: Instant,
    /// The life of the node in which a call about it was not acknowledged, if one was. Within that life the node keeps
    /// the order of its calls; a call of an earlier life may be on its way still, and take effect whenever it arrives.
    open: Option<u64>,
}

/// One call that was acknowledged.
#[derive(Copy, Clone, Debug)]
pub struct Acked {
    pub began: Instant,
    pub ended: Instant,
}

/// A producer that reports to one node, as one replica of a tenant of its own.
#[derive(Clone)]
pub struct Producer {
    number: usize,
    fates: Arc<Mutex<BTreeMap<u64, Known>>>,
    acks: Arc<Mutex<Vec<Acked>>>,
    /// Calls acknowledged so far.
    pub acknowledged: Arc<AtomicU64>,
    /// Statuses of calls that failed while their node was alive.
    pub failures: Arc<Mutex<Vec<Status>>>,
}

/// Which nodes a test has not taken down: a call that fails on one that was taken down while it ran proves nothing.
#[derive(Clone, Default)]
pub struct Alive(Arc<Vec<(AtomicBool, AtomicU64)>>);

impl Alive {
    /// All alive.
    pub fn new(nodes: usize) -> Self {
        Self(Arc::new((0..nodes).map(|_| (AtomicBool::new(true), AtomicU64::new(0))).collect()))
    }

    /// To be called before a node is killed, and after it is ready again.
    pub fn set(&self, node: usize, alive: bool) {
        self.0[node].1.fetch_add(1, Ordering::SeqCst);
        self.0[node].0.store(alive, Ordering::SeqCst);
    }

    /// A life of a node, if it is alive.
    pub fn life(&self, node: usize) -> Option<u64> {
        let life = self.0[node].1.load(Ordering::SeqCst);
        self.0[node].0.load(Ordering::SeqCst).then_some(life)
    }
}

/// The hash of one block of a chain that a producer reports.
pub fn hash(producer: usize, chain: u64, block: u64) -> Vec<u8> {
    let mut bytes = (producer as u64).to_be_bytes().to_vec();
    bytes.extend((chain * BLOCKS + block).to_be_bytes());
    bytes
}

impl Producer {
    /// Number `number`.
    pub fn new(number: usize) -> Self {
        Self {
            number,
            fates: Arc::default(),
            acks: Arc::default(),
            acknowledged: Arc::default(),
            failures: Arc::default(),
        }
    }

    fn tenant(&self) -> String {
        format!("tenant-{}", self.number)
    }

    fn blocks(&self, chain: u64) -> Vec<bytes::Bytes> {
        (0..BLOCKS).map(|block| hash(self.number, chain, block).into()).collect()
    }

    fn update(&self, chain: u64) -> CacheStateUpdate {
        CacheStateUpdate {
            replica_id: "replica".into(),
            model_id: "model".into(),
            tenant_id: self.tenant(),
            hash_scheme: "vllm".into(),
            prefixes: vec![PrefixEntry {
                block_hashes: self.blocks(chain),
                block_token_counts: vec![BLOCK_TOKENS; BLOCKS as usize],
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn eviction(&self, chain: u64) -> CacheEvent {
        CacheEvent {
            r#type: cache_event::Type::PrefixEvicted.into(),
            replica_id: "replica".into(),
            model_id: "model".into(),
            tenant_id: self.tenant(),
            prefix_hash: hash(self.number, chain, 0).into(),
            ..Default::default()
        }
    }

    /// Reports chain after chain to one node until told to stop, evicting every fourth of those acknowledged, and
    /// begins again with the first when it has reported [`CHAINS`]. A chain of which nothing certain can be said any
    /// more is left alone, and a new one takes its place.
    pub async fn run(
        self,
        mut client: InferenceCacheClient<Channel>,
        node: usize,
        alive: Alive,
        stop: Arc<AtomicBool>,
    ) {
        let mut chains: Vec<u64> = (0..CHAINS as u64).collect();
        let mut next = chains.len() as u64;
        for at in (0..CHAINS).cycle() {
            if stop.load(Ordering::SeqCst) {
                return;
            }
            let Some(life) = alive.life(node) else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            if self.is_lost(chains[at], life) {
                chains[at] = next;
                next += 1;
            }
            let chain = chains[at];
            self.begins(chain, Fate::Present, life);
            let began = Instant::now();
            let report = client.report_cache_state(tokio_stream::once(self.update(chain)));
            let answer = within(report).await.map(|ack| ack.into_inner().accepted);
            if self.noted(answer, began, life, node, &alive).await {
                self.holds(chain, Fate::Present);
                if at % 4 == 3 {
                    self.begins(chain, Fate::Evicted, life);
                    let began = Instant::now();
                    let evicted = within(client.publish_event(self.eviction(chain))).await;
                    let answer = evicted.map(|ack| ack.into_inner().accepted);
                    if self.noted(answer, began, life, node, &alive).await {
                        self.holds(chain, Fate::Evicted);
                    }
                }
            }
            tokio::time::sleep(PRODUCER_PAUSE).await;
        }
    }

    /// A call that would bring a chain to this fate is about to be made.
    fn begins(&self, chain: u64, towards: Fate, life: u64) {
        let mut fates = self.fates.lock().unwrap();
        let now = Instant::now();
        let known = fates.entry(chain).or_insert(Known { fate: Fate::Unknown, since: now, open: None });
        // What is there stays there, whatever becomes of another report of it.
        if known.fate != towards {
            *known = Known { fate: Fate::Unknown, since: now, open: Some(life) };
        } else {
            known.open = Some(life);
        }
    }

    fn holds(&self, chain: u64, fate: Fate) {
        self.fates.lock().unwrap().insert(chain, Known { fate, since: Instant::now(), open: None });
    }

    /// Whether a call about the chain was left open in an earlier life of the node.
    fn is_lost(&self, chain: u64, life: u64) -> bool {
        let fates = self.fates.lock().unwrap();
        fates.get(&chain).is_some_and(|known| known.open.is_some_and(|open| open != life))
    }

    async fn noted(&self, answer: Result<bool, Status>, began: Instant, life: u64, node: usize, alive: &Alive) -> bool {
        match answer {
            Ok(accepted) => {
                assert!(accepted, "an Ack that is not accepted");
                self.acknowledged.fetch_add(1, Ordering::SeqCst);
                self.acks.lock().unwrap().push(Acked { began, ended: Instant::now() });
                true
            }
            Err(status) => {
                if alive.life(node) == Some(life) && status.code() != Code::Unavailable {
                    self.failures.lock().unwrap().push(status);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                false
            }
        }
    }

    /// What asks for a chain.
    pub fn lookup(&self, chain: u64) -> LookupRouteRequest {
        LookupRouteRequest {
            model_id: "model".into(),
            tenant_id: self.tenant(),
            hash_scheme: "vllm".into(),
            block_hashes: self.blocks(chain),
            block_token_counts: vec![BLOCK_TOKENS; BLOCKS as usize],
            ..Default::default()
        }
    }

    /// What a lookup through this client contradicts of what is known of a chain, if it does.
    async fn contradiction(
        &self,
        client: &mut InferenceCacheClient<Channel>,
        chain: u64,
        fate: Fate,
    ) -> Result<Option<String>, Status> {
        let want = match fate {
            Fate::Present => BLOCK_TOKENS * BLOCKS as i32,
            Fate::Evicted => 0,
            Fate::Unknown => return Ok(None),
        };
        let answer = client.lookup_route(self.lookup(chain)).await?.into_inner();
        let matched = answer.replica_scores.first().map_or(0, |score| score.matched_tokens);
        let number = self.number;
        Ok((matched != want).then(|| format!("chain {chain} of producer {number} is {fate:?}, but: {answer:?}")))
    }

    /// Looks a few chains up on a node that has applied all that was acknowledged before `until`, and says what is
    /// wrong. A chain that was called about meanwhile proves nothing.
    pub async fn contradictions(
        &self,
        client: &mut InferenceCacheClient<Channel>,
        until: Instant,
        count: usize,
        chances: &mut StdRng,
    ) -> (usize, Vec<String>) {
        let known: Vec<(u64, Known)> = {
            let fates = self.fates.lock().unwrap();
            let settled = fates.iter().filter(|(_, known)| known.fate != Fate::Unknown && known.since < until);
            settled.map(|(chain, known)| (*chain, *known)).collect()
        };
        let (mut checked, mut wrong) = (0, Vec::new());
        for _ in 0..count.min(known.len()) {
            let (chain, before) = known[chances.random_range(0..known.len())];
            let Ok(found) = self.contradiction(client, chain, before.fate).await else { break };
            let now = self.fates.lock().unwrap().get(&chain).copied();
            let same = now.is_some_and(|now| now.fate == before.fate && now.since == before.since);
            checked += usize::from(same);
            wrong.extend(found.filter(|_| same));
        }
        (checked, wrong)
    }

    /// Asserts on every running node that what was acknowledged holds. Returns how many chains were checked.
    pub async fn assert_holds(&self, cluster: &Cluster) -> usize {
        let wrong = self.lost(cluster).await;
        assert!(wrong.is_empty(), "{} contradictions:\n{}\n{}", wrong.len(), wrong.join("\n"), cluster.logs());
        self.known()
    }

    /// Chains of which something certain is known.
    pub fn known(&self) -> usize {
        self.fates.lock().unwrap().values().filter(|known| known.fate != Fate::Unknown).count()
    }

    /// Chains that must be there.
    pub fn present(&self) -> usize {
        self.fates.lock().unwrap().values().filter(|known| known.fate == Fate::Present).count()
    }

    /// What the running nodes' answers contradict, the first [`TOLD`] a node.
    pub async fn lost(&self, cluster: &Cluster) -> Vec<String> {
        let fates = self.fates.lock().unwrap().clone();
        let asking = cluster.nodes.iter().filter(|node| node.runs()).map(|node| {
            let (mut client, name, fates) = (node.client(), node.name.clone(), fates.clone());
            async move {
                let mut wrong = Vec::new();
                for (chain, known) in fates {
                    match self.contradiction(&mut client, chain, known.fate).await {
                        Ok(found) => wrong.extend(found.map(|what| format!("{name}: {what}"))),
                        Err(status) => wrong.push(format!("{name}: a lookup failed: {status}")),
                    }
                    if wrong.len() >= TOLD {
                        break;
                    }
                }
                wrong
            }
        });
        futures::future::join_all(asking).await.concat()
    }

    /// One call with an acknowledgement, for tests that report step by step.
    pub async fn report(&self, client: &mut InferenceCacheClient<Channel>, chain: u64) -> Result<(), Status> {
        self.begins(chain, Fate::Present, 0);
        let began = Instant::now();
        let ack = client.report_cache_state(tokio_stream::once(self.update(chain))).await?.into_inner();
        assert!(ack.accepted);
        self.holds(chain, Fate::Present);
        self.acks.lock().unwrap().push(Acked { began, ended: Instant::now() });
        Ok(())
    }

    /// Waits until this many calls more were acknowledged: the proof that traffic flows. It may trickle, on a machine
    /// that does much else, but not stop.
    pub async fn flows(&self, calls: u64, cluster: &Cluster) {
        let count = || self.acknowledged.load(Ordering::SeqCst);
        let (until, mut last, mut since) = (count() + calls, count(), Instant::now());
        while count() < until {
            if count() > last {
                (last, since) = (count(), Instant::now());
            }
            assert!(since.elapsed() < PATIENCE, "producer {} gets no Ack\n{}", self.number, cluster.logs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The longest time without an acknowledgement since `from`, the wait for the first one included.
    pub fn longest_gap(&self, from: Instant) -> Duration {
        let acks = self.acks.lock().unwrap();
        let begin = acks.partition_point(|ack| ack.ended < from);
        // The last one before tells when the gap began; it may have begun long before, in which case `from` counts.
        let (mut last, mut longest) = (from, Duration::ZERO);
        for ack in &acks[begin..] {
            longest = longest.max(ack.ended - last);
            last = ack.ended;
        }
        longest.max(last.elapsed())
    }

    /// Calls that began after `from` and were acknowledged before `to`.
    pub fn acked_within(&self, from: Instant, to: Instant) -> usize {
        let acks = self.acks.lock().unwrap();
        acks.iter().rev().take_while(|ack| ack.ended >= from).filter(|ack| ack.began >= from && ack.ended < to).count()
    }

    /// How long after `from` the first call that began after it was acknowledged.
    pub fn first_ack_since(&self, from: Instant) -> Option<Duration> {
        let acks = self.acks.lock().unwrap();
        let begin = acks.partition_point(|ack| ack.ended < from);
        acks[begin..].iter().find(|ack| ack.began >= from).map(|ack| ack.ended - from)
    }

    /// Latencies of the calls acknowledged between two moments.
    pub fn latencies(&self, from: Instant, to: Instant) -> Figures {
        let acks = self.acks.lock().unwrap();
        let begin = acks.partition_point(|ack| ack.ended < from);
        let mut figures = Figures::default();
        figures.extend(acks[begin..].iter().take_while(|ack| ack.ended < to).map(|ack| ack.ended - ack.began));
        figures
    }
}

async fn within<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let outcome = tokio::time::timeout(CALL_TIMEOUT, call).await;
    outcome.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer for a minute")))
}

/// When each lookup was answered, and how long it took.
pub type Latencies = Arc<Mutex<Vec<(Instant, Duration)>>>;

/// A gateway that asks one node all the time, and notes how long each answer took. A lookup may only fail if its node was
/// taken down meanwhile.
pub async fn gateway(
    mut client: InferenceCacheClient<Channel>,
    node: usize,
    alive: Alive,
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    latencies: Latencies,
) -> Vec<Status> {
    let producer = Producer::new(node);
    let mut failures = Vec::new();
    let mut chain = 0;
    while !stop.load(Ordering::SeqCst) {
        let Some(life) = alive.life(node) else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let mut request = tonic::Request::new(producer.lookup(chain % 100));
        request.set_timeout(Duration::from_secs(20));
        let began = Instant::now();
        match client.lookup_route(request).await {
            Ok(answer) => {
                let _: LookupRouteResponse = answer.into_inner();
                asked.fetch_add(1, Ordering::SeqCst);
                latencies.lock().unwrap().push((Instant::now(), began.elapsed()));
            }
            Err(status) if alive.life(node) == Some(life) => failures.push(status),
            Err(_) => {}
        }
        chain += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    failures
}
