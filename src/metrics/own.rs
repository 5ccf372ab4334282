//! Our own families: Raft, storage, clock and the index's size, as the node tells them.

use super::sample::{Buckets, counter, gauge, gauges, histograms};
use prefixd_index::view::Published;
use prefixd_raft::{DiskCondition, Histogram, NodeFigures, NodeStatus, Role};
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;

const ROLES: [Role; 5] = [Role::Unassigned, Role::Learner, Role::Follower, Role::Candidate, Role::Leader];

pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    status: &NodeStatus,
    figures: &NodeFigures,
    published: &Published,
) -> fmt::Result {
    let build = [("version", env!("CARGO_PKG_VERSION"))];
    gauges(encoder, "prefixd_build_info", "The release, as a label of a constant 1", [(build, 1.0)])?;
    let ready = f64::from(u8::from(status.ready));
    gauge(encoder, "prefixd_ready", "1 when this node is ready to answer", ready)?;
    raft(encoder, status, figures)?;
    log(encoder, status)?;
    storage(encoder, status, figures)?;
    clock(encoder, status)?;
    index(encoder, status, published)
}

fn raft(encoder: &mut DescriptorEncoder<'_>, status: &NodeStatus, figures: &NodeFigures) -> fmt::Result {
    gauge(encoder, "prefixd_raft_term", "The current term", status.term as f64)?;
    let roles = ROLES.map(|role| ([("role", role.as_str())], f64::from(u8::from(role == status.role))));
    gauges(encoder, "prefixd_raft_role", "1 for the role that this node plays", roles)?;
    let known = f64::from(u8::from(status.leader.is_some()));
    gauge(
        encoder,
        "prefixd_raft_leader_known",
        "1 when this node knows a leader, and heard of it within twice --election-max",
        known,
    )?;
    let changes = status.leader_changes;
    counter(encoder, "prefixd_raft_leader_changes", "Changes of leader seen since start", changes)?;
    let voters = status.members.iter().filter(|member| member.voter).count();
    let learners = status.members.len() - voters;
    let members = [("voter", voters), ("learner", learners)].map(|(kind, n)| ([("kind", kind)], n as f64));
    gauges(encoder, "prefixd_raft_members", "Members of the cluster", members)?;
    let lags = status.members.iter().filter_map(|m| Some(([("member", m.name.as_str())], m.lag? as f64)));
    gauges(encoder, "prefixd_raft_member_lag_entries", "Log entries a member is behind; on the leader alone", lags)?;
    let margin = status.quorum_margin.map(|voters| ([], voters as f64));
    gauges(encoder, "prefixd_raft_quorum_margin", "Voters that may still be lost; on the leader alone", margin)?;
    gauge(encoder, "prefixd_raft_queue_bytes", "Updates that wait in this node", status.queue_bytes as f64)?;
    counter(encoder, "prefixd_process_stalls", "This process stood still", status.process_stalls)?;
    gauge(encoder, "prefixd_feature_level", "The cluster's feature level", f64::from(status.feature_level))?;
    let proposal = [([], buckets(&figures.proposal))];
    let help = "From a leader's proposal of a log entry to its commit and apply";
    histograms(encoder, "prefixd_raft_proposal_seconds", help, proposal)
}

fn log(encoder: &mut DescriptorEncoder<'_>, status: &NodeStatus) -> fmt::Result {
    let lag = status.committed_index.saturating_sub(status.applied_index);
    gauge(encoder, "prefixd_raft_last_log_index", "Last index in the log", status.last_log_index as f64)?;
    gauge(encoder, "prefixd_raft_committed_index", "Highest committed index", status.committed_index as f64)?;
    gauge(encoder, "prefixd_raft_applied_index", "Highest applied index", status.applied_index as f64)?;
    gauge(encoder, "prefixd_raft_apply_lag_entries", "Committed and not yet applied here", lag as f64)?;
    gauge(encoder, "prefixd_raft_snapshot_index", "Index of the newest snapshot", status.snapshot_index as f64)?;
    gauge(encoder, "prefixd_raft_purged_index", "Highest index removed from the log", status.purged_index as f64)?;
    let mismatches = status.audit_mismatches;
    counter(encoder, "prefixd_audit_mismatches", "Audits whose digest differed here", mismatches)?;
    let duplicates = status.duplicate_batches;
    counter(encoder, "prefixd_duplicate_batches", "Batches skipped as repeats", duplicates)
}

