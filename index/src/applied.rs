//! What applying one log entry reports back to its caller: outcomes for the waiting streams and counts for metrics.
//! Nothing here is state; a node that ignores it stays equal to the others.

use std::collections::BTreeMap;

/// What happened to one batch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// Applied.
    Applied,
    /// Skipped: its sequence isn't above the session's last.
    Duplicate,
}

/// Entries removed by the limits of the index, in entries.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Evictions {
    /// Removed by the cap, of LRU tenants.
    pub lru_cap: u64,
    /// Removed by the cap, of LFU tenants.
    pub lfu_cap: u64,
    /// Expired, of LRU tenants.
    pub lru_ttl: u64,
    /// Expired, of LFU tenants.
    pub lfu_ttl: u64,
    /// *Prefixes* removed over quota, by tenant; their entries are in none of the other counts.
    pub over_quota: BTreeMap<String, u64>,
}

/// The comparison that an Audit asked for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AuditResult {
    /// The log index compared at.
    pub index: u64,
    /// The leader's digest there.
    pub expected: u128,
    /// Ours, or `None` when it is no longer (or was never) known here.
    pub ours: Option<u128>,
}

impl AuditResult {
    /// True when both are known and differ.
    pub fn differs(&self) -> bool {
        self.ours.is_some_and(|ours| ours != self.expected)
    }
}

/// The report of one apply.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Applied {
    /// One outcome a batch, in order.
    pub batches: Vec<BatchOutcome>,
    /// Updates, entries and events refused: nothing that an honest edge lets through.
    pub refused: u64,
    /// Entries removed by limits.
    pub evictions: Evictions,
    /// Entries of cleared replicas that were purged.
    pub purged: u64,
    /// Stats rows that expired.
    pub expired_stats: u64,
    /// The result of an Audit.
    pub audit: Option<AuditResult>,
}

/// Sizes of the index.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Totals {
    /// Visible entries, the reserved tenant's included.
    pub entries: u64,
    /// Visible entries of the reserved tenant.
    pub reserved_entries: u64,
    /// Distinct prefixes, the reserved tenant's included; those of dead entries count until they are purged.
    pub prefixes: u64,
    /// Bytes by the documented formula, the reserved tenant left out.
    pub bytes: u64,
    /// Entries of cleared replicas that wait for their purge.
    pub dead_entries: u64,
    /// Stats rows.
    pub stats_rows: u64,
    /// (tenant, model, replica) triples with visible entries or stats.
    pub members: u64,
    /// Ingest sessions remembered.
    pub sessions: u64,
}
