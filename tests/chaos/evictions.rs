//! Turnover far beyond the cap and quotas, in LRU tenants, LFU tenants and one that changes between them, with lookups
//! on every node, nodes killed and restarted: victims are chosen in apply alone, so digests agree. That access counts
//! reach all nodes is shown by chains that only one node is asked for: they outlive the turnover on every node.

use crate::cluster::{Cluster, PATIENCE};
use crate::controller::{push, series};
use crate::oracle::Alive;
use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use prefixd_proto::inferencecache::{CacheStateUpdate, LookupRouteRequest, PrefixEntry};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::Code;
use tonic::transport::Channel;

const NODES: usize = 3;
const CAP: u64 = 20_000;
const QUOTA: u64 = 2_000;
const BLOCKS: u64 = 32;
const BLOCK_TOKENS: i32 = 16;
/// Chains of one update, updates of one call.
const UPDATE_CHAINS: u64 = 8;
const CALL_UPDATES: u64 = 8;
/// Tenants whose chains come and go; `mixed` changes its order at every kill.
const TENANTS: [&str; 5] = ["lru", "lfu", "lru-quota", "lfu-quota", "mixed"];
/// Numbers of chains that are reported once and asked for all the time, by one node each.
const HOT: u64 = 1 << 40;
/// Of the chains that come and go, gateways ask for one in this many.
const ASKED: u64 = 64;
/// Entries that are evicted between two kills.
const STEP: u64 = 20_000;

/// What the tasks share.
#[derive(Clone)]
struct Turnover {
    alive: Alive,
    stop: Arc<AtomicBool>,
    /// Chains of each tenant acknowledged so far by each node's producer.
    chains: Arc<Vec<AtomicU64>>,
    /// Entries acknowledged so far, each of them new.
    entries: Arc<AtomicU64>,
    /// Lookups of each node that were answered with a match.
    matches: Arc<Vec<AtomicU64>>,
}

fn asked_evictions() -> u64 {
    let asked = std::env::var("PREFIXD_CHAOS_EVICTIONS").ok();
    asked.map_or(300_000, |text| text.parse().expect("PREFIXD_CHAOS_EVICTIONS is a number"))
}

fn policies(mixed: &str) -> serde_json::Value {
    let policy = |namespace: &str, eviction: &str| json!({"namespace": namespace, "eviction": eviction});
    let quota = |tenant: &str| json!({"tenantID": tenant, "maxIndexEntries": QUOTA});
    json!({
        "version": 7,
        "policies": [policy("lfu", "lfu"), policy("lfu-quota", "lfu"), policy("mixed", mixed)],
        "tenants": [quota("lru-quota"), quota("lfu-quota")],
    })
}

fn hashes(tenant: &str, node: usize, chain: u64) -> Vec<bytes::Bytes> {
    let hash = |block| format!("{tenant}/{node}/{chain}/{block}").into();
    (0..BLOCKS).map(hash).collect()
}

fn update(tenant: &str, node: usize, chains: impl Iterator<Item = u64>) -> CacheStateUpdate {
    let entry = |chain| PrefixEntry {
        block_hashes: hashes(tenant, node, chain),
        block_token_counts: vec![BLOCK_TOKENS; BLOCKS as usize],
        ..Default::default()
    };
    CacheStateUpdate {
        replica_id: format!("replica-{node}"),
        model_id: "model".into(),
        tenant_id: tenant.into(),
        hash_scheme: "vllm".into(),
        prefixes: chains.map(entry).collect(),
        ..Default::default()
    }
}

/// Tokens that the best replica matches of a chain on one node.
async fn matched(client: &mut InferenceCacheClient<Channel>, tenant: &str, of: usize, chain: u64) -> Option<i32> {
    let request = LookupRouteRequest {
        model_id: "model".into(),
        tenant_id: tenant.into(),
        hash_scheme: "vllm".into(),
        block_hashes: hashes(tenant, of, chain),
        block_token_counts: vec![BLOCK_TOKENS; BLOCKS as usize],
        ..Default::default()
    };
    let answer = client.lookup_route(request).await.ok()?.into_inner();
    Some(answer.replica_scores.first().map_or(0, |score| score.matched_tokens))
}

/// Reports chains that nobody has reported before, tenant after tenant, to one node.
async fn producer(turnover: Turnover, mut client: InferenceCacheClient<Channel>, node: usize) {
    let mut chain = 0;
    while !turnover.stop.load(Ordering::SeqCst) {
        if turnover.alive.life(node).is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        for tenant in TENANTS {
            let updates = (0..CALL_UPDATES).map(|at| {
                let first = chain + at * UPDATE_CHAINS;
                update(tenant, node, first..first + UPDATE_CHAINS)
            });
            let updates: Vec<_> = updates.collect();
            match client.report_cache_state(tokio_stream::iter(updates)).await {
                Ok(_) => turnover.entries.fetch_add(CALL_UPDATES * UPDATE_CHAINS * BLOCKS, Ordering::SeqCst),
                Err(_) => break,
            };
        }
        chain += CALL_UPDATES * UPDATE_CHAINS;
        turnover.chains[node].store(chain, Ordering::SeqCst);
    }
}

