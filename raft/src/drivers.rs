//! What runs beside Raft on a node: the leader proposes its parameters, sweeps and audits; every node takes snapshots,
//! purges what they cover, and watches that nothing has died.

use crate::membership::features::beyond;
use crate::node::Inner;
use crate::{deaf, reopen, stalls, step_aside};
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use prefixd_index::command::{Audit, ClusterMeta, Command};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// Between looks at what is due.
const TICK: Duration = Duration::from_millis(100);
/// Sweeps in a row while there is more to remove, before others get a turn.
const SWEEPS_A_TURN: usize = 64;
/// Between looks at the membership: changes left halfway, members that nobody will ask for again, what all can read.
const MEMBERS_INTERVAL: Duration = Duration::from_secs(2);
/// Bytes of log after the last snapshot that trigger the next one.
const SNAPSHOT_LOG_BYTES: u64 = 256 << 20;

/// Runs the drivers until the node stops.
pub(crate) fn start(inner: Arc<Inner>) {
    tokio::spawn(lead(inner.clone()));
    tokio::spawn(compact(inner.clone()));
    tokio::spawn(inner.clone().watch_for_exile());
    tokio::spawn(step_aside::watch_room(inner.clone()));
    tokio::spawn(step_aside::run(inner.clone()));
    tokio::spawn(deaf::run(inner.clone()));
    tokio::spawn(reopen::run(inner.clone()));
    tokio::spawn(stalls::run(inner.clone()));
    tokio::spawn(watch(inner));
}

/// Sleeps a tick; false when the node stops.
pub(crate) async fn ticked(inner: &Inner, ticker: &mut tokio::time::Interval) -> bool {
    tokio::select! {
        _ = ticker.tick() => true,
        () = inner.stopping.cancelled() => false,
    }
}

pub(crate) fn ticker(period: Duration) -> tokio::time::Interval {
    let mut ticker = tokio::time::interval(period);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticker
}

async fn lead(inner: Arc<Inner>) {
    let mut ticker = ticker(TICK);
    let timing = inner.config.timing.clone();
    let (mut next_sweep, mut next_audit) =
        (Instant::now() + timing.sweep_interval, Instant::now() + timing.audit_interval);
    let mut next_look = Instant::now() + MEMBERS_INTERVAL;
    let mut warned: Option<ClusterMeta> = None;
    let mut held = None;
    while ticked(&inner, &mut ticker).await {
        let summary = inner.core.published.summary();
        if !inner.is_leader() {
            warn_of_other_flags(&inner, &summary.meta, summary.applied.is_some(), &mut warned);
            continue;
        }
        let wanted = inner.wanted_meta(&summary.meta);
        // The default of a state that nothing was applied to looks like any other: propose until one is in the log.
        if summary.meta != wanted || !summary.meta_was_set {
            inner.propose_quietly(Command::ClusterMeta(wanted)).await;
        }
        let now = Instant::now();
        if now >= next_sweep || summary.wants_sweep {
            next_sweep = now + timing.sweep_interval;
            for _ in 0..SWEEPS_A_TURN {
                if !inner.propose_quietly(Command::Sweep).await {
                    break;
                }
            }
        }
        if now >= next_look {
            next_look = now + MEMBERS_INTERVAL;
            inner.finish_change().await;
            inner.lay_ghosts().await;
            inner.raise_feature_level(&mut held).await;
        }
        if now >= next_audit {
            next_audit = now + timing.audit_interval;
            if let Some((index, digest)) = inner.core.published.latest_digest() {
                inner.propose_quietly(Command::Audit(Audit { index, digest })).await;
            }
        }
    }
}

fn warn_of_other_flags(inner: &Inner, meta: &ClusterMeta, any_applied: bool, warned: &mut Option<ClusterMeta>) {
    if any_applied && *meta != inner.wanted_meta(meta) && warned.as_ref() != Some(meta) {
        tracing::warn!(cluster = ?meta, own = ?inner.config.meta,
            "this node's flags differ from the cluster's parameters; the cluster's are used here, and this node's \
             would be if it led");
        *warned = Some(meta.clone());
    }
}

async fn compact(inner: Arc<Inner>) {
    let mut ticker = ticker(TICK);
    let mut bytes_at_snapshot = 0;
    let mut seen_snapshot = 0;
    let mut asked_at = None;
    while ticked(&inner, &mut ticker).await {
        let Some((_, raft)) = inner.member() else { continue };
        let snapshot = inner.snapshot_index();
        let appended = inner.log.appended_bytes();
        if snapshot != seen_snapshot {
            seen_snapshot = snapshot;
            bytes_at_snapshot = appended;
            asked_at = None;
        }
        let applied = inner.core.published.applied_index();
        let due = applied.saturating_sub(snapshot) >= inner.config.limits.snapshot_log_entries
            || (appended.saturating_sub(bytes_at_snapshot) >= SNAPSHOT_LOG_BYTES && applied > snapshot);
        // openraft ignores the trigger while it builds one; ask again only if nothing came of it.
        if due && asked_at.is_none_or(|at: Instant| at.elapsed() > Duration::from_secs(30)) {
            asked_at = Some(Instant::now());
            if let Err(error) = raft.trigger().snapshot().await {
                tracing::warn!(%error, "could not ask for a snapshot");
            }
        }
        purge(&inner).await;
    }
}

/// Purges what two snapshots cover, but for the entries kept for short outages.
async fn purge(inner: &Inner) {
    let Some((_, raft)) = inner.member() else { return };
    let Some(oldest) = inner.oldest_snapshot_index() else { return };
    let upto = oldest.min(inner.snapshot_index().saturating_sub(inner.config.limits.keep_log_entries));
    let purged = inner.log.store().state().purged.map_or(0, |pos| pos.index);
    if upto > purged
        && let Err(error) = raft.trigger().purge_log(upto).await
    {
        tracing::warn!(%error, upto, "could not ask for a purge");
    }
}

async fn watch(inner: Arc<Inner>) {
    let mut ticker = ticker(TICK);
    let mut leader = None;
    let mut ended_before = false;
    while ticked(&inner, &mut ticker).await {
        if let Some((me, raft)) = inner.member() {
            let metrics = raft.metrics().borrow_watched().clone();
            // One that ended on a full disk begins anew; a second look makes sure that it wasn't that one.
            let ended = metrics.running_state.as_ref().err().filter(|_| !inner.room.is_reopening());
            if let Some(fatal) = ended.filter(|_| ended_before) {
                inner.fail(format!("Raft has ended: {fatal}"));
            }
            ended_before = ended.is_some();
            if inner.dialer.moved.learn(&crate::join::current_members(&metrics)) {
                tracing::info!("a member is at another address now");
            }
            if metrics.current_leader != leader && metrics.current_leader.is_some() {
                leader = metrics.current_leader;
                inner.leader_changes.fetch_add(1, Ordering::Relaxed);
                inner.leader_known_last.store(leader.unwrap_or(0), Ordering::Relaxed);
                let role = metrics.state == ServerState::Leader;
                let leader = leader.map(|id| format!("{id:016x}"));
                tracing::info!(term = metrics.current_term, leader, lead_here = role, "the leader changed");
            }
            let level = inner.core.published.summary().meta.feature_level;
            me.feature_level.store(level, Ordering::Relaxed);
            if level > inner.config.feature_max {
                inner.fail(beyond(level, inner.config.feature_max));
            }
        }
        inner.judge_readiness();
    }
}
