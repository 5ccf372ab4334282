//! `prefixd replay`: what the index is worth, on a trace. Requests are routed to simulated engines with LRU block caches
//! by what prefixd knows, next to routers that know nothing or everything. The engines are in `engine`, routing in
//! `gateway`, reporting in `sidecar`, the run itself in `live`, the routers without prefixd in `offline`.

mod engine;
mod fleet;
mod gateway;
mod live;
mod offline;
mod outcome;
mod sidecar;
mod trace;

use super::print;
use super::target::Target;
use indicatif::{ProgressBar, ProgressStyle};
use outcome::{Outcome, Outcomes};
use prefixd_client::Client;
use prefixd_proto::inferencecache as pb;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const LONG_ABOUT: &str = "\
Plays a request trace against simulated engines and routes it by LookupRoute.

Each engine is a cache of N blocks of 512 tokens that evicts the least recently used leaf. For every request, in the \
order of the trace: ask prefixd, let the gateway choose an engine, let the engine serve (its hits are the leading run \
of cached blocks), and report its stores and evictions as a sidecar would. The same trace is then played without \
prefixd: with perfect knowledge of every cache, round-robin, and at random.

The gateway: an engine never used comes first; then the engine with the best score, unless it has been routed more \
than --load-bound times the mean of prompt tokens; of equals the least loaded. Without a usable hint the least loaded \
engine serves. AFFINITY_HINT claims nothing about caches and balances worse than load does, so it counts as no hint \
unless --follow-affinity is given. The router with perfect knowledge uses the same gateway.

With --speed 0 a lookup waits until all earlier reports about its own blocks are acknowledged; with any other speed \
requests come when the trace says and nothing is waited for.

A hint for blocks that the engine has since evicted is stale; one for blocks that it never held is wrong, and any \
makes the exit code 1. A tenant of its own is used and cleared at the end.

The trace: one JSON object a line, {\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens, \
\"hash_ids\": [id, ...]}, where an id stands for one block of 512 tokens and the prefix before it (Mooncake's format).";

/// Replay a request trace against simulated engines
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT)]
pub struct Args {
    /// The trace, .jsonl or .jsonl.gz
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    #[command(flatten)]
    target: Target,
    /// Simulated engines
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    engines: u16,
    /// Blocks of 512 tokens that each engine can cache
    #[arg(long, value_name = "N", default_value_t = 4000)]
    blocks_per_engine: usize,
    /// The trace's clock over the wall's; 0: as fast as it goes
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = speed)]
    speed: f64,
    /// Play only the first N requests
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Follow a hint unless the engine's load is over so many times the mean; 0: follow always
    #[arg(long, value_name = "RATIO", default_value_t = 1.25, value_parser = load_bound)]
    load_bound: f64,
    /// Follow AFFINITY_HINT as well
    #[arg(long)]
    follow_affinity: bool,
    /// Seed of the random policy
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The model to report under
    #[arg(long, default_value = "replay")]
    model: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn speed(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value.is_finite() && (value == 0.0 || value >= 1e-3) {
        Ok(value)
    } else {
        Err("must be 0 or at least 0.001".into())
    }
}

fn load_bound(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value.is_finite() && (value == 0.0 || value >= 1.0) { Ok(value) } else { Err("must be 0 or at least 1".into()) }
}

/// Runs the subcommand: 0 when the replay came to its end without a wrong hint, 1 when not, 2 when the trace or the
/// arguments are of no use.
pub async fn run(args: Args) -> ExitCode {
    let requests = match trace::read(&args.trace, args.limit) {
        Ok(requests) => requests,
        Err(error) => {
            eprintln!("prefixd replay: {}: {error}", args.trace.display());
            return ExitCode::from(2);
        }
    };
    let client = match args.target.client() {
        Ok(client) => client,
        Err(error) => {
            eprintln!("prefixd replay: {error}");
            return ExitCode::from(2);
        }
    };
    let shape = fleet::Shape {
        engines: usize::from(args.engines),
        blocks_per_engine: args.blocks_per_engine,
        load_bound: args.load_bound,
    };
    let Some(prefixd) = through_prefixd(&args, &client, &requests, shape).await else {
        return ExitCode::FAILURE;
    };
    let is_sound = prefixd.wrong_hints == 0;
    let outcomes = Outcomes {
        policies: vec![
            prefixd,
            offline::perfect(&requests, shape),
            offline::round_robin(&requests, shape),
            offline::random(&requests, shape, args.seed),
        ],
    };
    if args.json {
        match serde_json::to_string(&outcomes) {
            Ok(json) => print::line(&json),
            Err(error) => eprintln!("prefixd replay: {error}"),
        }
    } else {
        print::text(&outcomes.table());
    }
    if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays through prefixd; `None`, with a message, when there is no outcome.
async fn through_prefixd(
    args: &Args,
    client: &Client,
    requests: &[trace::Request],
    shape: fleet::Shape,
) -> Option<Outcome> {
    let scope = sidecar::Scope {
        tenant_id: format!("replay-{:016x}", rand::random::<u64>()),
        model_id: args.model.clone(),
        hash_scheme: "mooncake-512".into(),
    };
    let greeting = pb::GetCacheStateRequest { model_id: scope.model_id.clone(), tenant_id: scope.tenant_id.clone() };
    if let Err(error) = client.cache_state(greeting).await {
        eprintln!("prefixd replay: {error}\nIs a node running there? `prefixd serve` starts one.");
        return None;
    }
    let plan = live::Plan { shape, speed: args.speed, follows_affinity: args.follow_affinity, scope };
    let stop = CancellationToken::new();
    let on_signal = tokio::spawn({
        let stop = stop.clone();
        async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                stop.cancel();
                eprintln!("prefixd replay: clearing up; once more to leave it");
                // Who signals a whole process group may reach us twice for one wish.
                tokio::time::sleep(Duration::from_secs(1)).await;
                if tokio::signal::ctrl_c().await.is_ok() {
                    std::process::exit(1);
                }
            }
        }
    });
    let progress = progress_bar(requests.len());
    let outcome = live::play(client, requests, &plan, &stop, &progress).await;
    progress.finish_and_clear();
    on_signal.abort();
    if outcome.is_none() && stop.is_cancelled() {
        eprintln!("prefixd replay: interrupted; tenant {} is cleared", plan.scope.tenant_id);
    }
    outcome
}

/// A bar on a terminal, nothing elsewhere.
fn progress_bar(requests: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(requests as u64);
    let template = "{bar:32} {pos}/{len} requests, {per_sec}, {eta} left, {msg}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
