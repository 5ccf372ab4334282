//! A leader whose disk is short of room gives leadership to a member that has room, if there is one. A node that is short
//! doesn't stand for election either: it votes, since a vote is small and must be had, but it leads nobody.

use crate::drivers::{ticked, ticker};
use crate::node::{Inner, Raft};
use crate::types::TypeConfig;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{RaftMetrics, ServerState};
use prefixd_proto::node as wire;
use std::sync::Arc;
use std::time::Duration;

/// Between looks at the disk.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Between tries to give leadership away.
const TRY_INTERVAL: Duration = Duration::from_millis(300);
/// How long a member may take to say whether it has room.
const ASK_WAIT: Duration = Duration::from_millis(500);

/// Looks at the disk until the node stops.
pub(crate) async fn watch_room(inner: Arc<Inner>) {
    let mut ticker = ticker(LOOK_INTERVAL);
    while ticked(&inner, &mut ticker).await {
        inner.look_at_room();
        if let Some((_, raft)) = inner.member() {
            raft.runtime_config().elect(!inner.room.is_short());
        }
    }
}

/// Gives leadership away whenever this node has it and is short of room, until the node stops.
pub(crate) async fn run(inner: Arc<Inner>) {
    let mut ticker = ticker(TRY_INTERVAL);
    while ticked(&inner, &mut ticker).await {
        if inner.room.is_short()
            && let Some((me, raft)) = inner.member()
        {
            inner.step_aside(me.node_id, &raft).await;
        }
    }
}

impl Inner {
    async fn step_aside(&self, own_id: u64, raft: &Raft) {
        let metrics = raft.metrics().borrow_watched().clone();
        if metrics.state != ServerState::Leader {
            return;
        }
        let others: Vec<u64> = metrics.membership_config.membership().voter_ids().filter(|id| *id != own_id).collect();
        let mut with_room = Vec::new();
        for id in others {
            if self.has_room(&metrics, id).await {
                with_room.push(id);
            }
        }
        self.room.set_nobody_else(with_room.is_empty());
        // One that lacks entries can't win yet. Nothing new is proposed here, so it soon doesn't.
        let Some(successor) = with_room.into_iter().find(|id| has_all(&metrics, *id)) else { return };
        tracing::warn!(
            successor = format!("{successor:016x}"),
            "this leader's disk is short of room: it hands leadership to a member that has room"
        );
        if let Err(why) = self.hand_over(own_id, raft, successor).await {
            tracing::warn!(why, "leadership was not taken over");
        }
    }

    async fn has_room(&self, metrics: &RaftMetrics<TypeConfig>, id: u64) -> bool {
        let Some(addr) = self.addr_of(metrics, id) else { return false };
        match tokio::time::timeout(ASK_WAIT, self.calls.raw_status(&addr)).await {
            Ok(Ok(wire::PeerStatusResponse { node_id, short_of_room, .. })) => node_id == id && !short_of_room,
            Ok(Err(_)) | Err(_) => false,
        }
    }
}

fn has_all(metrics: &RaftMetrics<TypeConfig>, id: u64) -> bool {
    let matched = metrics.replication.as_ref().and_then(|all| all.get(&id)).and_then(Option::as_ref);
    matched.map(|pos| pos.index()) >= metrics.last_log_index
}
