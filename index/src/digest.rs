//! The digest: what two nodes compare to know that they hold the same state. An order-free sum, modulo 2^128, of one
//! XXH3-128 for each visible entry, each stats row, each policy, each quota, and for the policy set's having been pushed. The encodings are a format
//! (docs/FORMATS.md): they know nothing of any engine, and a change of one is a new version.

use crate::policy::{Eviction, PolicySet, PolicySource, TenantPolicy};
use crate::view::names::Report;
use xxhash_rust::xxh3::xxh3_128;

/// The version byte in every encoding.
const VERSION: u8 = 1;
const ENTRY: u8 = 1;
const STATS: u8 = 2;
const POLICY: u8 = 3;
const QUOTA: u8 = 4;
const MEMBER: u8 = 5;
const PARTITION: u8 = 6;
const PUSHED: u8 = 7;

/// A hash that stands for names in other encodings.
pub(crate) type NameHash = [u8; 16];

/// Stands for (tenant, model, replica).
pub(crate) fn member(tenant: &str, model: &str, replica: &str) -> NameHash {
    xxh3_128(&strings(MEMBER, &[tenant, model, replica])).to_le_bytes()
}

/// Stands for (hash scheme, adapter).
pub(crate) fn partition(scheme: &str, adapter: &str) -> NameHash {
    xxh3_128(&strings(PARTITION, &[scheme, adapter])).to_le_bytes()
}

/// What an entry's digest is of, beside its names.
#[derive(Copy, Clone, Debug)]
pub(crate) struct EntryFields<'a> {
    pub(crate) hash: &'a [u8],
    pub(crate) last_seen_us: u64,
    pub(crate) tokens: i32,
    pub(crate) tier: i32,
    pub(crate) accesses: u32,
}

/// One visible entry.
pub(crate) fn entry(member: &NameHash, partition: &NameHash, fields: &EntryFields<'_>) -> u128 {
    const FIXED: usize = 2 + 16 + 16 + 8 + 4 + 4 + 4;
    const ROOM: usize = FIXED + crate::limits::MAX_HASH_BYTES;
    let mut room = [0u8; ROOM];
    let mut len = 0;
    let parts: [&[u8]; 8] = [
        &[ENTRY, VERSION],
        member,
        partition,
        &fields.last_seen_us.to_le_bytes(),
        &fields.tokens.to_le_bytes(),
        &fields.tier.to_le_bytes(),
        &fields.accesses.to_le_bytes(),
        fields.hash,
    ];
    for part in parts {
        // A longer hash never becomes an entry.
        if let Some(place) = room.get_mut(len..len + part.len()) {
            place.copy_from_slice(part);
            len += part.len();
        }
    }
    xxh3_128(room.get(..len).unwrap_or(&room))
}

/// One stats row.
pub(crate) fn stats(member: &NameHash, report: &Report) -> u128 {
    let mut bytes = vec![STATS, VERSION];
    bytes.extend_from_slice(member);
    bytes.extend_from_slice(&report.stats.cache_memory_bytes.to_le_bytes());
    bytes.extend_from_slice(&report.stats.hit_rate.to_bits().to_le_bytes());
    bytes.extend_from_slice(&report.stats.pressure.to_bits().to_le_bytes());
    bytes.extend_from_slice(&report.stats.t2_hit_tokens.to_le_bytes());
    bytes.extend_from_slice(&report.stats.t2_query_tokens.to_le_bytes());
    bytes.extend_from_slice(&report.payload_us.to_le_bytes());
    bytes.extend_from_slice(&report.liveness_us.to_le_bytes());
    xxh3_128(&bytes)
}

/// All policies and quotas, and one more when the set was pushed.
pub(crate) fn policies(set: &PolicySet, source: PolicySource) -> u128 {
    let policies = set.policies.iter().map(|(tenant, policy)| self::policy(tenant, policy));
    let quotas = set.quotas.iter().map(|(tenant, &quota)| self::quota(tenant, quota));
    let source = match source {
        PolicySource::File => 0,
        PolicySource::Pushed => xxh3_128(&[PUSHED, VERSION]),
    };
    policies.chain(quotas).fold(source, u128::wrapping_add)
}

/// One tenant's policy.
pub(crate) fn policy(tenant: &str, policy: &TenantPolicy) -> u128 {
    let mut bytes = strings(POLICY, &[tenant]);
    let mut field = |value: Option<&[u8]>| match value {
        None => bytes.push(0),
        Some(value) => {
            bytes.push(1);
            bytes.extend_from_slice(value);
        }
    };
    field(policy.ttl_us.map(u64::to_le_bytes).as_ref().map(<[u8; 8]>::as_slice));
    field(policy.minimum_prefix_tokens.map(i32::to_le_bytes).as_ref().map(<[u8; 4]>::as_slice));
    field(policy.minimum_matched_tokens.map(i32::to_le_bytes).as_ref().map(<[u8; 4]>::as_slice));
    field(policy.routing_floor_score.map(|score| score.to_bits().to_le_bytes()).as_ref().map(<[u8; 4]>::as_slice));
    field(policy.lookup_timeout_ms.map(u32::to_le_bytes).as_ref().map(<[u8; 4]>::as_slice));
    field(Some(&[u8::from(policy.eviction == Eviction::Lfu)]));
    field(policy.affinity_routing.map(|on| [u8::from(on)]).as_ref().map(<[u8; 1]>::as_slice));
    let strategy = policy.strategy.map(|strategy| {
        [strategy.enable_chain_matching, strategy.require_chain, strategy.enable_tenant_hot].map(u8::from)
    });
    field(strategy.as_ref().map(<[u8; 3]>::as_slice));
    xxh3_128(&bytes)
}

/// One tenant's quota.
pub(crate) fn quota(tenant: &str, quota: u64) -> u128 {
    let mut bytes = strings(QUOTA, &[tenant]);
    bytes.extend_from_slice(&quota.to_le_bytes());
    xxh3_128(&bytes)
}

/// The tag, the version, and each string after its length as four bytes little-endian.
fn strings(tag: u8, strings: &[&str]) -> Vec<u8> {
    let mut bytes = vec![tag, VERSION];
    for string in strings {
        // Longer strings than 4 GiB don't occur: ids are bounded.
        bytes.extend_from_slice(&u32::try_from(string.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(string.as_bytes());
    }
    bytes
}
