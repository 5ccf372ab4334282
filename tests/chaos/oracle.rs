//! Clients that remember what was acknowledged. A report that was not acknowledged may or may not be there; one that
//! was must be, on every node, and what was evicted and acknowledged must not.

use crate::cluster::{Cluster, PATIENCE};
use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use prefixd_proto::inferencecache::{
    CacheEvent, CacheStateUpdate, LookupRouteRequest, LookupRouteResponse, PrefixEntry, cache_event,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Code, Status};

/// Blocks of each reported chain.
const BLOCKS: u64 = 16;
const BLOCK_TOKENS: i32 = 64;

/// What one producer knows of one chain that it reported.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// Acknowledged: all of it must be there.
    Present,
    /// Its eviction was acknowledged after its report was.
    Evicted,
    /// The last call about it was not acknowledged.
    Unknown,
}

/// A producer that reports to one node, as one replica of a tenant of its own.
#[derive(Clone)]
pub struct Producer {
    number: usize,
    fates: Arc<Mutex<BTreeMap<u64, Fate>>>,
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
        Self { number, fates: Arc::default(), acknowledged: Arc::default(), failures: Arc::default() }
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

    /// Reports chain after chain to one node until told to stop, evicting every fourth of those acknowledged.
    pub async fn run(
        self,
        mut client: InferenceCacheClient<Channel>,
        node: usize,
        alive: Alive,
        stop: Arc<AtomicBool>,
    ) {
        let mut chain = 0;
        while !stop.load(Ordering::SeqCst) {
            let Some(life) = alive.life(node) else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            self.set(chain, Fate::Unknown);
            let reported = client.report_cache_state(tokio_stream::once(self.update(chain))).await;
            if self.noted(reported.map(|ack| ack.into_inner().accepted), life, node, &alive).await {
                self.set(chain, Fate::Present);
                if chain % 4 == 3 {
                    self.set(chain, Fate::Unknown);
                    let evicted = client.publish_event(self.eviction(chain)).await;
                    if self.noted(evicted.map(|ack| ack.into_inner().accepted), life, node, &alive).await {
                        self.set(chain, Fate::Evicted);
                    }
                }
            }
            chain += 1;
        }
    }

    fn set(&self, chain: u64, fate: Fate) {
        self.fates.lock().unwrap().insert(chain, fate);
    }

    async fn noted(&self, answer: Result<bool, Status>, life: u64, node: usize, alive: &Alive) -> bool {
        match answer {
            Ok(accepted) => {
                assert!(accepted, "an Ack that is not accepted");
                self.acknowledged.fetch_add(1, Ordering::SeqCst);
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

    fn lookup(&self, chain: u64) -> LookupRouteRequest {
        LookupRouteRequest {
            model_id: "model".into(),
            tenant_id: self.tenant(),
            hash_scheme: "vllm".into(),
            block_hashes: self.blocks(chain),
            block_token_counts: vec![BLOCK_TOKENS; BLOCKS as usize],
            ..Default::default()
        }
    }

    /// Asserts on every node that what was acknowledged holds. Returns how many chains were checked.
    pub async fn assert_holds(&self, cluster: &Cluster) -> usize {
        let fates = self.fates.lock().unwrap().clone();
        for node in &cluster.nodes {
            let mut client = node.client();
            for (chain, fate) in &fates {
                let answer = client.lookup_route(self.lookup(*chain)).await.unwrap().into_inner();
                let matched = answer.replica_scores.first().map_or(0, |score| score.matched_tokens);
                let want = match fate {
                    Fate::Present => BLOCK_TOKENS * BLOCKS as i32,
                    Fate::Evicted => 0,
                    Fate::Unknown => continue,
                };
                assert_eq!(
                    matched, want,
                    "{}: chain {chain} of producer {} is {fate:?}: {answer:?}",
                    node.name, self.number
                );
            }
        }
        fates.values().filter(|fate| **fate != Fate::Unknown).count()
    }

    /// One call with an acknowledgement, for tests that report step by step.
    pub async fn report(&self, client: &mut InferenceCacheClient<Channel>, chain: u64) -> Result<(), Status> {
        self.set(chain, Fate::Unknown);
        let ack = client.report_cache_state(tokio_stream::once(self.update(chain))).await?.into_inner();
        assert!(ack.accepted);
        self.set(chain, Fate::Present);
        Ok(())
    }

    /// Waits until this many calls more were acknowledged: the proof that traffic flows.
    pub async fn flows(&self, calls: u64, cluster: &Cluster) {
        let (before, began) = (self.acknowledged.load(Ordering::SeqCst), Instant::now());
        while self.acknowledged.load(Ordering::SeqCst) < before + calls {
            assert!(began.elapsed() < PATIENCE, "producer {} gets no Ack\n{}", self.number, cluster.logs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A gateway that asks one node all the time. A lookup may only fail if its node was taken down meanwhile.
pub async fn gateway(
    mut client: InferenceCacheClient<Channel>,
    node: usize,
    alive: Alive,
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
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
        match client.lookup_route(request).await {
            Ok(answer) => {
                let _: LookupRouteResponse = answer.into_inner();
                asked.fetch_add(1, Ordering::SeqCst);
            }
            Err(status) if alive.life(node) == Some(life) => failures.push(status),
            Err(_) => {}
        }
        chain += 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    failures
}
