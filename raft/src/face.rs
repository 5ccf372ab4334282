//! What a node is configured with and what it tells its owner: plain values, no openraft type.

use crate::tls::NodeTls;
use prefixd_index::command::ClusterMeta;
use std::path::PathBuf;
use std::time::Duration;

/// One line of the peer list: a place in the cluster and where its node port is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The member's name, unique in the list.
    pub name: String,
    /// host:port; the host is resolved at each dial.
    pub addr: String,
}

/// How a node with an empty disk becomes a member.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BootstrapMode {
    /// Founds a cluster of one at once.
    Solo,
    /// Founds a cluster with all peers if all of them are empty, else asks to join.
    Peers,
    /// Never founds a cluster; asks to join.
    Never,
}

/// Timing of Raft and of the background drivers.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Between heartbeats of a leader.
    pub heartbeat: Duration,
    /// Shortest silence after which a follower stands for election.
    pub election_min: Duration,
    /// Longest such silence; the T of the documentation.
    pub election_max: Duration,
    /// How long a batch may take to be committed and applied here before its caller gets UNAVAILABLE.
    pub propose_timeout: Duration,
    /// Between background sweeps.
    pub sweep_interval: Duration,
    /// Between audits of the digest.
    pub audit_interval: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            election_min: Duration::from_millis(1_000),
            election_max: Duration::from_millis(2_000),
            propose_timeout: Duration::from_secs(10),
            sweep_interval: Duration::from_secs(60),
            audit_interval: Duration::from_secs(60),
        }
    }
}

/// Limits of queues, batches, snapshots and the log.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of encoded deltas that one log entry joins (a single larger delta still goes alone).
    pub entry_bytes: usize,
    /// Bytes of deltas waiting in this node; beyond it a submission is refused with [`SubmitError::QueueFull`].
    pub queue_bytes: usize,
    /// Log entries after the last snapshot that trigger the next one.
    pub snapshot_log_entries: u64,
    /// Log entries kept behind a snapshot for short outages.
    pub keep_log_entries: u64,
    /// A node that lags by more log entries than this is not ready.
    pub max_lag_entries: u64,
    /// Bytes of pre-images that a snapshot in the making may hold before it is given up and retried.
    pub snapshot_preimage_entries: usize,
    /// Free bytes of the disk below which this node takes nothing in; `None` for room for one snapshot and two
    /// segments of the log (see [`crate::room`]'s formula in docs/STORAGE.md), 0 for no reserve.
    pub disk_reserve_bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entry_bytes: 1 << 20,
            queue_bytes: 64 << 20,
            snapshot_log_entries: 20_000,
            keep_log_entries: 5_000,
            max_lag_entries: 10_000,
            snapshot_preimage_entries: 1_000_000,
            disk_reserve_bytes: None,
        }
    }
}

/// Everything that a node needs to start.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Where the identity, the log and the snapshots live.
    pub data_dir: PathBuf,
    /// This node's name; with `peers` it must be one of theirs.
    pub node_name: String,
    /// All members, this node included; empty for a node that stands alone.
    pub peers: Vec<Peer>,
    /// What to do with an empty disk.
    pub bootstrap: BootstrapMode,
    /// host:port announced to the others; `None` announces the bound address.
    pub advertise_addr: Option<String>,
    /// Parameters that this node proposes when it leads.
    pub meta: ClusterMeta,
    /// Timing.
    pub timing: Timing,
    /// Limits.
    pub limits: Limits,
    /// Mutual TLS of the node port; `None` leaves it open to whoever reaches it.
    pub tls: Option<NodeTls>,
    /// The highest feature level that this node reads: [`crate::FEATURE_MAX`], but for a test that plays another release.
    pub feature_max: u32,
}

/// Why a submission was not acknowledged. What was not acknowledged may or may not have been applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// This node's queue, or the leader's, is full.
    #[error("the ingest queue is full: {0}")]
    QueueFull(String),
    /// No leader or no quorum in time, or this node is stopping.
    #[error("not committed in time: {0}")]
    Unavailable(String),
    /// The disk of this node, of the leader, or of too many members is below its reserve.
    #[error("no room: {0}")]
    NoRoom(String),
}

/// What the disk lets a node do.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum DiskCondition {
    /// Everything.
    #[default]
    Roomy,
    /// Below the reserve: it answers lookups and votes, and takes no log entries in.
    Short,
    /// It was full, and the log is being opened anew: lookups are answered.
    Reopening,
}

impl DiskCondition {
    /// All of them.
    pub const ALL: [DiskCondition; 3] = [DiskCondition::Roomy, DiskCondition::Short, DiskCondition::Reopening];

    /// The word that metrics show.
    pub fn as_str(self) -> &'static str {
        match self {
            DiskCondition::Roomy => "roomy",
            DiskCondition::Short => "short",
            DiskCondition::Reopening => "reopening",
        }
    }
}

/// The part that a node plays.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum Role {
    /// Belongs to no cluster yet.
    #[default]
    Unassigned,
    /// Receives the log without a vote.
    Learner,
    /// Follows a leader, or waits for one.
    Follower,
    /// Stands for election.
    Candidate,
    /// Leads.
    Leader,
}

impl Role {
    /// The role in lower case, as status and metrics show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Unassigned => "unassigned",
            Role::Learner => "learner",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Leader => "leader",
        }
    }
}

