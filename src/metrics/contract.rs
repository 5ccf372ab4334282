//! The families of the contract that are read from the node: index sizes and evictions. Lookups are counted in
//! [`super::lookups`].

use super::sample::{counters, gauge, gauges};
use super::{MAX_LABEL_VALUES, OTHER};
use prefixd_raft::NodeFigures;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::sync::Arc;

pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    models: &[(Arc<str>, u64)],
    figures: &NodeFigures,
    known_tenant: &dyn Fn(&str) -> bool,
) -> fmt::Result {
    gauge(encoder, "inferencecache_server_up", "1 while the server runs", 1.0)?;
    gauges(
        encoder,
        "inferencecache_index_entries",
        "Distinct prefixes by model",
        models.iter().map(|(model, prefixes)| ([("model", model.as_ref())], *prefixes as f64)),
    )?;
    let tenants = by_tenant(&figures.tenant_evictions, known_tenant);
    counters(
        encoder,
        "inferencecache_tenant_evictions",
        "Prefixes evicted because their tenant was over its quota",
        tenants.iter().map(|(tenant, n)| ([("tenant_id", *tenant), ("reason", "over_entries")], *n)),
    )?;
    counters(
        encoder,
        "inferencecache_index_evictions",
        "Entries evicted by the cap or by their age",
        [
            ("lru", "cap", figures.evictions_lru_cap),
            ("lru", "ttl", figures.evictions_lru_ttl),
            ("lfu", "cap", figures.evictions_lfu_cap),
            ("lfu", "ttl", figures.evictions_lfu_ttl),
        ]
        .map(|(algorithm, reason, n)| ([("algorithm", algorithm), ("reason", reason)], n)),
    )
}

/// Tenants that the index holds by name, up to the limit; the others under one name.
fn by_tenant<'a>(counts: &'a [(String, u64)], known: &dyn Fn(&str) -> bool) -> Vec<(&'a str, u64)> {
    let mut named = Vec::new();
    let mut other = 0u64;
    for (tenant, n) in counts {
        if named.len() < MAX_LABEL_VALUES && tenant != OTHER && known(tenant) {
            named.push((tenant.as_str(), *n));
        } else {
            other = other.saturating_add(*n);
        }
    }
    if other > 0 {
        named.push((OTHER, other));
    }
    named
}
