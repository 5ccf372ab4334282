//! The bytes that the index is said to take: a formula over what is stored, the same on every node and for every
//! engine, never an allocator's figure. The byte cap and the metrics go by it. docs/FORMATS.md has it as version 1.

/// Bytes of an entry beside its hash and the names of its partition.
pub(crate) const ENTRY_BYTES: u64 = 192;
/// Bytes of a (tenant, model, replica) beside its names.
pub(crate) const MEMBER_BYTES: u64 = 1_024;

/// Bytes of one entry.
pub(crate) fn entry_bytes(hash_bytes: u64, scheme: &str, adapter: &str) -> u64 {
    ENTRY_BYTES + hash_bytes + (scheme.len() + adapter.len()) as u64
}

/// Bytes of one (tenant, model, replica) that has visible entries or stats.
pub(crate) fn member_bytes(tenant: &str, model: &str, replica: &str) -> u64 {
    MEMBER_BYTES + (tenant.len() + model.len() + replica.len()) as u64
}
