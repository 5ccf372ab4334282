//! What lookups need of the replicated policy and parameters, published by the writer whenever they change.

use crate::limits::RESERVED_TENANT;
use crate::policy::{Eviction, PolicySet, PolicySource};

/// Policies and parameters as lookups see them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) policies: PolicySet,
    pub(crate) policy_source: PolicySource,
    pub(crate) default_ttl_us: u64,
}

/// The TTL that a tenant's policy gives it, if it does.
pub(crate) fn policy_ttl_us(policies: &PolicySet, tenant: &str) -> Option<u64> {
    if tenant == RESERVED_TENANT {
        return None;
    }
    policies.policies.get(tenant)?.ttl_us.filter(|&ttl_us| ttl_us > 0)
}

/// True when a tenant's entries are evicted by use.
pub(crate) fn is_lfu(policies: &PolicySet, tenant: &str) -> bool {
    tenant != RESERVED_TENANT && policies.policies.get(tenant).is_some_and(|policy| policy.eviction == Eviction::Lfu)
}

impl Settings {
    pub(crate) fn ttl_us(&self, tenant: &str) -> u64 {
        policy_ttl_us(&self.policies, tenant).unwrap_or(self.default_ttl_us)
    }

    pub(crate) fn is_lfu(&self, tenant: &str) -> bool {
        is_lfu(&self.policies, tenant)
    }
}
