//! `prefixd report`: says what a replica holds, or no longer holds, as its sidecar would.

use super::input::{self, Hash, Piped, Tokens};
use super::print;
use super::scope::Scope;
use super::target::Target;
use super::wire_json::{self, Report};
use prefixd_client::{Chain, Client};
use prefixd_proto::failure::Failure;
use prefixd_proto::inferencecache as pb;
use std::num::NonZeroU16;
use std::process::ExitCode;
use tonic::Code;

const LONG_ABOUT: &str = "\
Reports what a replica's cache holds and waits until that is committed by a quorum.

What it holds is given in one of these ways:
  --blocks HEX,HEX,...  the hashes of a prompt's blocks, --block-tokens tokens each
  --prefix-hash HEX     one hash for the whole prefix, --prefix-tokens tokens
  --tokens N,N,...      token ids, fingerprinted here with --block-tokens
  standard input        token ids separated by commas or white space, or whole messages as JSON
Stats may be reported along with it, or alone.

With --evict the same hashes are what it no longer holds (one PREFIX_EVICTED event each); --clear says that it holds \
nothing any more (ALL_CLEARED), --touch that it lives (REPLICA_UPDATED).

The JSON has the names of CacheStateUpdate, or, when there is a \"type\", of CacheEvent; snake_case or camelCase, all \
optional, hashes in hex. Several may follow each other or stand in an array; they are sent in order:
  {\"replica_id\": \"r1\", \"tenant_id\": \"t\", \"model_id\": \"m\", \"hash_scheme\": \"vllm\", \"adapter_id\": \"\",
   \"timestamp_us\": 0,
   \"prefixes\": [{\"block_hashes\": [\"00a1\"], \"block_token_counts\": [16], \"prefix_hash\": \"\",
                 \"token_count\": 0, \"tier\": \"T1\", \"adapter_id\": \"\"}],
   \"stats\": {\"cache_memory_bytes\": 0, \"hit_rate\": 0.5, \"pressure\": 0.1, \"client_version\": \"\",
             \"t2_hit_tokens\": 0, \"t2_query_tokens\": 0}}
  {\"type\": \"PREFIX_EVICTED\", \"replica_id\": \"r1\", \"prefix_hash\": \"00a1\"}
Flags fill in the replica, tenant, model, scheme and adapter where the JSON is silent.

Exit code: 0 when everything is acknowledged; 1 when not (repeating it is harmless); 2 when the request makes no sense.";

/// Report what a replica's cache holds
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT, group = clap::ArgGroup::new("input").multiple(false))]
pub struct Args {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    scope: Scope,
    /// The replica that holds it
    #[arg(long, value_name = "ID")]
    replica: Option<String>,
    /// Hashes of a prompt's blocks, in order
    #[arg(long, value_name = "HEX,HEX", value_delimiter = ',', group = "input")]
    blocks: Vec<Hash>,
    /// One hash for a whole prefix
    #[arg(long, value_name = "HEX", group = "input")]
    prefix_hash: Option<Hash>,
    /// Token ids, to fingerprint here
    #[arg(long, value_name = "N,N", group = "input")]
    tokens: Option<Tokens>,
    /// Tokens in each block of --blocks and --tokens
    #[arg(long, value_name = "N", default_value = "16")]
    block_tokens: NonZeroU16,
    /// Tokens that --prefix-hash covers
    #[arg(long, value_name = "N", conflicts_with_all = ["blocks", "tokens"])]
    prefix_tokens: Option<i32>,
    /// Where it is held: T1 (the engine), T2 (offload) or T3 (remote)
    #[arg(long, default_value = "T1", value_parser = wire_json::tier)]
    tier: pb::CacheTier,
    /// When this was true, in microseconds since the Unix epoch; 0 is now
    #[arg(long, value_name = "US", default_value_t = 0)]
    timestamp_us: i64,
    #[command(flatten)]
    stats: Stats,
    /// The hashes are no longer held
    #[arg(long, requires = "input", group = "event")]
    evict: bool,
    /// Nothing is held any more
    #[arg(long, conflicts_with = "input", group = "event")]
    clear: bool,
    /// The replica lives
    #[arg(long, conflicts_with = "input", group = "event")]
    touch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Stats of the replica; giving any of them replaces all that were reported before.
#[derive(Debug, Clone, clap::Args)]
#[group(id = "stats", multiple = true, conflicts_with = "event")]
struct Stats {
    /// Stats: bytes of KV cache in use
    #[arg(long, value_name = "BYTES")]
    cache_memory_bytes: Option<i64>,
    /// Stats: the engine's prefix cache hit rate, 0 to 1
    #[arg(long, value_name = "RATE")]
    hit_rate: Option<f32>,
    /// Stats: the engine's load, 0 to 1
    #[arg(long, value_name = "LOAD")]
    pressure: Option<f32>,
    /// Stats: tokens served from tier 2 so far
    #[arg(long, value_name = "N")]
    t2_hit_tokens: Option<i64>,
    /// Stats: tokens asked of tier 2 so far
    #[arg(long, value_name = "N")]
    t2_query_tokens: Option<i64>,
    /// Stats: version of the client-side cache library
    #[arg(long, value_name = "VERSION")]
    client_version: Option<String>,
}

impl Stats {
    fn into_wire(self) -> Option<pb::ReplicaStats> {
        let is_given = self.cache_memory_bytes.is_some()
            || self.hit_rate.is_some()
            || self.pressure.is_some()
            || self.t2_hit_tokens.is_some()
            || self.t2_query_tokens.is_some()
            || self.client_version.is_some();
        is_given.then(|| pb::ReplicaStats {
            replica_id: String::new(),
            cache_memory_bytes: self.cache_memory_bytes.unwrap_or_default(),
            hit_rate: self.hit_rate.unwrap_or_default(),
            pressure: self.pressure.unwrap_or_default(),
            client_version: self.client_version.unwrap_or_default(),
            t2_hit_tokens: self.t2_hit_tokens.unwrap_or_default(),
            t2_query_tokens: self.t2_query_tokens.unwrap_or_default(),
        })
    }
}

/// Runs the subcommand.
pub async fn run(args: Args) -> ExitCode {
    let prepared = reports(&args).and_then(|reports| Ok((reports, args.target.client()?)));
    let (reports, client) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("prefixd report: {error}");
            return ExitCode::from(2);
        }
    };
    let total = reports.len();
    let mut sent = Sent::default();
    let outcome = send(&client, reports, &mut sent).await;
    if args.json {
        let error = outcome.as_ref().err().map(ToString::to_string);
        let json = serde_json::json!({
            "accepted": error.is_none(),
            "updates": sent.updates,
            "events": sent.events,
            "error": error,
        });
        print::line(&json.to_string());
    } else if outcome.is_ok() {
        print::line(&format!("acknowledged: {} updates, {} events", sent.updates, sent.events));
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let acknowledged = sent.updates + sent.events;
            eprintln!("prefixd report: {error}\n{acknowledged} of {total} messages are acknowledged");
            if lacks_quorum(&error) {
                eprintln!("A report waits for a quorum of the nodes: `prefixd ctl member list` shows who answers.");
            }
            ExitCode::FAILURE
        }
    }
}

