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
    let mut digest = EntryDigest::new(member, partition);
    digest.say(fields.last_seen_us, fields.tier, fields.accesses);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| (word << 8) | u64::from(byte));
    digest.of(fields.tokens, fields.hash.chunks(8).map(word), fields.hash.len())
}

/// The digests of entries of one holder in one partition: what they share is written once.
pub(crate) struct EntryDigest {
    room: [u8; ROOM],
}

/// Bytes of an entry's encoding before its hash.
const FIXED: usize = 2 + 16 + 16 + 8 + 4 + 4 + 4;
/// A hash is written in whole words.
const ROOM: usize = FIXED + crate::limits::MAX_HASH_BYTES.next_multiple_of(8);

impl EntryDigest {
    pub(crate) fn new(member: &NameHash, partition: &NameHash) -> Self {
        let mut room = [0; ROOM];
        room[..2].copy_from_slice(&[ENTRY, VERSION]);
        room[2..18].copy_from_slice(member);
        room[18..34].copy_from_slice(partition);
        Self { room }
    }

    /// Sets what the next entries say of themselves.
    pub(crate) fn say(&mut self, last_seen_us: u64, tier: i32, accesses: u32) {
        self.room[34..42].copy_from_slice(&last_seen_us.to_le_bytes());
        self.room[46..50].copy_from_slice(&tier.to_le_bytes());
        self.room[50..54].copy_from_slice(&accesses.to_le_bytes());
    }

    /// One of them: its hash has `width` bytes and comes as little-endian words, the last padded with zeroes.
    #[inline]
    pub(crate) fn of(&mut self, tokens: i32, hash: impl Iterator<Item = u64>, width: usize) -> u128 {
        self.room[42..46].copy_from_slice(&tokens.to_le_bytes());
        for (place, word) in self.room[FIXED..].chunks_exact_mut(8).zip(hash) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        // A longer hash never becomes an entry.
        xxh3_128(self.room.get(..FIXED + width).unwrap_or(&self.room))
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::Stats;
    use crate::policy::Strategy;

    /// Version 1 as it was released; the numbers were computed from docs/FORMATS.md with the xxHash authors' library.
    #[test]
    fn version_1_stays_what_it_is() {
        let (member, partition) = (member("tenant", "model", "replica"), partition("vllm", "sql"));
        let hash = &[0xde, 0xad, 0xbe, 0xef];
        let fields = EntryFields { hash, last_seen_us: 1_000_007, tokens: 48, tier: 2, accesses: 5 };
        assert_eq!(entry(&member, &partition, &fields), 0xbfc3_79df_3dd3_61f1_3fca_de6b_e0ff_fa3d);
        let report = Report {
            stats: Stats {
                cache_memory_bytes: -3,
                hit_rate: 0.5,
                pressure: -1.25,
                t2_hit_tokens: 7,
                t2_query_tokens: 9,
            },
            payload_us: 1_000_000,
            liveness_us: 1_000_009,
        };
        assert_eq!(stats(&member, &report), 0x5054_4517_b26e_1fa9_aea7_f2f1_47aa_a36e);
        let one = TenantPolicy {
            ttl_us: Some(900),
            minimum_matched_tokens: Some(64),
            routing_floor_score: Some(2.5),
            eviction: Eviction::Lfu,
            affinity_routing: Some(false),
            strategy: Some(Strategy { enable_chain_matching: true, require_chain: false, enable_tenant_hot: true }),
            ..TenantPolicy::default()
        };
        assert_eq!(policy("tenant", &one), 0x7c46_4310_b604_4e98_87d5_5f4f_02f5_ac6e);
        assert_eq!(quota("tenant", 10), 0x6829_6079_62d9_dea9_70cc_4131_e60f_5e96);
        let mut set = PolicySet::default();
        set.policies.insert("tenant".into(), one.clone());
        set.quotas.insert("tenant".into(), 10);
        let offered = policy("tenant", &one).wrapping_add(quota("tenant", 10));
        assert_eq!(policies(&set, PolicySource::File), offered);
        assert_ne!(policies(&set, PolicySource::Pushed), offered);
    }
}