/// Asks one node all the time: for its own hot chain, and for some of those that come and go.
async fn gateway(turnover: Turnover, mut client: InferenceCacheClient<Channel>, node: usize) {
    let mut round = 0;
    while !turnover.stop.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if turnover.alive.life(node).is_none() {
            continue;
        }
        round += 1;
        let of = round as usize % NODES;
        let recent = turnover.chains[of].load(Ordering::SeqCst).saturating_sub(1) / ASKED * ASKED;
        let tenant = TENANTS[round as usize % TENANTS.len()];
        for (tenant, of, chain) in [("lfu", node, HOT), (tenant, of, recent)] {
            if matched(&mut client, tenant, of, chain).await.is_some_and(|tokens| tokens > 0) {
                turnover.matches[node].fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

impl Turnover {
    fn new() -> Self {
        let counters = || Arc::new((0..NODES).map(|_| AtomicU64::new(0)).collect());
        Self {
            alive: Alive::new(NODES),
            stop: Arc::default(),
            chains: counters(),
            entries: Arc::default(),
            matches: counters(),
        }
    }

    /// At least so many entries were evicted: all that came are new, and no more than the cap are there.
    fn evicted(&self) -> u64 {
        self.entries.load(Ordering::SeqCst).saturating_sub(CAP + NODES as u64 * BLOCKS)
    }

    async fn comes_to(&self, evicted: u64, cluster: &Cluster) {
        let (mut last, mut since) = (self.evicted(), Instant::now());
        while self.evicted() < evicted {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if self.evicted() > last {
                (last, since) = (self.evicted(), Instant::now());
            }
            assert!(since.elapsed() < PATIENCE, "no turnover at {last}\n{}", cluster.logs());
        }
    }

    /// Kills these nodes in the midst of it, and waits until all are back and agree.
    async fn kill(&self, cluster: &mut Cluster, victims: &[usize]) {
        for victim in victims {
            self.alive.set(*victim, false);
            cluster.nodes[*victim].kill();
        }
        cluster.start_all();
        cluster.settle().await;
        for victim in victims {
            self.alive.set(*victim, true);
        }
        cluster.assert_digests_equal().await;
    }
}

/// Reports the chain that only one node will be asked for, and waits until its accesses are in the log.
async fn heat(cluster: &mut Cluster, node: usize) {
    let mut client = cluster.nodes[node].client();
    let began = Instant::now();
    while let Err(status) = client.report_cache_state(tokio_stream::once(update("lfu", node, HOT..HOT + 1))).await {
        // A busy machine may cost the cluster its leader for a moment.
        assert!(status.code() == Code::Unavailable && began.elapsed() < PATIENCE, "{status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = cluster.nodes[node].status().await.unwrap().digest;
    let all = BLOCK_TOKENS * BLOCKS as i32;
    assert_eq!(matched(&mut client, "lfu", node, HOT).await, Some(all));
    // Access counts are in the digest; a sweep that finds nothing moves the log and not the digest.
    cluster.wait_for(node, "logged accesses", |status| status.digest != before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn digests_stay_equal_through_evictions_and_kills() {
    let cap = format!("--max-index-entries={CAP}");
    let flags = [cap.as_str(), "--snapshot-log-entries=300", "--keep-log-entries=50", "--sweep-interval=2s"];
    let mut cluster = Cluster::new(NODES as u32, &flags);
    cluster.start_all();
    cluster.settle().await;
    push(&cluster.nodes[1].host, &policies("lru")).await.unwrap();
    for node in 0..NODES {
        heat(&mut cluster, node).await;
    }
    let (turnover, began) = (Turnover::new(), Instant::now());
    let mut tasks = Vec::new();
    for node in 0..NODES {
        let (producing, asking) = (cluster.nodes[node].client(), cluster.nodes[node].client());
        tasks.push(tokio::spawn(producer(turnover.clone(), producing, node)));
        tasks.push(tokio::spawn(gateway(turnover.clone(), asking, node)));
    }
    let (target, mut kills) = (asked_evictions(), 0);
    for step in 0_usize.. {
        turnover.comes_to(target.min(turnover.evicted() + STEP), &cluster).await;
        if turnover.evicted() >= target {
            break;
        }
        let leader = cluster.leader().await;
        let victims: &[usize] = match step % 3 {
            0 => &[(leader + 1) % NODES],
            1 => &[leader],
            _ => &[0, 1, 2],
        };
        turnover.kill(&mut cluster, victims).await;
        kills += victims.len();
        // While the leader changes again a push may be refused; this one isn't what is tested here.
        let _: Result<(), String> = push(&cluster.nodes[2].host, &policies(["lfu", "lru"][step % 2])).await;
        println!("{} evicted, {kills} kills, {:.0} s", turnover.evicted(), began.elapsed().as_secs_f64());
    }
    turnover.stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    let index = cluster.assert_digests_equal().await;
    for node in &cluster.nodes {
        let mut client = node.client();
        for of in 0..NODES {
            let kept = matched(&mut client, "lfu", of, HOT).await;
            assert_eq!(kept, Some(BLOCK_TOKENS * BLOCKS as i32), "{} lost what n{of} delivered", node.name);
        }
        let status = node.status().await.unwrap();
        assert!(status.entries <= CAP && status.entries > CAP / 2, "{status:?}");
        for algorithm in ["lru", "lfu"] {
            let name = format!("inferencecache_index_evictions_total{{algorithm=\"{algorithm}\",reason=\"cap\"}}");
            assert!(series(&node.host, &name).await > 0.0, "{}: no victim of {algorithm}", node.name);
        }
        for tenant in ["lru-quota", "lfu-quota"] {
            let name =
                format!("inferencecache_tenant_evictions_total{{tenant_id=\"{tenant}\",reason=\"over_entries\"}}");
            assert!(series(&node.host, &name).await > 0.0, "{}: no quota of {tenant}", node.name);
        }
    }
    assert!(turnover.matches.iter().all(|matches| matches.load(Ordering::SeqCst) > 0), "{:?}", turnover.matches);
    cluster.assert_no_panic();
    println!(
        "{} entries evicted with {kills} kills in {:.0} s; digests equal at log index {index}; matches {:?}",
        turnover.evicted(),
        began.elapsed().as_secs_f64(),
        turnover.matches
    );
}
