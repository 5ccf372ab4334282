//! `prefixd lookup`: one LookupRoute call, for people who want to see what a gateway would get.

use super::input::{self, Hash, Piped, Tokens};
use super::scope::Scope;
use super::target::Target;
use super::{print, table, wire_json};
use prefixd_client::{Answer, Chain};
use prefixd_proto::inferencecache as pb;
use std::num::NonZeroU16;
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Asks which replicas hold a prompt's prefix, and prints the ranking and its reason code.

The prompt is given in one of these ways:
  --blocks HEX,HEX,...   the hashes of its blocks, --block-tokens tokens each: longest leading run
  --prefix-hash HEX      one hash for all of it: exact match
  --tokens N,N,...       its token ids; the server fingerprints them with its own block size
  --hash-tokens N,N,...  its token ids, fingerprinted here with --block-tokens
  --text TEXT            its text (the server needs a tokenizer for that)
  standard input         token ids separated by commas or white space, or the whole request as JSON

The JSON has the names of LookupRouteRequest, in snake_case or camelCase, all optional, hashes in hex:
  {\"tenant_id\": \"t\", \"model_id\": \"m\", \"hash_scheme\": \"vllm\", \"adapter_id\": \"\",
   \"block_hashes\": [\"00a1\", \"00a2\"], \"block_token_counts\": [16, 16],
   \"prefix_hash\": \"00a2\", \"prefix_token_count\": 32, \"token_ids\": [1, 2], \"prompt_text\": \"\",
   \"slo\": {\"ttft_ms\": 100, \"tbt_ms\": 20}}
Flags fill in the tenant, model, scheme and adapter where the JSON is silent.

Exit code: 0 when a node answered, whatever it said; 1 when none did; 2 when the request makes no sense.";

/// Ask which replicas hold a prompt's prefix
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT, group = clap::ArgGroup::new("input").multiple(false))]
pub struct Args {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    scope: Scope,
    /// Hashes of the prompt's blocks, in order
    #[arg(long, value_name = "HEX,HEX", value_delimiter = ',', group = "input")]
    blocks: Vec<Hash>,
    /// One hash for the whole prefix
    #[arg(long, value_name = "HEX", group = "input")]
    prefix_hash: Option<Hash>,
    /// Token ids, for the server to fingerprint
    #[arg(long, value_name = "N,N", group = "input")]
    tokens: Option<Tokens>,
    /// Token ids, to fingerprint here
    #[arg(long, value_name = "N,N", group = "input")]
    hash_tokens: Option<Tokens>,
    /// The prompt's text
    #[arg(long, group = "input")]
    text: Option<String>,
    /// Tokens in each block of --blocks and --hash-tokens
    #[arg(long, value_name = "N", default_value = "16")]
    block_tokens: NonZeroU16,
    /// Tokens that --prefix-hash covers
    #[arg(long, value_name = "N", conflicts_with_all = ["blocks", "tokens", "hash_tokens", "text"])]
    prefix_tokens: Option<i32>,
    /// Time to first token that was promised, in milliseconds
    #[arg(long, value_name = "MS")]
    ttft_ms: Option<i32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub async fn run(args: Args) -> ExitCode {
    let prepared = request(&args).and_then(|request| Ok((request, args.target.client()?)));
    let (request, client) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("prefixd lookup: {error}");
            return ExitCode::from(2);
        }
    };
    match client.lookup(request).await {
        Ok(answer) if args.json => match serde_json::to_string(&wire_json::LookupAnswer::new(&answer)) {
            Ok(json) => print::line(&json),
            Err(error) => {
                eprintln!("prefixd lookup: {error}");
                return ExitCode::FAILURE;
            }
        },
        Ok(answer) => print::text(&readable(&answer)),
        Err(error) => {
            eprintln!("prefixd lookup: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn request(args: &Args) -> Result<pb::LookupRouteRequest, String> {
    let mut request = pb::LookupRouteRequest::default();
    if !args.blocks.is_empty() {
        let hashes = args.blocks.iter().map(|hash| hash.0.clone()).collect();
        Chain::from_hashes(hashes, i32::from(args.block_tokens.get())).ask(&mut request);
    } else if let Some(hash) = &args.prefix_hash {
        request.prefix_hash = hash.0.clone().into();
        request.prefix_token_count = args.prefix_tokens.unwrap_or(0);
    } else if let Some(tokens) = &args.tokens {
        request.token_ids.clone_from(&tokens.0);
    } else if let Some(tokens) = &args.hash_tokens {
        let chain = Chain::from_tokens(&tokens.0, args.block_tokens.into());
        if chain.is_empty() {
            return Err(format!("{} tokens don't fill one block of {}", tokens.0.len(), args.block_tokens));
        }
        chain.ask(&mut request);
    } else if let Some(text) = &args.text {
        request.prompt_text.clone_from(text);
    } else {
        match input::piped()? {
            Piped::Json(text) => request = wire_json::lookup_request(&text)?,
            Piped::Tokens(tokens) => request.token_ids = tokens.0,
        }
    }
    args.scope.tenant_into(&mut request.tenant_id);
    args.scope.model_into(&mut request.model_id);
    args.scope.scheme_into(&mut request.hash_scheme);
    args.scope.adapter_into(&mut request.adapter_id);
    if let Some(ttft_ms) = args.ttft_ms {
        request.slo.get_or_insert_default().ttft_ms = ttft_ms;
    }
    Ok(request)
}

fn readable(answer: &Answer<pb::LookupRouteResponse>) -> String {
    let message = &answer.message;
    let mut text = format!("{} from {} in {} us", message.reason_code, answer.endpoint, message.lookup_latency_us);
    if answer.attempts > 1 {
        text += &format!(", {} attempts", answer.attempts);
    }
    if !message.adapter_id.is_empty() {
        text += &format!(", adapter {}", table::visible(&message.adapter_id));
    }
    text.push('\n');
    if !message.replica_scores.is_empty() {
        let mut rows = vec![["replica", "score", "matched tokens", "hit probability", "tier"].map(str::to_owned)];
        rows.extend(message.replica_scores.iter().map(|score| {
            [
                score.replica_id.clone(),
                format!("{:.3}", score.score),
                score.matched_tokens.to_string(),
                format!("{:.3}", score.estimated_cache_hit_prob),
                wire_json::tier_name(score.tier),
            ]
        }));
        text += &table::render(&rows);
    }
    let headers = wire_json::headers(answer);
    if !headers.is_empty() {
        let headers: Vec<String> = headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        text += &format!("{}\n", headers.join(", "));
    }
    if !message.token_ids.is_empty() {
        text += &format!("{} tokens\n", message.token_ids.len());
    }
    text
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

    fn parse(line: &str) -> Result<pb::LookupRouteRequest, String> {
        let words = std::iter::once("lookup").chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        request(&cli.args)
    }

    #[test]
    fn every_kind_of_input_fills_its_field() {
        let chain = parse("--blocks 0a,0b --block-tokens 32 --tenant t --model m --scheme s --adapter a").unwrap();
        assert_eq!((chain.block_hashes.len(), &chain.block_token_counts[..]), (2, &[32, 32][..]));
        assert_eq!([&*chain.tenant_id, &chain.model_id, &chain.hash_scheme, &chain.adapter_id], ["t", "m", "s", "a"]);
        let exact = parse("--prefix-hash 0a --prefix-tokens 64 --ttft-ms 100").unwrap();
        assert_eq!((&exact.prefix_hash[..], exact.prefix_token_count), (&[10][..], 64));
        assert_eq!(exact.slo.unwrap().ttft_ms, 100);
        assert_eq!([&*exact.tenant_id, &exact.model_id, &exact.hash_scheme], ["default", "default", "vllm"]);
        assert_eq!(parse("--tokens 1,2,3").unwrap().token_ids, [1, 2, 3]);
        assert_eq!(parse("--text hello").unwrap().prompt_text, "hello");
        let hashed = parse("--hash-tokens 1,2,3,4,5 --block-tokens 2").unwrap();
        assert_eq!((hashed.block_hashes.len(), hashed.token_ids.len()), (2, 0));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, word) in [
            ("--blocks zz", "'z'"),
            ("--blocks 0a --tokens 1", "cannot be used with"),
            ("--tokens x", "token id"),
            ("--hash-tokens 1,2", "fill one block of 16"),
            ("--blocks 0a --block-tokens 0", "block-tokens"),
            ("--prefix-tokens 3 --tokens 1", "cannot be used with"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
