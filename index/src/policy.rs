//! Per-tenant policy and quotas as replicated state. Decoding the controller's JSON happens at the edge; here values
//! are already normalised.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The whole policy set, replaced as one.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct PolicySet {
    /// The policy of each tenant that has one.
    pub policies: BTreeMap<String, TenantPolicy>,
    /// The quota of each tenant that has one, in prefixes; 0 admits nothing.
    pub quotas: BTreeMap<String, u64>,
}

/// Where the policy set comes from.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PolicySource {
    /// Nobody pushed one: it is empty, or the one that a node's file offered.
    #[default]
    File,
    /// Somebody pushed it; what files offer no longer counts.
    Pushed,
}

/// What governs one tenant. `None` means the node's or the cluster's default.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
pub struct TenantPolicy {
    /// Time to live in microseconds; `None` is the cluster's default.
    pub ttl_us: Option<u64>,
    /// Requests that cover fewer tokens get no positive hint.
    pub minimum_prefix_tokens: Option<i32>,
    /// Replicas that match fewer tokens are dropped; `Some(0)` is no floor.
    pub minimum_matched_tokens: Option<i32>,
    /// The top score must reach this; `Some(0.0)` is no floor; negative counts as 0.
    pub routing_floor_score: Option<f32>,
    /// A lookup slower than this many milliseconds answers TIMEOUT.
    pub lookup_timeout_ms: Option<u32>,
    /// The order in which the cap takes this tenant's entries.
    pub eviction: Eviction,
    /// False switches AFFINITY_HINT off; `None` is the default (on).
    pub affinity_routing: Option<bool>,
    /// The strategy gates; `None` is the default (on, off, on).
    pub strategy: Option<Strategy>,
}

/// The order in which the cap takes entries.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Eviction {
    /// Oldest last-seen first.
    #[default]
    Lru,
    /// Least delivered first.
    Lfu,
}

/// The strategy gates of a policy.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strategy {
    /// False ignores chains and looks up the exact hash alone.
    pub enable_chain_matching: bool,
    /// True answers requests without a valid chain with POLICY_REQUIRES_CHAIN.
    pub require_chain: bool,
    /// False turns TENANT_HOT off.
    pub enable_tenant_hot: bool,
}

impl Default for Strategy {
    fn default() -> Self {
        Self { enable_chain_matching: true, require_chain: false, enable_tenant_hot: true }
    }
}
