//! What a node says of itself: to operators and metrics, and to its peers.

use crate::dial::Dialer;
use crate::face::{MemberStatus, NodeStatus, Role};
use crate::margin::quorum_margin;
use crate::membership::Promise;
use crate::node::{Inner, wall_us};
use crate::stalls;
use crate::types::{TypeConfig, wire_members};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Instant as _, RaftMetrics, ServerState};
use prefixd_proto::node as wire;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Inner {
    /// Fills in the answer to "who are you".
    pub(crate) fn peer_status(&self) -> wire::PeerStatusResponse {
        let disk = self.founder.state();
        let metrics = self.metrics();
        let summary = self.core.published.summary();
        let mut peer_names: Vec<String> = self.config.peers.iter().map(|peer| peer.name.clone()).collect();
        peer_names.sort();
        let members = match &metrics {
            Some(m) if m.membership_config.membership().nodes().next().is_some() => {
                wire_members(m.membership_config.membership())
            }
            _ => disk.promise.iter().flat_map(Promise::as_members).map(|m| crate::calls::member_to_wire(&m)).collect(),
        };
        let state = self.log.store().state();
        wire::PeerStatusResponse {
            node_name: self.config.node_name.clone(),
            node_id: disk.node_id,
            cluster_id: disk.cluster_id.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default().into(),
            promise: disk.promise.as_ref().map(crate::calls::promise_to_wire),
            peer_names,
            wall_us: wall_us(),
            members,
            leader: metrics.as_ref().and_then(|m| m.current_leader),
            term: metrics.as_ref().map_or(0, |m| m.current_term),
            last_log_index: state.last.map(|pos| pos.index),
            committed_index: state.committed.map(|pos| pos.index),
            applied_index: summary.applied.map(|pos| pos.index),
            feature_level: summary.meta.feature_level,
            feature_max: self.config.feature_max,
            release: env!("CARGO_PKG_VERSION").into(),
            incarnation: self.incarnation.load(Ordering::Relaxed),
            cluster_time_us: self.core.published.now_us(),
            ready: self.readiness().0,
            short_of_room: self.room.trouble().is_some(),
        }
    }

    pub(crate) fn stale_ms(&self) -> u64 {
        let never = self.core.published.mono_us() / 1_000;
        let Some((_, raft)) = self.member() else { return never };
        let millis = |since: Duration| u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state == ServerState::Leader {
            let alone = metrics.membership_config.membership().voter_ids().count() == 1;
            return match metrics.last_quorum_acked {
                _ if alone => 0,
                Some(at) => millis(at.elapsed()),
                None => never,
            };
        }
        self.heard().at.map_or(never, |at| millis(at.elapsed()))
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let disk = self.founder.state();
        // In this order, so that what is purged never looks newer than its snapshot, nor a snapshot than what is applied,
        // nor that than what is committed.
        let purged_index = self.log.store().state().purged.map_or(0, |pos| pos.index);
        let snapshot_index = self.snapshot_index();
        let summary = self.core.published.summary();
        let metrics = self.metrics();
        let state = self.log.store().state();
        let (ready, mut unready_reason) = self.readiness();
        let log = self.log.store().stats();
        let patience = self.config.timing.election_min;
        if ready && let Some(trouble) = self.room.trouble().or_else(|| stalls::trouble(log.writing_for, patience)) {
            unready_reason = trouble;
        }
        let wall = wall_us();
        let now = self.core.published.now_us();
        let latest = self.snapshots.latest();
        let mut status = NodeStatus {
            node_name: self.config.node_name.clone(),
            node_id: disk.node_id,
            incarnation: self.incarnation.load(Ordering::Relaxed),
            cluster_id: disk.cluster_id,
            leader_changes: self.leader_changes.load(Ordering::Relaxed),
            last_log_index: state.last.map_or(0, |pos| pos.index),
            committed_index: state.committed.map_or(0, |pos| pos.index),
            applied_index: summary.applied.map_or(0, |pos| pos.index),
            snapshot_index,
            purged_index,
            log_bytes: log.disk_bytes,
            log_write_pending_us: log
                .writing_for
                .map_or(0, |so_far| u64::try_from(so_far.as_micros()).unwrap_or(u64::MAX)),
            process_stalls: self.process_stalls.load(Ordering::Relaxed),
            snapshot_bytes: latest.as_ref().map_or(0, |generation| generation.bytes()),
            snapshot_age_seconds: latest
                .as_ref()
                .map(|generation| now.saturating_sub(generation.manifest().taken_at_us) / 1_000_000),
            digest: summary.digest,
            cluster_time_us: now,
            wall_us: wall,
            clock_skew_us: i64::try_from(i128::from(wall) - i128::from(now)).unwrap_or(i64::MAX),
            stale_ms: self.stale_ms(),
            ready,
            unready_reason,
            feature_level: summary.meta.feature_level,
            queue_bytes: self.lanes.get().map_or(0, |lanes| lanes.waiting_bytes() as u64),
            disk_free_bytes: prefixd_storage::disk_free_bytes(&self.config.data_dir).unwrap_or(0),
            disk_reserve_bytes: self.room.reserve_bytes(),
            disk_condition: self.room.condition(),
            log_reopenings: self.room.reopenings(),
            snapshots_set_aside: self.mended.set_aside.load(Ordering::Relaxed),
            snapshots_fetched: self.mended.fetched.load(Ordering::Relaxed),
            sweeps: summary.sweeps,
            audit_mismatches: summary.audit_mismatches,
            duplicate_batches: summary.duplicate_batches,
            ..NodeStatus::default()
        };
        if let Some(metrics) = metrics {
            fill_from_raft(&mut status, &metrics, &self.dialer);
            status.leader = self.present_leader();
            status.quorum_margin = margin(&metrics, self.config.timing.election_max);
        }
        // A log that was opened anew may not remember all that is known to be committed.
        let seen = self.committed_seen.fetch_max(status.committed_index, Ordering::Relaxed);
        status.committed_index = status.committed_index.max(seen).max(status.applied_index);
        status
    }
}

