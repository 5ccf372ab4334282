//! Which of a request's inputs is looked up, and what must be refused before the index is touched: steps 3 to 5 of
//! the lookup, in their order. Pure: it sees the request and the rules, never the index.

use super::config::Rules;
use super::request::{LookupRequest, Prompt, Reason};
use crate::{fingerprint, limits};

/// What is looked up.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Resolved<'a, B> {
    /// The keys.
    pub(crate) input: Input<'a, B>,
    /// True when the request covers too few tokens for a positive hint.
    pub(crate) too_short: bool,
}

/// The keys that a request resolves to.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Input<'a, B> {
    /// A chain as sent.
    Chain { hashes: &'a [B], counts: &'a [i32] },
    /// A chain fingerprinted from tokens, all blocks of the same size.
    Blocks { hashes: &'a [[u8; 8]], block_tokens: i32 },
    /// A single hash, possibly empty.
    Exact(&'a [u8]),
}

/// True when the chain on the wire is one: not empty, and as many counts as hashes.
fn has_chain<B>(request: &LookupRequest<'_, B>) -> bool {
    !request.block_hashes.is_empty() && request.block_hashes.len() == request.block_token_counts.len()
}

/// True when either half of a chain was sent.
fn names_chain<B>(request: &LookupRequest<'_, B>) -> bool {
    !request.block_hashes.is_empty() || !request.block_token_counts.is_empty()
}

/// Where a request's keys come from.
enum Source<'a> {
    Wire,
    Hash,
    Tokens(&'a [u32]),
    Untokenized,
    Nothing,
}

fn source<'a, B>(request: &LookupRequest<'a, B>, rules: &Rules) -> Source<'a> {
    if rules.strategy.enable_chain_matching && names_chain(request) {
        return Source::Wire;
    }
    if !request.prefix_hash.is_empty() {
        return Source::Hash;
    }
    match (request.token_ids, request.prompt) {
        ([], Prompt::Absent) => Source::Nothing,
        ([], Prompt::Untokenized) => Source::Untokenized,
        ([], Prompt::Tokens(tokens)) => Source::Tokens(tokens),
        (tokens, _) => Source::Tokens(tokens),
    }
}

/// True when the answer depends on the tokens of the request's prompt text.
pub(crate) fn wants_prompt_tokens<B>(request: &LookupRequest<'_, B>, rules: &Rules) -> bool {
    let requires = rules.strategy.require_chain && !has_chain(request);
    !requires && matches!(source(request, rules), Source::Untokenized)
}

/// Resolves a request, or says how it is answered without the index. `fingerprints` is a buffer.
pub(crate) fn resolve<'a, B>(
    request: &LookupRequest<'a, B>,
    rules: &Rules,
    block_size: u32,
    fingerprints: &'a mut Vec<[u8; 8]>,
) -> Result<Resolved<'a, B>, Reason> {
    if rules.strategy.require_chain && !has_chain(request) {
        return Err(Reason::PolicyRequiresChain);
    }
    let (input, tokens) = match source(request, rules) {
        Source::Wire if !has_chain(request) => return Err(Reason::NoHint),
        Source::Wire => {
            let counts = request.block_token_counts;
            let sum = counts.iter().fold(0i32, |sum, &count| sum.saturating_add(count));
            (Input::Chain { hashes: request.block_hashes, counts }, sum)
        }
        Source::Hash => (Input::Exact(request.prefix_hash), request.prefix_token_count),
        Source::Tokens(tokens) => from_tokens(tokens, rules, block_size, fingerprints).ok_or(Reason::NoHint)?,
        Source::Untokenized => return Err(Reason::NoHint),
        // Chain matching is off and the ignored chain was all there was.
        Source::Nothing if names_chain(request) => return Err(Reason::NoHint),
        Source::Nothing => (Input::Exact(&[]), request.prefix_token_count),
    };
    let too_short = rules.minimum_prefix_tokens.is_some_and(|minimum| tokens < minimum);
    if too_short && !rules.affinity_routing {
        return Err(Reason::NoHint);
    }
    Ok(Resolved { input, too_short })
}

/// The blocks of tokens, or with chain matching off their last one alone; `None` for too many tokens or no full block.
fn from_tokens<'a, B>(
    tokens: &[u32],
    rules: &Rules,
    block_size: u32,
    fingerprints: &'a mut Vec<[u8; 8]>,
) -> Option<(Input<'a, B>, i32)> {
    if tokens.len() > limits::MAX_LOOKUP_TOKENS {
        return None;
    }
    let block_size = block_size.max(1);
    fingerprints.clear();
    let hashes = fingerprint::chain(tokens, usize::try_from(block_size).ok()?).map(fingerprint::to_bytes);
    fingerprints.extend(hashes);
    let last = fingerprints.last()?;
    let block_tokens = i32::try_from(block_size).unwrap_or(i32::MAX);
    let covered = i32::try_from(fingerprints.len()).unwrap_or(i32::MAX).saturating_mul(block_tokens);
    let input = match rules.strategy.enable_chain_matching {
        true => Input::Blocks { hashes: fingerprints, block_tokens },
        false => Input::Exact(last),
    };
    Some((input, covered))
}
