//! Producers' messages as core deltas: validation, normalisation and the drops of the ingest contract. What is bad
//! costs only itself, is counted under a [`DropReason`] and is never an error. This module must never panic on a
//! message, and never lets an entry through that the index would have to judge again. Answers to gateways are made in
//! [`crate::lookups`].

use crate::inferencecache as wire;
use prefixd_index::delta::{Chain, Event, EventKind, Exact, PrefixEntry, Stats, Update};
use prefixd_index::limits::{MAX_CHAIN_BLOCKS, MAX_HASH_BYTES, MAX_ID_BYTES, RESERVED_TENANT};

/// Why something that a producer sent was not taken in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// An update or event without replica_id.
    EmptyReplica,
    /// An update or event without tenant_id.
    EmptyTenant,
    /// An update or event without model_id.
    EmptyModel,
    /// An entry of an update without hash_scheme.
    EmptyScheme,
    /// An id over [`MAX_ID_BYTES`].
    IdTooLong,
    /// An entry or eviction without any hash, or an empty hash inside a chain.
    EmptyHash,
    /// A hash over [`MAX_HASH_BYTES`].
    HashTooLong,
    /// A negative token count.
    NegativeTokens,
    /// A chain with as many counts as hashes is the only valid one.
    ChainLengths,
    /// A chain over [`MAX_CHAIN_BLOCKS`].
    ChainTooLong,
}

impl DropReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 10] = [
        Self::EmptyReplica,
        Self::EmptyTenant,
        Self::EmptyModel,
        Self::EmptyScheme,
        Self::IdTooLong,
        Self::EmptyHash,
        Self::HashTooLong,
        Self::NegativeTokens,
        Self::ChainLengths,
        Self::ChainTooLong,
    ];

    /// The value of the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EmptyReplica => "empty_replica",
            Self::EmptyTenant => "empty_tenant",
            Self::EmptyModel => "empty_model",
            Self::EmptyScheme => "empty_scheme",
            Self::IdTooLong => "id_too_long",
            Self::EmptyHash => "empty_hash",
            Self::HashTooLong => "hash_too_long",
            Self::NegativeTokens => "negative_tokens",
            Self::ChainLengths => "chain_lengths",
            Self::ChainTooLong => "chain_too_long",
        }
    }
}

/// Counts of drops by reason.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// Counts one drop.
    pub fn count(&mut self, reason: DropReason) {
        self.add(reason, 1);
    }

    /// Counts `n` drops.
    pub fn add(&mut self, reason: DropReason, n: u64) {
        if let Some(slot) = self.0.get_mut(reason as usize) {
            *slot = slot.saturating_add(n);
        }
    }

    /// Drops counted for one reason.
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or(0)
    }

    /// The reasons that were counted at all.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.of(reason))).filter(|(_, n)| *n > 0)
    }
}

/// An update as the log carries it; `None` when nothing of it is left to apply.
pub fn update(message: wire::CacheStateUpdate, drops: &mut Drops) -> Option<Update> {
    if message.tenant_id == RESERVED_TENANT {
        return None;
    }
    if let Some(reason) = bad_ids(&message.replica_id, &message.tenant_id, &message.model_id) {
        drops.count(reason);
        return None;
    }
    let entries = entries(message.prefixes, &message.hash_scheme, &message.adapter_id, drops);
    let stats = message.stats.map(|s| stats(&s));
    if entries.is_empty() && stats.is_none() {
        return None;
    }
    Some(Update {
        replica: message.replica_id,
        tenant: message.tenant_id,
        model: message.model_id,
        // Without entries the scheme says nothing, and a bad one must not reach the log.
        scheme: if entries.is_empty() { String::new() } else { message.hash_scheme },
        timestamp_us: timestamp_us(message.timestamp_us),
        entries,
        stats,
    })
}

