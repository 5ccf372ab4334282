//! Limits on what producers and gateways may send, as the contract states them. Apply refuses what is over them on
//! every node alike, whatever an edge let through.

/// The tenant of the server's own self-test: no update, event, lookup or aggregate of the public contract touches it.
pub const RESERVED_TENANT: &str = "inferencecache.io/probe";
/// Longest id (replica, tenant, model, scheme, adapter) in bytes.
pub const MAX_ID_BYTES: usize = 1_024;
/// Longest block or prefix hash in bytes.
pub const MAX_HASH_BYTES: usize = 128;
/// Most blocks in the chain of one entry.
pub const MAX_CHAIN_BLOCKS: usize = 65_536;
/// Most token ids that one lookup fingerprints.
pub const MAX_LOOKUP_TOKENS: usize = 1 << 20;
/// Most ingest sessions remembered.
pub const MAX_SESSIONS: usize = 65_536;
/// How many (log index, digest) pairs are kept for audits and for `digest_at`.
pub const DIGEST_RING: usize = 16_384;
