//! `prefixd bench`: load on a live cluster, measured where its clients feel it. What is asked and reported is made in
//! `content`, when in `pace`, what came of it is in `outcome`; this module knows the flags and the order of things.

mod content;
mod outcome;
mod pace;

use super::print;
use super::target::Target;
use clap::{Subcommand, value_parser};
use content::Content;
use outcome::{Outcome, Side};
use pace::{Load, Pace};
use prefixd_client::Client;
use prefixd_proto::inferencecache as pb;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const LONG_ABOUT: &str = "\
Puts load on a live cluster and measures it.

With a rate the load is open: calls begin when they are due, whatever became of earlier ones, and a latency counts from \
when its call was due. A server that stalls is so charged for all that waited, not for one call. Without a rate \
(--rate 0) each connection keeps --in-flight calls under way: that finds the most that goes through, and its latencies \
are those of a saturated server.

Chains come in families that share their first half, as prompts share a system prompt; each chain is on one replica. \
lookup and mixed first report --chains of them and wait until all of that is committed. A tenant of its own is used, \
and cleared at the end; an index at its cap evicts entries of others to take it in.

Clients take part of the machine they run on: on the server's machine a figure is that of both.

Exit code: 0 when every call was answered; 1 when some were not, or no node was reached; 2 when the command line makes no sense.";

/// Streams under way on a connection in open load.
const MAX_STREAMS: u16 = 64;

/// Put load on a live cluster and measure it
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT)]
pub struct Args {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// Look chains up
    Lookup {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        lookups: Lookups,
    },
    /// Report new chains
    Ingest {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        reports: Reports,
    },
    /// Both at once
    Mixed {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        lookups: Lookups,
        #[command(flatten)]
        reports: Reports,
    },
}

#[derive(Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    target: Target,
    /// How long to measure, in seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// How long to run before that, in seconds
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = value_parser!(u64).range(0..=3_600))]
    warmup: u64,
    /// Blocks of a chain
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u64).range(2..=4_096))]
    blocks: u64,
    /// Bytes of a block's hash
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u64).range(8..=32))]
    hash_bytes: u64,
    /// Replicas that hold the chains
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u64).range(1..=4_096))]
    replicas: u64,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Lookups {
    /// Chains in the index before the lookups begin
    #[arg(long, value_name = "N", default_value_t = 4_096, value_parser = value_parser!(u64).range(1..=10_000_000))]
    chains: u64,
    /// Connections that look up
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u16).range(1..=1_024))]
    connections: u16,
    /// Lookups a second over all connections; 0: as many as go through
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = rate)]
    rate: f64,
    /// Lookups under way on a connection: exactly with --rate 0, at most with any other
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=4_096))]
    in_flight: Option<u16>,
}

#[derive(Debug, clap::Args)]
struct Reports {
    /// Connections that report; with --block-rate 0 each has one stream after another
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u16).range(1..=1_024))]
    streams: u16,
    /// Updates in a stream; its acknowledgement stands for all of them. An update is one chain
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(1..=4_096))]
    updates: u64,
    /// Blocks a second over all streams; 0: as many as go through
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = rate)]
    block_rate: f64,
}

fn rate(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1e9).contains(&value) { Ok(value) } else { Err("must be between 0 and 1e9".into()) }
}

