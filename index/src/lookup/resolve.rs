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

impl<B: AsRef<[u8]>> Input<'_, B> {
    /// The key that is looked for first.
    pub(crate) fn first(&self) -> Option<&[u8]> {
        match self {
            Input::Chain { hashes, .. } => hashes.first().map(AsRef::as_ref),
            Input::Blocks { hashes, .. } => hashes.first().map(<[u8; 8]>::as_slice),
            Input::Exact(hash) => Some(hash),
        }
    }
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
            // Summed up only where somebody asks for it.
            let sum = match rules.minimum_prefix_tokens {
                Some(_) => counts.iter().fold(0i32, |sum, &count| sum.saturating_add(count)),
                None => 0,
            };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::config::RankConfig;
    use crate::policy::Strategy;

    const CHAIN: (&[&[u8]], &[i32]) = (&[b"a", b"b"], &[64, 64]);
    const UNEQUAL: (&[&[u8]], &[i32]) = (&[b"a", b"b"], &[64]);
    const COUNTS: (&[&[u8]], &[i32]) = (&[], &[64]);
    const NONE: (&[&[u8]], &[i32]) = (&[], &[]);
    const TOKENS: [u32; 40] = [7; 40];

    /// What a request resolves to, in a word.
    fn outcome(
        (block_hashes, block_token_counts): (&[&[u8]], &[i32]),
        prefix_hash: &[u8],
        (tokens, prompt): (usize, Prompt<'_>),
        gates: &str,
    ) -> String {
        let mut rules = Rules::of(None, &RankConfig::default());
        rules.strategy = Strategy {
            enable_chain_matching: !gates.contains("no chains"),
            require_chain: gates.contains("require"),
            enable_tenant_hot: true,
        };
        let request = LookupRequest {
            tenant: "t",
            model: "m",
            scheme: "s",
            adapter: "",
            prefix_hash,
            prefix_token_count: 0,
            block_hashes,
            block_token_counts,
            token_ids: &TOKENS[..tokens],
            prompt,
            ttft_ms: 0,
        };
        let wants = wants_prompt_tokens(&request, &rules);
        let mut buffer = Vec::new();
        let outcome = match resolve(&request, &rules, 16, &mut buffer).map(|resolved| resolved.input) {
            Ok(Input::Chain { hashes, .. }) => format!("chain of {}", hashes.len()),
            Ok(Input::Blocks { hashes, block_tokens }) => format!("{} blocks of {block_tokens}", hashes.len()),
            Ok(Input::Exact(hash)) => format!("hash of {}", hash.len()),
            Err(reason) => reason.as_str().to_owned(),
        };
        if wants { format!("{outcome}, tokens wanted") } else { outcome }
    }

    #[test]
    fn one_input_is_resolved_by_precedence() {
        use Prompt::{Absent, Tokens, Untokenized};
        let some = Tokens(&TOKENS);
        // (chain, prefix_hash, tokens and prompt, gates, outcome)
        let rows = [
            (CHAIN, "h", (40, some), "", "chain of 2"),
            (CHAIN, "", (0, Absent), "require", "chain of 2"),
            (UNEQUAL, "h", (40, some), "", "NO_HINT"),
            (COUNTS, "h", (0, Absent), "", "NO_HINT"),
            (NONE, "h", (40, some), "", "hash of 1"),
            (NONE, "", (40, Untokenized), "", "2 blocks of 16"),
            (NONE, "", (15, some), "", "NO_HINT"),
            (NONE, "", (0, some), "", "2 blocks of 16"),
            (NONE, "", (0, Tokens(&[])), "", "NO_HINT"),
            (NONE, "", (0, Untokenized), "", "NO_HINT, tokens wanted"),
            (NONE, "", (0, Absent), "", "hash of 0"),
            (CHAIN, "h", (0, Absent), "no chains", "hash of 1"),
            (UNEQUAL, "h", (0, Absent), "no chains", "hash of 1"),
            (CHAIN, "", (40, Absent), "no chains", "hash of 8"),
            (CHAIN, "", (0, Absent), "no chains", "NO_HINT"),
            (UNEQUAL, "", (0, Absent), "no chains", "NO_HINT"),
            (CHAIN, "", (0, Untokenized), "no chains", "NO_HINT, tokens wanted"),
            (NONE, "", (0, Absent), "no chains", "hash of 0"),
            (NONE, "h", (40, some), "require", "POLICY_REQUIRES_CHAIN"),
            (UNEQUAL, "", (0, Absent), "require", "POLICY_REQUIRES_CHAIN"),
            (NONE, "", (0, Untokenized), "require", "POLICY_REQUIRES_CHAIN"),
        ];
        for (chain, hash, tokens, gates, expected) in rows {
            let found = outcome(chain, hash.as_bytes(), tokens, gates);
            assert_eq!(found, expected, "{chain:?} {hash:?} {} tokens, {:?}, {gates:?}", tokens.0, tokens.1);
        }
    }
}