/// A member as this node knows it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MemberStatus {
    /// The id of its disk.
    pub node_id: u64,
    /// The name of its place.
    pub name: String,
    /// host:port of its node port.
    pub node_addr: String,
    /// False for a learner.
    pub voter: bool,
    /// Log entries behind the leader; known on the leader alone.
    pub lag: Option<u64>,
    /// Milliseconds since the leader last heard of it; known on the leader alone.
    pub heard_ms: Option<u64>,
}

/// A node's view of itself and the cluster at one moment.
#[derive(Clone, Debug, Default)]
pub struct NodeStatus {
    /// This node's name.
    pub node_name: String,
    /// This disk's id.
    pub node_id: u64,
    /// How often this disk was opened.
    pub incarnation: u64,
    /// The cluster, once there is one.
    pub cluster_id: Option<u128>,
    /// The part that this node plays.
    pub role: Role,
    /// The current term.
    pub term: u64,
    /// The leader that this node knows.
    pub leader: Option<u64>,
    /// Leader changes seen since start.
    pub leader_changes: u64,
    /// All members.
    pub members: Vec<MemberStatus>,
    /// How many more voters may be lost before writes stop: those heard of within the longest election timeout, less a
    /// quorum; known on the leader alone.
    pub quorum_margin: Option<i64>,
    /// Last index in the log.
    pub last_log_index: u64,
    /// Highest index known to be committed.
    pub committed_index: u64,
    /// Highest index applied to the index.
    pub applied_index: u64,
    /// Index of the newest snapshot; 0 for none.
    pub snapshot_index: u64,
    /// Highest index removed from the log; 0 for none.
    pub purged_index: u64,
    /// Bytes of the log file on disk.
    pub log_bytes: u64,
    /// For how long the log has been writing what it writes now, in microseconds; 0 when it waits for work.
    pub log_write_pending_us: u64,
    /// How often this process stood still for longer than the shortest election timeout, since start.
    pub process_stalls: u64,
    /// Bytes of the newest snapshot generation on disk.
    pub snapshot_bytes: u64,
    /// Wall-clock seconds since the newest snapshot was taken; `None` for no snapshot.
    pub snapshot_age_seconds: Option<u64>,
    /// The digest at `applied_index`.
    pub digest: u128,
    /// Cluster time in microseconds.
    pub cluster_time_us: u64,
    /// This node's wall clock in microseconds.
    pub wall_us: u64,
    /// Wall clock minus cluster time in microseconds: the skew that the clock alert watches.
    pub clock_skew_us: i64,
    /// Milliseconds since this node last knew that it was current (see [`crate::Node::stale_ms`]).
    pub stale_ms: u64,
    /// Ready to answer.
    pub ready: bool,
    /// Why not, when not; when ready, what is amiss with the disk all the same.
    pub unready_reason: String,
    /// The cluster's feature level.
    pub feature_level: u32,
    /// Bytes waiting in this node's ingest queue.
    pub queue_bytes: u64,
    /// Free bytes on the data directory's filesystem.
    pub disk_free_bytes: u64,
    /// Free bytes below which this node takes nothing in; 0 for no reserve.
    pub disk_reserve_bytes: u64,
    /// What the disk lets this node do.
    pub disk_condition: DiskCondition,
    /// How often the log was opened anew after a full disk, since start.
    pub log_reopenings: u64,
    /// Snapshot generations that were no good and were set aside, since start.
    pub snapshots_set_aside: u64,
    /// Snapshots fetched from a peer because none of this disk's own was good, since start.
    pub snapshots_fetched: u64,
    /// Sweeps applied since start.
    pub sweeps: u64,
    /// Audits whose digest differed, since start.
    pub audit_mismatches: u64,
    /// Batches skipped as repeats, since start.
    pub duplicate_batches: u64,
}

/// A cumulative histogram: `counts[i]` observations at or under `bounds_seconds[i]`, the rest in `count` alone.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Upper bounds in seconds, ascending.
    pub bounds_seconds: Vec<f64>,
    /// Observations at or under each bound.
    pub counts: Vec<u64>,
    /// All observations.
    pub count: u64,
    /// Their sum in seconds.
    pub sum_seconds: f64,
}

impl Histogram {
    /// Counts one observation.
    pub fn observe(&mut self, seconds: f64) {
        for (bound, count) in self.bounds_seconds.iter().zip(&mut self.counts) {
            *count += u64::from(seconds <= *bound);
        }
        self.count += 1;
        self.sum_seconds += seconds;
    }
}

/// Figures for /metrics beside [`NodeStatus`].
#[derive(Clone, Debug, Default)]
pub struct NodeFigures {
    /// fdatasync of the log.
    pub fsync: Histogram,
    /// From the proposal of a log entry by this node as leader to its commit and apply.
    pub proposal: Histogram,
    /// Cap evictions in entries, LRU tenants.
    pub evictions_lru_cap: u64,
    /// Cap evictions in entries, LFU tenants.
    pub evictions_lfu_cap: u64,
    /// Expired entries removed, LRU tenants.
    pub evictions_lru_ttl: u64,
    /// Expired entries removed, LFU tenants.
    pub evictions_lfu_ttl: u64,
    /// Prefixes removed over quota, by tenant.
    pub tenant_evictions: Vec<(String, u64)>,
}