/// An event as the log carries it; `None` when it changes nothing.
pub fn event(message: wire::CacheEvent, drops: &mut Drops) -> Option<Event> {
    use wire::cache_event::Type;
    let kind = Type::try_from(message.r#type).unwrap_or(Type::Unspecified);
    if message.tenant_id == RESERVED_TENANT || matches!(kind, Type::Unspecified | Type::PrefixAdded) {
        return None;
    }
    let bad = bad_ids(&message.replica_id, &message.tenant_id, &message.model_id).or_else(|| match kind {
        Type::PrefixEvicted => bad_hash(&message.prefix_hash)
            .or_else(|| (message.adapter_id.len() > MAX_ID_BYTES).then_some(DropReason::IdTooLong)),
        _ => None,
    });
    if let Some(reason) = bad {
        drops.count(reason);
        return None;
    }
    let kind = match kind {
        Type::PrefixEvicted => {
            EventKind::PrefixEvicted { hash: message.prefix_hash.to_vec(), adapter: message.adapter_id }
        }
        Type::AllCleared => EventKind::AllCleared,
        Type::ReplicaUpdated => EventKind::ReplicaUpdated { timestamp_us: timestamp_us(message.timestamp_us) },
        Type::Unspecified | Type::PrefixAdded => return None,
    };
    Some(Event { kind, replica: message.replica_id, tenant: message.tenant_id, model: message.model_id })
}

fn entries(sent: Vec<wire::PrefixEntry>, scheme: &str, default_adapter: &str, drops: &mut Drops) -> Vec<PrefixEntry> {
    let bad_scheme = match scheme.len() {
        0 => Some(DropReason::EmptyScheme),
        len if len > MAX_ID_BYTES => Some(DropReason::IdTooLong),
        _ => None,
    };
    if let Some(reason) = bad_scheme {
        drops.add(reason, sent.len() as u64);
        return Vec::new();
    }
    let mut kept = Vec::with_capacity(sent.len());
    for message in sent {
        match entry(message, default_adapter, drops) {
            Ok(entry) => kept.push(entry),
            Err(reason) => drops.count(reason),
        }
    }
    kept
}

/// One entry, or why it is dropped whole. A bad prefix_hash beside a good chain is counted here and costs only itself.
fn entry(message: wire::PrefixEntry, default_adapter: &str, drops: &mut Drops) -> Result<PrefixEntry, DropReason> {
    let adapter = if message.adapter_id.is_empty() { default_adapter.to_owned() } else { message.adapter_id };
    if adapter.len() > MAX_ID_BYTES {
        return Err(DropReason::IdTooLong);
    }
    let chain = chain(&message.block_hashes, &message.block_token_counts)?;
    let exact = match exact(&message.prefix_hash, message.token_count) {
        Ok(exact) => Some(exact),
        Err(reason) if chain.is_none() => return Err(reason),
        Err(reason) => {
            if !message.prefix_hash.is_empty() {
                drops.count(reason);
            }
            None
        }
    };
    let tier = match message.tier {
        0 => wire::CacheTier::T1 as i32,
        tier => tier,
    };
    Ok(PrefixEntry { adapter, tier, chain, exact })
}

fn chain<B: AsRef<[u8]>>(hashes: &[B], counts: &[i32]) -> Result<Option<Chain>, DropReason> {
    if hashes.is_empty() && counts.is_empty() {
        return Ok(None);
    }
    if hashes.len() != counts.len() {
        return Err(DropReason::ChainLengths);
    }
    if hashes.len() > MAX_CHAIN_BLOCKS {
        return Err(DropReason::ChainTooLong);
    }
    if let Some(reason) = hashes.iter().find_map(|hash| bad_hash(hash.as_ref())) {
        return Err(reason);
    }
    if counts.iter().any(|tokens| *tokens < 0) {
        return Err(DropReason::NegativeTokens);
    }
    Chain::pack(hashes, counts).map(Some).ok_or(DropReason::ChainLengths)
}

fn exact(hash: &[u8], token_count: i32) -> Result<Exact, DropReason> {
    match bad_hash(hash) {
        Some(reason) => Err(reason),
        None if token_count < 0 => Err(DropReason::NegativeTokens),
        None => Ok(Exact { hash: hash.to_vec(), token_count }),
    }
}

fn bad_hash(hash: &[u8]) -> Option<DropReason> {
    match hash.len() {
        0 => Some(DropReason::EmptyHash),
        len if len > MAX_HASH_BYTES => Some(DropReason::HashTooLong),
        _ => None,
    }
}

fn bad_ids(replica: &str, tenant: &str, model: &str) -> Option<DropReason> {
    if replica.is_empty() {
        return Some(DropReason::EmptyReplica);
    }
    if tenant.is_empty() {
        return Some(DropReason::EmptyTenant);
    }
    if model.is_empty() {
        return Some(DropReason::EmptyModel);
    }
    [replica, tenant, model].iter().any(|id| id.len() > MAX_ID_BYTES).then_some(DropReason::IdTooLong)
}

fn stats(message: &wire::ReplicaStats) -> Stats {
    let finite = |value: f32| if value.is_finite() { value } else { 0.0 };
    Stats {
        cache_memory_bytes: message.cache_memory_bytes,
        hit_rate: finite(message.hit_rate),
        pressure: finite(message.pressure),
        t2_hit_tokens: message.t2_hit_tokens,
        t2_query_tokens: message.t2_query_tokens,
    }
}

/// 0 or less means "now", which the log writes as 0.
fn timestamp_us(sent: i64) -> u64 {
    u64::try_from(sent).unwrap_or(0)
}

#[cfg(test)]
mod tests;
