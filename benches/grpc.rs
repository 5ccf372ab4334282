//! LookupRoute over gRPC: lookups per second and latency of a whole node in this process, asked over loopback by 1 and
//! by 32 connections, each with one call in flight. Clients and server share the machine's cores; the figures say what
//! one machine does, not what a server alone could.

use prefixd::config::{Config, ServeArgs};
use prefixd::ports::Ports;
use prefixd::serve::Running;
use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use prefixd_proto::inferencecache::{CacheStateUpdate, LookupRouteRequest, PrefixEntry};
use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};

/// Chains in the index, blocks of each, tokens of a block; chains of one family share their first half.
const CHAINS: u64 = 4_096;
const BLOCKS: u64 = 64;
const BLOCK_TOKENS: i32 = 16;
const FAMILY: u64 = 16;
const REPLICAS: u64 = 32;
/// Chains of one update, updates of one stream.
const CHAINS_OF_AN_UPDATE: u64 = 16;
const CONNECTIONS: [usize; 2] = [1, 32];

type Fault = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Fault> {
    let seconds = std::env::var("PREFIXD_BENCH_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(5);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(bench(Duration::from_secs(seconds)))
}

async fn bench(duration: Duration) -> Result<(), Fault> {
    let dir = tempfile::tempdir()?;
    let mut args = ServeArgs::default();
    args.said.flags.insert("data_dir".into(), dir.path().display().to_string());
    for key in ["grpc_addr", "http_addr", "internal_addr", "node_addr"] {
        args.said.flags.insert(key.into(), "127.0.0.1:0".into());
    }
    let config = Config::resolve(&args, None)?;
    let ports = Ports::bind(&config)?;
    let addr = ports.bound.grpc;
    let running = Running::start(&config, ports).await?;
    let filling = Instant::now();
    fill(addr).await?;
    let blocks = CHAINS * BLOCKS;
    let rate = blocks as f64 / filling.elapsed().as_secs_f64();
    println!("report: {blocks} blocks in updates of {} blocks: {rate:.0} blocks/s", CHAINS_OF_AN_UPDATE * BLOCKS);
    for connections in CONNECTIONS {
        measure(addr, connections, duration).await?;
    }
    running.stop(Duration::from_secs(10)).await
}

async fn connect(addr: SocketAddr) -> Result<InferenceCacheClient<Channel>, Fault> {
    let channel = Endpoint::from_shared(format!("http://{addr}"))?.tcp_nodelay(true).connect().await?;
    Ok(InferenceCacheClient::new(channel))
}

/// The hashes of one chain: the first half is the family's, the second its own.
fn chain(number: u64) -> Vec<bytes::Bytes> {
    let hash = |block: u64| {
        let owner = if block < BLOCKS / 2 { number / FAMILY } else { number };
        let seed = owner.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block.wrapping_mul(0xd6e8_feb8_6659_fd93);
        bytes::Bytes::copy_from_slice(&seed.to_be_bytes())
    };
    (0..BLOCKS).map(hash).collect()
}

async fn fill(addr: SocketAddr) -> Result<(), Fault> {
    let update = |first: u64| {
        let entry = |number| PrefixEntry {
            block_hashes: chain(number),
            block_token_counts: vec![BLOCK_TOKENS; BLOCKS as usize],
            ..Default::default()
        };
        CacheStateUpdate {
            replica_id: format!("replica-{}", first / CHAINS_OF_AN_UPDATE % REPLICAS),
            model_id: "model".into(),
            tenant_id: "bench".into(),
            hash_scheme: "vllm".into(),
            prefixes: (first..first + CHAINS_OF_AN_UPDATE).map(entry).collect(),
            ..Default::default()
        }
    };
    let updates = (0..CHAINS / CHAINS_OF_AN_UPDATE).map(move |i| update(i * CHAINS_OF_AN_UPDATE));
    connect(addr).await?.report_cache_state(tokio_stream::iter(updates)).await?;
    Ok(())
}

async fn measure(addr: SocketAddr, connections: usize, duration: Duration) -> Result<(), Fault> {
    let end = Instant::now() + duration;
    let mut clients = tokio::task::JoinSet::new();
    for first in 0..connections {
        clients.spawn(ask(addr, first as u64 * 7_919, end));
    }
    let mut latencies_us = hdrhistogram::Histogram::<u64>::new(3)?;
    let mut matched = 0;
    while let Some(joined) = clients.join_next().await {
        let (one, hits) = joined??;
        latencies_us.add(one)?;
        matched += hits;
    }
    let n = latencies_us.len();
    println!(
        "lookup: {connections} connections, chains of {BLOCKS} blocks: {:.0} lookups/s, p50 {} us, p99 {} us, {:.1}% PREFIX_MATCH",
        n as f64 / duration.as_secs_f64(),
        latencies_us.value_at_quantile(0.5),
        latencies_us.value_at_quantile(0.99),
        100.0 * matched as f64 / n.max(1) as f64,
    );
    Ok(())
}

/// One connection with one call in flight.
async fn ask(addr: SocketAddr, first: u64, end: Instant) -> Result<(hdrhistogram::Histogram<u64>, u64), Fault> {
    let mut client = connect(addr).await?;
    let mut latencies_us = hdrhistogram::Histogram::new(3)?;
    let mut matched = 0;
    let mut number = first;
    while Instant::now() < end {
        number = (number + 4_099) % CHAINS;
        let request = LookupRouteRequest {
            model_id: "model".into(),
            tenant_id: "bench".into(),
            hash_scheme: "vllm".into(),
            block_hashes: chain(number),
            block_token_counts: vec![BLOCK_TOKENS; BLOCKS as usize],
            ..Default::default()
        };
        let asked = Instant::now();
        let answer = client.lookup_route(request).await?.into_inner();
        latencies_us.record(u64::try_from(asked.elapsed().as_micros())?)?;
        matched += u64::from(answer.reason_code == "PREFIX_MATCH");
    }
    Ok((latencies_us, matched))
}