/// Runs the subcommand: 0 when every call was answered, 1 when some were not or the cluster can't be reached, 2 for a wrong
/// use.
pub async fn run(args: Args) -> ExitCode {
    let (common, lookups, reports) = match args.kind {
        Kind::Lookup { common, lookups } => (common, Some(lookups), None),
        Kind::Ingest { common, reports } => (common, None, Some(reports)),
        Kind::Mixed { common, lookups, reports } => (common, Some(lookups), Some(reports)),
    };
    let client = match common.target.client() {
        Ok(client) => client,
        Err(error) => {
            eprintln!("prefixd bench: {error}");
            return ExitCode::from(2);
        }
    };
    match measured(&common, client, lookups.as_ref(), reports.as_ref()).await {
        Ok(outcome) => {
            if common.json {
                print::line(&outcome.json().to_string());
            } else {
                print::text(&outcome.table());
            }
            if outcome.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("prefixd bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Fills, measures and clears; what was reported is cleared after an interrupt as well.
async fn measured(
    common: &Common,
    client: Client,
    lookups: Option<&Lookups>,
    reports: Option<&Reports>,
) -> Result<Outcome, String> {
    let content = Arc::new(Content::new(common.blocks, common.hash_bytes, common.replicas));
    let greeting = pb::GetCacheStateRequest { model_id: content.model(), tenant_id: content.tenant() };
    let reached = client.cache_state(greeting).await;
    reached.map_err(|error| format!("{error}\nIs a node running there? `prefixd serve` starts one."))?;
    let interrupt = CancellationToken::new();
    let watching = tokio::spawn({
        let interrupt = interrupt.clone();
        async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                interrupt.cancel();
            }
        }
    });
    let load = async {
        if let Some(lookups) = lookups {
            fill(&client, &content, lookups.chains).await?;
        }
        under_load(common, lookups, reports, &content).await
    };
    let outcome = interrupt.run_until_cancelled(load).await;
    watching.abort();
    content.clear(&client).await?;
    outcome.unwrap_or_else(|| Err("interrupted; what was reported is cleared".into()))
}

/// Reports the first `chains` chains, some streams beside each other.
async fn fill(client: &Client, content: &Content, chains: u64) -> Result<(), String> {
    const STREAMS: usize = 4;
    let of_a_stream = (content::FILL_BLOCKS / content.blocks()).max(1);
    let streams = (0..chains.div_ceil(of_a_stream)).map(|stream| {
        let first = stream * of_a_stream;
        client.report((first..chains.min(first + of_a_stream)).map(|chain| content.update(chain)).collect())
    });
    use futures::{StreamExt, TryStreamExt};
    let filling = futures::stream::iter(streams).buffer_unordered(STREAMS);
    filling.try_for_each(|_| std::future::ready(Ok(()))).await.map_err(|error| format!("filling the index: {error}"))
}

async fn under_load(
    common: &Common,
    lookups: Option<&Lookups>,
    reports: Option<&Reports>,
    content: &Arc<Content>,
) -> Result<Outcome, String> {
    let pace = |rate: f64, in_flight| Pace {
        rate,
        in_flight,
        warmup: Duration::from_secs(common.warmup),
        length: Duration::from_secs(common.seconds),
        seed: common.seed,
    };
    let clients = |count: u16| (0..count).map(|_| common.target.client()).collect::<Result<Vec<_>, _>>();
    let asking = async {
        let Some(lookups) = lookups else { return Ok(None) };
        let most = lookups.in_flight.unwrap_or(if lookups.rate > 0.0 { 256 } else { 1 });
        let load = Load { clients: clients(lookups.connections)?, pace: pace(lookups.rate, most) };
        let (content, chains) = (content.clone(), lookups.chains);
        let side = load.run(move |client: Client, number: u64| {
            let request = content.lookup(content::mix(number) % chains);
            async move { Ok(u64::from(!client.lookup(request).await?.message.replica_scores.is_empty())) }
        });
        Ok::<_, String>(Some(side.await))
    };
    let reporting = async {
        let Some(reports) = reports else { return Ok(None) };
        let blocks = content.blocks() * reports.updates;
        let most = if reports.block_rate > 0.0 { MAX_STREAMS } else { 1 };
        let load = Load { clients: clients(reports.streams)?, pace: pace(reports.block_rate / blocks as f64, most) };
        let (content, updates) = (content.clone(), reports.updates);
        // Beyond what was filled, so that every chain is new.
        let next = Arc::new(AtomicU64::new(lookups.map_or(0, |lookups| lookups.chains)));
        let side = load.run(move |client: Client, _| {
            let first = next.fetch_add(updates, Ordering::Relaxed);
            let stream = (first..first + updates).map(|chain| content.update(chain)).collect();
            async move { client.report(stream).await.map(|_| blocks) }
        });
        Ok(Some(side.await))
    };
    let (lookups, reports): (Result<Option<Side>, String>, Result<Option<Side>, String>) =
        tokio::join!(asking, reporting);
    Ok(Outcome { lookups: lookups?, reports: reports?, blocks: content.blocks() })
}

#[cfg(test)]
mod tests;
