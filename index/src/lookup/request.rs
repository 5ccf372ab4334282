//! What a lookup asks and what it answers, as plain values. The edge converts the wire to and from these; the
//! decision between them is in [`super::resolve`], [`super::gates`] and the view.

use crate::command::Credit;
use std::sync::Arc;

/// One lookup. Nothing is copied from the wire: strings, hashes and tokens are borrowed.
#[derive(Copy, Clone, Debug)]
pub struct LookupRequest<'a, B> {
    /// The tenant asked for.
    pub tenant: &'a str,
    /// The model asked for.
    pub model: &'a str,
    /// The hash domain.
    pub scheme: &'a str,
    /// The adapter partition; empty is the default partition.
    pub adapter: &'a str,
    /// A single prefix hash, or empty.
    pub prefix_hash: &'a [u8],
    /// Tokens that `prefix_hash` covers.
    pub prefix_token_count: i32,
    /// A chain of block hashes, or empty.
    pub block_hashes: &'a [B],
    /// Tokens of each block, in parallel.
    pub block_token_counts: &'a [i32],
    /// Token ids to fingerprint, or empty.
    pub token_ids: &'a [u32],
    /// The prompt, as far as the edge could tokenize it.
    pub prompt: Prompt<'a>,
    /// The time-to-first-token objective in milliseconds; 0 is none.
    pub ttft_ms: i32,
}

/// What became of a request's prompt text.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum Prompt<'a> {
    /// There was none.
    #[default]
    Absent,
    /// There was one and it could not be tokenized (no tokenizer, too long, too many at once).
    Untokenized,
    /// Its tokens.
    Tokens(&'a [u32]),
}

/// Why an answer is what it is: the reason_code.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Replicas that hold a leading part of the prompt.
    PrefixMatch,
    /// Replicas that are warm for the scope.
    TenantHot,
    /// A stable pick without any claim.
    AffinityHint,
    /// Nothing to say.
    NoHint,
    /// The tenant's policy wants a valid chain and there is none.
    PolicyRequiresChain,
    /// Too late.
    Timeout,
    /// No entry under this tenant.
    UnknownTenant,
    /// No entry under this model of the tenant.
    UnknownModel,
    /// No entry under this hash scheme of the model.
    UnknownHashScheme,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 9] = [
        Reason::PrefixMatch,
        Reason::TenantHot,
        Reason::AffinityHint,
        Reason::NoHint,
        Reason::PolicyRequiresChain,
        Reason::Timeout,
        Reason::UnknownTenant,
        Reason::UnknownModel,
        Reason::UnknownHashScheme,
    ];

    /// The reason_code on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::PrefixMatch => "PREFIX_MATCH",
            Reason::TenantHot => "TENANT_HOT",
            Reason::AffinityHint => "AFFINITY_HINT",
            Reason::NoHint => "NO_HINT",
            Reason::PolicyRequiresChain => "POLICY_REQUIRES_CHAIN",
            Reason::Timeout => "TIMEOUT",
            Reason::UnknownTenant => "UNKNOWN_TENANT",
            Reason::UnknownModel => "UNKNOWN_MODEL",
            Reason::UnknownHashScheme => "UNKNOWN_HASH_SCHEME",
        }
    }
}

/// One ranked replica.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaScore {
    /// The replica.
    pub replica: Arc<str>,
    /// Higher is better.
    pub score: f32,
    /// Tokens of the leading run that the replica holds; 0 without prefix evidence.
    pub matched_tokens: i32,
    /// The estimate that what is promised is still there.
    pub hit_prob: f32,
    /// The coldest tier of the run: 1 to 3, or 0 for unspecified.
    pub tier: i32,
}

/// The answer to a lookup.
#[derive(Clone, Debug, PartialEq)]
pub struct LookupAnswer {
    /// The reason_code.
    pub reason: Reason,
    /// Best first.
    pub scores: Vec<ReplicaScore>,
    /// True when the answer carries the request's adapter_id.
    pub adapter_echo: bool,
    /// In an LFU tenant, what a PREFIX_MATCH delivered: to be logged as accesses, unless the answer came too late.
    pub credits: Vec<Credit>,
}

impl LookupAnswer {
    /// An answer without scores, from before the index was consulted.
    pub fn early(reason: Reason) -> Self {
        Self { reason, scores: Vec::new(), adapter_echo: false, credits: Vec::new() }
    }
}
