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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::config::RankConfig;
    use crate::policy::TenantPolicy;

    fn rules(minimum_matched_tokens: Option<i32>, routing_floor_score: Option<f32>) -> Rules {
        let policy = TenantPolicy { minimum_matched_tokens, routing_floor_score, ..TenantPolicy::default() };
        Rules::of(Some(&policy), &RankConfig::default())
    }

    #[test]
    fn the_matched_floor() {
        // (policy, matched tokens, passes)
        let rows = [
            (None, 64, true),
            (None, 63, false),
            (Some(0), 0, true),
            (Some(-1), 0, true),
            (Some(1), 0, false),
            (Some(1), 1, true),
            (Some(i32::MAX), i32::MAX, true),
        ];
        for (policy, matched, passes) in rows {
            assert_eq!(clears_matched_floor(&rules(policy, None), matched), passes, "{policy:?} {matched}");
        }
    }

    #[test]
    fn the_routing_floor() {
        // (policy, top score, passes)
        let rows = [
            (None, 0.1, true),
            (None, 0.099, false),
            (Some(0.0), 0.0, true),
            (Some(-3.0), 0.0, true),
            (Some(5.0), 5.0, true),
            (Some(5.0), 4.99, false),
            (Some(f32::NAN), 0.0, true),
            (Some(f32::INFINITY), f32::MAX, false),
        ];
        for (policy, top, passes) in rows {
            assert_eq!(clears_routing_floor(&rules(None, policy), top), passes, "{policy:?} {top}");
        }
    }
}
