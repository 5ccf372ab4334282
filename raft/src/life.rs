//! One life of Raft in this process: from its start over an open log until it ends. There is one at a time; a full disk
//! ends one and begins the next over the same index (see [`crate::reopen`]). Owns how Raft is put together.

use crate::face::Timing;
use crate::machine::Machine;
use crate::network::{Network, PeerIdentity};
use crate::node::{Inner, Raft};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Log entries that one AppendEntries carries at most, beside the limit in bytes.
const APPEND_ENTRIES: u64 = 1_024;
/// A joining or lagging node further behind than this gets a snapshot.
const LAG_FOR_SNAPSHOT: u64 = 50_000;
/// Longest wait for what belongs to an ended life to let go of the index.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Between looks whether it has.
const END_POLL: Duration = Duration::from_millis(5);

/// What ends a life, and tells when all of it has ended.
#[derive(Debug, Default)]
pub(crate) struct LifeEnd(Weak<CancellationToken>);

impl LifeEnd {
    pub(crate) fn of(life: &Arc<CancellationToken>) -> Self {
        Self(Arc::downgrade(life))
    }

    /// Tells it to end; false when nothing of it is left.
    pub(crate) fn ends(&self) -> bool {
        self.0.upgrade().is_some_and(|life| {
            life.cancel();
            true
        })
    }

    /// Ends it; false when something of it would not end in time.
    async fn end(self) -> bool {
        let gone = async {
            while self.ends() {
                tokio::time::sleep(END_POLL).await;
            }
        };
        tokio::time::timeout(END_TIMEOUT, gone).await.is_ok()
    }
}

/// Starts Raft over the log and the index as they are now.
pub(crate) async fn begin(inner: &Arc<Inner>, me: Arc<PeerIdentity>) -> Result<Raft, String> {
    let network = Network {
        me: me.clone(),
        dialer: inner.dialer.clone(),
        append_timeout: inner.config.timing.election_max * 2,
        silent: Arc::default(),
        refusals: inner.refusals.clone(),
        snapshots: inner.snapshots.clone(),
    };
    let core = inner.core.in_new_life();
    *inner.life.lock().unwrap_or_else(PoisonError::into_inner) = LifeEnd::of(&core.life);
    let machine = Machine {
        core,
        snapshots: inner.snapshots.clone(),
        cluster_id: me.cluster_id,
        preimage_entries: inner.config.limits.snapshot_preimage_entries,
        hash_seed: inner.hash_seed,
    };
    let config = Arc::new(config(&inner.config.timing).validate().map_err(|e| e.to_string())?);
    let raft = Raft::new(me.node_id, config, network, inner.log.current(), machine).await.map_err(|e| e.to_string())?;
    inner.member.store(Some(Arc::new((me, raft.clone()))));
    Ok(raft)
}

/// Ends the present life. Afterwards nothing of it touches the index or the log.
pub(crate) async fn end(inner: &Inner) -> Result<(), String> {
    let late = || "an ended Raft does not let go of the index".to_owned();
    if let Some(member) = inner.member.swap(None) {
        let ended = tokio::time::timeout(END_TIMEOUT, member.1.shutdown()).await;
        // How it ended is known: its log failed.
        ended.map_err(|_| late())?.unwrap_or_else(|error| tracing::debug!(%error, "Raft had ended already"));
    }
    let life = std::mem::take(&mut *inner.life.lock().unwrap_or_else(PoisonError::into_inner));
    match life.end().await {
        true => Ok(()),
        false => Err(late()),
    }
}

pub(crate) fn config(timing: &Timing) -> openraft::Config {
    let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    openraft::Config {
        cluster_name: "prefixd".into(),
        heartbeat_interval: millis(timing.heartbeat),
        election_timeout_min: millis(timing.election_min),
        election_timeout_max: millis(timing.election_max),
        install_snapshot_timeout: 60_000,
        max_payload_entries: APPEND_ENTRIES,
        replication_lag_threshold: LAG_FOR_SNAPSHOT,
        // Snapshots and purges are asked for by this crate's own driver, which counts bytes as well as entries.
        snapshot_policy: openraft::SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        enable_pre_vote: Some(true),
        // Entries go to followers while the leader's own disk still writes them. A leader that came back in its old term
        // could so give an index that a follower holds to another entry of the same term.
        enable_leader_restore: Some(false),
        ..openraft::Config::default()
    }
}
