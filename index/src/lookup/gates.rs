//! The gates after a match: floors that a PREFIX_MATCH must clear, and whether an affinity pick may stand in for a
//! "none". Pure; the ranking before them is in [`super::rank`].

use super::config::Rules;
use super::request::LookupRequest;

/// True when a replica that matched this many tokens may be offered.
pub(crate) fn clears_matched_floor(rules: &Rules, matched_tokens: i32) -> bool {
    rules.minimum_matched_tokens <= 0 || matched_tokens >= rules.minimum_matched_tokens
}

/// True when the best score is worth routing by.
pub(crate) fn clears_routing_floor(rules: &Rules, top_score: f32) -> bool {
    top_score >= rules.routing_floor_score
}

/// True when the request's scope is fully named.
pub(crate) fn names_scope<B>(request: &LookupRequest<'_, B>) -> bool {
    !request.tenant.is_empty() && !request.model.is_empty() && !request.scheme.is_empty()
}

/// True when an affinity pick may answer the request, if there is a seed and somebody to pick.
pub(crate) fn allows_affinity<B>(rules: &Rules, request: &LookupRequest<'_, B>) -> bool {
    rules.affinity_routing && names_scope(request) && request.block_hashes.len() == request.block_token_counts.len()
}