/// Whether a node said so, or had the report and no answer in time. Of one that is out of reach, or of a port that is
/// another, nothing is known.
fn lacks_quorum(error: &prefixd_client::Error) -> bool {
    let prefixd_client::Error::Exhausted { status, earlier, .. } = error else { return false };
    let waits = |status: &tonic::Status| {
        matches!(Failure::of(status), Failure::Deadline | Failure::Answered { code: Code::Unavailable, .. })
    };
    waits(status) || earlier.as_ref().is_some_and(|(_, status)| waits(status))
}

#[derive(Default)]
struct Sent {
    updates: usize,
    events: usize,
}

/// Sends everything in order: updates that follow each other in one stream, events one by one.
async fn send(client: &Client, reports: Vec<Report>, sent: &mut Sent) -> Result<(), prefixd_client::Error> {
    let mut stream = Vec::new();
    for report in reports {
        match report {
            Report::Update(update) => stream.push(update),
            Report::Event(event) => {
                flush(client, &mut stream, sent).await?;
                client.publish(event).await?;
                sent.events += 1;
            }
        }
    }
    flush(client, &mut stream, sent).await
}

async fn flush(
    client: &Client,
    stream: &mut Vec<pb::CacheStateUpdate>,
    sent: &mut Sent,
) -> Result<(), prefixd_client::Error> {
    let updates = std::mem::take(stream);
    if updates.is_empty() {
        return Ok(());
    }
    let count = updates.len();
    client.report(updates).await?;
    sent.updates += count;
    Ok(())
}