fn storage(encoder: &mut DescriptorEncoder<'_>, status: &NodeStatus, figures: &NodeFigures) -> fmt::Result {
    let fsync = [([], buckets(&figures.fsync))];
    histograms(encoder, "prefixd_storage_fsync_seconds", "fdatasync of the log", fsync)?;
    let pending = status.log_write_pending_us as f64 / 1e6;
    gauge(
        encoder,
        "prefixd_storage_log_write_pending_seconds",
        "How long the log's write under way takes so far",
        pending,
    )?;
    gauge(encoder, "prefixd_storage_log_bytes", "Bytes of the log on disk", status.log_bytes as f64)?;
    let bytes = status.snapshot_bytes as f64;
    gauge(encoder, "prefixd_storage_snapshot_bytes", "Bytes of the newest snapshot on disk", bytes)?;
    let age = status.snapshot_age_seconds.map(|seconds| ([], seconds as f64));
    gauges(encoder, "prefixd_storage_snapshot_age_seconds", "Age of the newest snapshot, if there is one", age)?;
    let free = status.disk_free_bytes as f64;
    gauge(encoder, "prefixd_storage_disk_free_bytes", "Free bytes where the data directory is", free)?;
    disk(encoder, status)
}

fn disk(encoder: &mut DescriptorEncoder<'_>, status: &NodeStatus) -> fmt::Result {
    let reserve = status.disk_reserve_bytes as f64;
    let help = "Free bytes below which this node takes nothing in";
    gauge(encoder, "prefixd_storage_disk_reserve_bytes", help, reserve)?;
    let condition = DiskCondition::ALL.map(|condition| {
        ([("condition", condition.as_str())], f64::from(u8::from(condition == status.disk_condition)))
    });
    gauges(encoder, "prefixd_storage_disk_condition", "1 for what the disk lets this node do", condition)?;
    let reopenings = status.log_reopenings;
    counter(encoder, "prefixd_storage_log_reopenings", "The log was opened anew after a full disk", reopenings)?;
    let bad = status.snapshots_set_aside;
    counter(encoder, "prefixd_storage_snapshots_set_aside", "Snapshots that were no good", bad)?;
    let fetched = status.snapshots_fetched;
    counter(encoder, "prefixd_storage_snapshots_fetched", "Snapshots fetched because none here was good", fetched)
}

fn clock(encoder: &mut DescriptorEncoder<'_>, status: &NodeStatus) -> fmt::Result {
    let cluster = status.cluster_time_us as f64 / 1e6;
    gauge(encoder, "prefixd_cluster_time_seconds", "Cluster time since the Unix epoch", cluster)?;
    let skew = status.clock_skew_us as f64 / 1e6;
    gauge(encoder, "prefixd_clock_skew_seconds", "This node's wall clock minus cluster time", skew)?;
    let stale = Some(status.stale_ms).filter(|ms| *ms != u64::MAX).map(|ms| ([], ms as f64 / 1e3));
    gauges(encoder, "prefixd_stale_seconds", "Since this node last knew that it was current", stale)
}

fn index(encoder: &mut DescriptorEncoder<'_>, status: &NodeStatus, published: &Published) -> fmt::Result {
    let totals = &published.totals;
    let per_entry = if totals.entries == 0 { 0.0 } else { totals.bytes as f64 / totals.entries as f64 };
    gauge(encoder, "prefixd_index_entries", "Entries in the index", totals.entries as f64)?;
    gauge(encoder, "prefixd_index_prefixes", "Distinct prefixes in the index", totals.prefixes as f64)?;
    gauge(encoder, "prefixd_index_bytes", "Bytes of the index by the documented formula", totals.bytes as f64)?;
    gauge(encoder, "prefixd_index_bytes_per_entry", "Those bytes by entry", per_entry)?;
    let dead = totals.dead_entries as f64;
    gauge(encoder, "prefixd_index_dead_entries", "Entries of cleared replicas that wait for removal", dead)?;
    gauge(encoder, "prefixd_index_stats_rows", "Stats rows", totals.stats_rows as f64)?;
    gauge(encoder, "prefixd_index_sessions", "Ingest sessions remembered", totals.sessions as f64)?;
    counter(encoder, "prefixd_sweeps", "Sweeps applied since start", status.sweeps)
}

/// Cumulative counts as counts of each bucket alone.
fn buckets(histogram: &Histogram) -> Buckets {
    let mut below = 0;
    let bounds = histogram.bounds_seconds.iter().copied().chain([f64::INFINITY]);
    let counts = histogram.counts.iter().copied().chain([histogram.count]);
    let buckets = bounds.zip(counts).map(|(bound, cumulative)| {
        let alone = cumulative.saturating_sub(below);
        below = below.max(cumulative);
        (bound, alone)
    });
    Buckets { buckets: buckets.collect(), sum_seconds: histogram.sum_seconds }
}