fn fill_from_raft(status: &mut NodeStatus, metrics: &RaftMetrics<TypeConfig>, dialer: &Dialer) {
    let membership = metrics.membership_config.membership();
    status.term = metrics.current_term;
    status.role = match metrics.state {
        ServerState::Learner => Role::Learner,
        ServerState::Follower => Role::Follower,
        ServerState::Candidate => Role::Candidate,
        ServerState::Leader => Role::Leader,
        ServerState::Shutdown => Role::Unassigned,
    };
    if let Some(committed) = &metrics.local_committed {
        status.committed_index = status.committed_index.max(committed.index());
    }
    status.members = wire_members(membership)
        .into_iter()
        .map(|member| MemberStatus {
            lag: lag(metrics, member.node_id),
            heard_ms: heard_ms(metrics, member.node_id),
            node_id: member.node_id,
            node_addr: dialer.addr(&member.name, &member.node_addr),
            name: member.name,
            voter: member.voter,
        })
        .collect();
}

fn lag(metrics: &RaftMetrics<TypeConfig>, id: u64) -> Option<u64> {
    let last = metrics.last_log_index.unwrap_or(0);
    if metrics.state != ServerState::Leader {
        return None;
    }
    if id == metrics.id {
        return Some(0);
    }
    let matched = metrics.replication.as_ref()?.get(&id)?.as_ref().map_or(0, |pos| pos.index());
    Some(last.saturating_sub(matched))
}

/// Milliseconds since the leader heard of a member; 0 for itself.
fn heard_ms(metrics: &RaftMetrics<TypeConfig>, id: u64) -> Option<u64> {
    if id == metrics.id && metrics.state == ServerState::Leader {
        return Some(0);
    }
    let at = metrics.heartbeat.as_ref()?.get(&id)?.as_ref()?;
    Some(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
}

/// How many more voters may be lost, as the leader knows.
fn margin(metrics: &RaftMetrics<TypeConfig>, silence: Duration) -> Option<i64> {
    if metrics.state != ServerState::Leader {
        return None;
    }
    let is_heard = |id| heard_ms(metrics, id).is_some_and(|ms| u128::from(ms) <= silence.as_millis());
    quorum_margin(metrics.membership_config.membership().get_joint_config(), is_heard)
}