fn reports(args: &Args) -> Result<Vec<Report>, String> {
    let mut reports = if args.clear {
        vec![event(pb::cache_event::Type::AllCleared)]
    } else if args.touch {
        vec![event(pb::cache_event::Type::ReplicaUpdated)]
    } else {
        held(args)?
    };
    for report in &mut reports {
        complete(args, report)?;
    }
    Ok(reports)
}

/// The messages about what is held or was evicted, without the parts that are common to all.
fn held(args: &Args) -> Result<Vec<Report>, String> {
    let stats = args.stats.clone().into_wire();
    let entry = match given(args) {
        Some(entry) => entry?,
        None if stats.is_some() => return Ok(vec![update(Vec::new(), stats)]),
        None => match input::piped()? {
            Piped::Json(text) => return wire_json::reports(&text),
            Piped::Tokens(tokens) => fingerprinted(args, &tokens)?,
        },
    };
    if !args.evict {
        let entry = pb::PrefixEntry { tier: args.tier as i32, ..entry };
        return Ok(vec![update(vec![entry], stats)]);
    }
    let single = Some(entry.prefix_hash).filter(|hash| !hash.is_empty());
    // Tails before heads, so that what is left of a chain is a chain at any moment.
    let hashes = entry.block_hashes.into_iter().rev().chain(single);
    Ok(hashes
        .map(|prefix_hash| {
            let r#type = pb::cache_event::Type::PrefixEvicted as i32;
            Report::Event(pb::CacheEvent { r#type, prefix_hash, ..Default::default() })
        })
        .collect())
}

/// The entry that the flags name, if they name one.
fn given(args: &Args) -> Option<Result<pb::PrefixEntry, String>> {
    if !args.blocks.is_empty() {
        let hashes = args.blocks.iter().map(|hash| hash.0.clone()).collect();
        return Some(Ok(Chain::from_hashes(hashes, i32::from(args.block_tokens.get())).into_entry()));
    }
    if let Some(hash) = &args.prefix_hash {
        let (prefix_hash, token_count) = (hash.0.clone().into(), args.prefix_tokens.unwrap_or(0));
        return Some(Ok(pb::PrefixEntry { prefix_hash, token_count, ..Default::default() }));
    }
    args.tokens.as_ref().map(|tokens| fingerprinted(args, tokens))
}

fn fingerprinted(args: &Args, tokens: &Tokens) -> Result<pb::PrefixEntry, String> {
    let chain = Chain::from_tokens(&tokens.0, args.block_tokens.into());
    if chain.is_empty() {
        return Err(format!("{} tokens don't fill one block of {}", tokens.0.len(), args.block_tokens));
    }
    Ok(chain.into_entry())
}

fn update(prefixes: Vec<pb::PrefixEntry>, stats: Option<pb::ReplicaStats>) -> Report {
    Report::Update(pb::CacheStateUpdate { prefixes, stats, ..Default::default() })
}

fn event(r#type: pb::cache_event::Type) -> Report {
    Report::Event(pb::CacheEvent { r#type: r#type as i32, ..Default::default() })
}

/// Fills in whose cache it is.
fn complete(args: &Args, report: &mut Report) -> Result<(), String> {
    let is_update = matches!(report, Report::Update(_));
    let (replica, tenant, model, adapter, timestamp_us) = match report {
        Report::Update(update) => {
            args.scope.scheme_into(&mut update.hash_scheme);
            (
                &mut update.replica_id,
                &mut update.tenant_id,
                &mut update.model_id,
                &mut update.adapter_id,
                &mut update.timestamp_us,
            )
        }
        Report::Event(event) => (
            &mut event.replica_id,
            &mut event.tenant_id,
            &mut event.model_id,
            &mut event.adapter_id,
            &mut event.timestamp_us,
        ),
    };
    args.scope.tenant_into(tenant);
    args.scope.model_into(model);
    args.scope.adapter_into(adapter);
    if is_update && (tenant.is_empty() || model.is_empty()) {
        return Err("an update needs a tenant and a model: a node drops it without".into());
    }
    if *timestamp_us == 0 {
        *timestamp_us = args.timestamp_us;
    }
    if replica.is_empty() {
        let named = args.replica.as_deref().filter(|replica| !replica.is_empty());
        named.ok_or("whose cache? Give --replica")?.clone_into(replica);
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Vec<Report>, String> {
        let words = std::iter::once("report").chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        reports(&cli.args)
    }

    fn parse_update(line: &str) -> pb::CacheStateUpdate {
        match parse(line).unwrap().remove(0) {
            Report::Update(update) => update,
            Report::Event(event) => panic!("{event:?}"),
        }
    }

    fn parse_events(line: &str) -> Vec<pb::CacheEvent> {
        let events = parse(line).unwrap().into_iter().map(|report| match report {
            Report::Event(event) => event,
            Report::Update(update) => panic!("{update:?}"),
        });
        events.collect()
    }

    #[test]
    fn an_update_carries_blocks_scope_and_stats() {
        let update = parse_update(
            "--replica r --tenant t --model m --scheme s --adapter a --blocks 0a,0b --tier t2 --hit-rate 0.5 --timestamp-us 9",
        );
        assert_eq!(update.prefixes[0].block_token_counts, [16, 16]);
        assert_eq!(update.prefixes[0].tier, pb::CacheTier::T2 as i32);
        assert_eq!(update.stats.unwrap().hit_rate, 0.5);
        assert_eq!(
            [&*update.replica_id, &update.tenant_id, &update.model_id, &update.hash_scheme],
            ["r", "t", "m", "s"]
        );
        assert_eq!((&*update.adapter_id, update.timestamp_us), ("a", 9));
        let alone = parse_update("--replica r --pressure 0.5");
        assert_eq!((alone.prefixes.len(), alone.stats.is_some()), (0, true));
        let exact = parse_update("--replica r --prefix-hash 0a --prefix-tokens 7");
        assert_eq!((exact.prefixes[0].token_count, exact.stats), (7, None));
        assert_eq!(parse_update("--replica r --tokens 1,2,3 --block-tokens 1").prefixes[0].block_hashes.len(), 3);
    }

    #[test]
    fn a_missing_quorum_is_hinted_at_only_where_a_node_said_so() {
        use tonic::Status;
        let exhausted = |status: Status, earlier: Option<Status>| prefixd_client::Error::Exhausted {
            attempts: 2,
            elapsed: std::time::Duration::ZERO,
            endpoint: "n0:9090".into(),
            status: Box::new(status),
            earlier: earlier.map(|status| ("n1:9090".into(), Box::new(status))),
        };
        let late = prefixd_proto::failure::late;
        assert!(lacks_quorum(&exhausted(Status::unavailable("not committed in time"), None)));
        assert!(lacks_quorum(&exhausted(late(), None)));
        let refused = || std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let unreachable = || Status::from_error(Box::new(tonic::ConnectError(refused().into())));
        assert!(lacks_quorum(&exhausted(unreachable(), Some(Status::unavailable("no leader")))));
        for status in [
            Status::unimplemented(""),
            unreachable(),
            Status::from_error(Box::new(std::io::Error::other("http2 error"))),
            Status::resource_exhausted("the queue is full"),
        ] {
            assert!(!lacks_quorum(&exhausted(status.clone(), None)), "{status:?}");
        }
    }

    #[test]
    fn evictions_go_from_the_tail() {
        let events = parse_events("--replica r --evict --blocks 0a,0b --adapter a");
        assert_eq!(events.iter().map(|event| event.prefix_hash[0]).collect::<Vec<_>>(), [11, 10]);
        assert!(events.iter().all(|event| event.r#type() == pb::cache_event::Type::PrefixEvicted));
        assert_eq!(parse_events("--replica r --evict --prefix-hash 0a").len(), 1);
        assert_eq!(parse_events("--replica r --clear")[0].r#type(), pb::cache_event::Type::AllCleared);
        assert_eq!(parse_events("--replica r --touch")[0].r#type(), pb::cache_event::Type::ReplicaUpdated);
    }

    #[test]
    fn mistakes_are_named() {
        for (line, word) in [
            ("--blocks 0a", "--replica"),
            ("--replica r --blocks 0a --tenant=", "needs a tenant"),
            ("--replica r --evict", "--blocks"),
            ("--replica r --clear --blocks 0a", "cannot be used with"),
            ("--replica r --clear --touch", "cannot be used with"),
            ("--replica r --clear --hit-rate 1", "cannot be used with"),
            ("--replica r --blocks 0a --tier T9", "T9"),
            ("--replica r --tokens 1", "fill one block"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
