//! What a node is configured with for lookups, and how a tenant's policy and those defaults become the rules of one
//! lookup. Nothing here is replicated: two nodes with different flags answer differently and stay equal in state.

use crate::policy::{Strategy, TenantPolicy};

/// The knobs of ranking and gating that are flags of a node; [`RankConfig::default`] has the documented defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct RankConfig {
    /// How much a replica's pressure costs it; 0 is no penalty.
    pub pressure_weight: f32,
    /// A TTFT objective counts as tight when it is over 0 and under this many milliseconds.
    pub slo_tight_ttft_ms: i32,
    /// How much a tight objective prefers the fresh; 0 is not at all.
    pub slo_tight_bias: f32,
    /// Replicas with a lower hit rate are not warm.
    pub tenant_hot_min_hit_rate: f32,
    /// Stats payloads of this age in microseconds are no longer warm; 0 switches TENANT_HOT off.
    pub tenant_hot_max_age_us: u64,
    /// Fewest matched tokens, for tenants whose policy doesn't say; 0 is no floor.
    pub minimum_matched_tokens: i32,
    /// Least top score, for tenants whose policy doesn't say; 0 is no floor.
    pub routing_floor_score: f32,
    /// Fewest tokens of a request, for tenants whose policy doesn't say.
    pub minimum_prefix_tokens: Option<i32>,
    /// The lookup timeout in milliseconds, for tenants whose policy doesn't say.
    pub lookup_timeout_ms: Option<u32>,
    /// Affinity routing, for tenants whose policy doesn't say.
    pub affinity_routing: bool,
    /// The strategy gates, for tenants whose policy doesn't say.
    pub strategy: Strategy,
    /// Tokens of a block when token ids are fingerprinted; 0 counts as 1.
    pub block_size: u32,
}

impl Default for RankConfig {
    fn default() -> Self {
        Self {
            pressure_weight: 1.0,
            slo_tight_ttft_ms: 200,
            slo_tight_bias: 1.0,
            tenant_hot_min_hit_rate: 0.1,
            tenant_hot_max_age_us: 5 * 60 * 1_000_000,
            minimum_matched_tokens: 64,
            routing_floor_score: 0.1,
            minimum_prefix_tokens: None,
            lookup_timeout_ms: None,
            affinity_routing: true,
            strategy: Strategy::default(),
            block_size: 16,
        }
    }
}

/// The rules of one lookup.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Rules {
    pub(crate) minimum_prefix_tokens: Option<i32>,
    pub(crate) minimum_matched_tokens: i32,
    pub(crate) routing_floor_score: f32,
    pub(crate) affinity_routing: bool,
    pub(crate) strategy: Strategy,
}

impl Rules {
    /// A tenant's policy over a node's defaults.
    pub(crate) fn of(policy: Option<&TenantPolicy>, config: &RankConfig) -> Self {
        let say = policy.cloned().unwrap_or_default();
        Self {
            minimum_prefix_tokens: say.minimum_prefix_tokens.or(config.minimum_prefix_tokens),
            minimum_matched_tokens: say.minimum_matched_tokens.unwrap_or(config.minimum_matched_tokens),
            routing_floor_score: say.routing_floor_score.unwrap_or(config.routing_floor_score).max(0.0),
            affinity_routing: say.affinity_routing.unwrap_or(config.affinity_routing),
            strategy: say.strategy.unwrap_or(config.strategy),
        }
    }
}
