//! The commands of the log, and what applying one reports back. Apply is a pure function of (state, stamp, command);
//! everything that it may depend on is in these types or in the state that earlier ones built.

use crate::delta::Delta;
use crate::policy::PolicySet;
use serde::{Deserialize, Serialize};

/// One command with the leader's cluster time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamped {
    /// Cluster time in microseconds since the Unix epoch. Apply never lets time run backwards: a stamp below the
    /// state's time counts as that time.
    pub stamp_us: u64,
    /// What to do.
    pub command: Command,
}

/// What a log entry does. A node that can't read one stops; it never skips one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Producers' deltas, joined from many streams by the leader.
    Deltas(Vec<Batch>),
    /// One slice of background removal: dead entries of cleared replicas, expired entries and stats, quotas, sessions.
    Sweep,
    /// Replaces the whole policy set, on behalf of somebody who pushed it. From then on offers change nothing.
    SetPolicy(PolicySet),
    /// LFU credits collected by one node.
    AccessCredits(Vec<Credit>),
    /// Parameters that apply uses, and the cluster's feature level.
    ClusterMeta(ClusterMeta),
    /// The leader's digest at an earlier index, for every node to compare with its own.
    Audit(Audit),
    /// The self-test of POST /probe: one synthetic block written to or removed from the reserved tenant.
    Probe(Probe),
    /// Replaces the whole policy set with the one of a node's file, unless somebody pushed one.
    OfferPolicy(PolicySet),
}

/// Deltas taken in by one node, in order, under that node's (session, sequence).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The ingest session: drawn at random by the node that took the deltas in.
    pub session: u128,
    /// Rises by at least one a batch within the session; apply skips what isn't above the session's last.
    pub sequence: u64,
    /// A producer's own (epoch, sequence), reserved for a later feature level; apply ignores it.
    pub producer: Option<(u64, u64)>,
    /// The deltas in arrival order.
    pub deltas: Vec<Delta>,
}

/// Accesses of delivered entries of one replica in one partition of an LFU tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Credit {
    /// The tenant.
    pub tenant: String,
    /// The model.
    pub model: String,
    /// The hash scheme.
    pub scheme: String,
    /// The adapter partition.
    pub adapter: String,
    /// The replica behind the delivered score.
    pub replica: String,
    /// The credited hashes.
    pub hashes: crate::delta::PackedHashes,
    /// Accesses for each of `hashes`, in the same order.
    pub counts: Vec<u32>,
}

/// Parameters that apply uses. The leader proposes its own flags; all nodes then use these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMeta {
    /// The form of commands and state that every member can read.
    pub feature_level: u32,
    /// TTL in microseconds for tenants whose policy gives none.
    pub default_ttl_us: u64,
    /// Cap on entries, the reserved tenant aside; 0 is unbounded.
    pub max_entries: u64,
    /// Cap on bytes by the documented formula; 0 is unbounded.
    pub max_bytes: u64,
    /// Most entries that one Sweep, or the inline part of one ALL_CLEARED, removes.
    pub slice_entries: u32,
    /// Sessions idle for longer than this many microseconds are forgotten.
    pub session_ttl_us: u64,
}

impl Default for ClusterMeta {
    fn default() -> Self {
        Self {
            feature_level: 1,
            default_ttl_us: 30 * 60 * 1_000_000,
            max_entries: 1_000_000,
            max_bytes: 0,
            slice_entries: 2_048,
            session_ttl_us: 3_600 * 1_000_000,
        }
    }
}

/// A digest that a leader saw at a log index.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// The log index after whose entry the digest was taken.
    pub index: u64,
    /// The digest there.
    pub digest: u128,
}

/// One step of the self-test under the reserved tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The synthetic replica.
    pub replica: String,
    /// The model probed.
    pub model: String,
    /// The hash scheme probed.
    pub scheme: String,
    /// The synthetic block's hash.
    #[serde(with = "serde_bytes")]
    pub hash: Vec<u8>,
    /// True writes the block, false removes it.
    pub present: bool,
}
