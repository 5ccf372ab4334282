//! The planned end of a node: leadership goes to another, Raft ends, the log is closed. Membership stays as it is.

use crate::node::{Inner, Raft};
use crate::types::TypeConfig;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{RaftMetrics, ServerState};

impl Inner {
    pub(crate) async fn stop(&self) {
        self.stopping.cancel();
        let Some((me, raft)) = self.member() else {
            self.stopped.cancel();
            return;
        };
        self.hand_over(me.node_id, &raft).await;
        if let Err(error) = raft.shutdown().await {
            tracing::warn!(%error, "Raft did not end cleanly");
        }
        self.stopped.cancel();
        let store = self.log.store().clone();
        let closed = tokio::task::spawn_blocking(move || store.close()).await;
        match closed {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the log was not closed cleanly"),
            Err(error) => tracing::error!(%error, "closing the log did not return"),
        }
    }

    /// Names a voter that is close behind as the next leader, and waits a moment for it to lead.
    async fn hand_over(&self, own_id: u64, raft: &Raft) {
        let metrics = raft.metrics().borrow_watched().clone();
        if metrics.state != ServerState::Leader {
            return;
        }
        let Some(successor) = successor(own_id, &metrics) else { return };
        if let Err(error) = raft.trigger().transfer_leader(successor).await {
            tracing::warn!(%error, "leadership could not be handed over");
            return;
        }
        let mut watched = raft.metrics();
        let gone = async {
            while watched.borrow_watched().current_leader == Some(own_id) && watched.changed().await.is_ok() {}
        };
        if tokio::time::timeout(self.config.timing.election_max, gone).await.is_err() {
            tracing::info!(successor = format!("{successor:016x}"), "nobody took leadership over in time");
        }
    }
}

/// The voter that has most of the log.
fn successor(own_id: u64, metrics: &RaftMetrics<TypeConfig>) -> Option<u64> {
    let voters: Vec<u64> = metrics.membership_config.membership().voter_ids().filter(|id| *id != own_id).collect();
    let replication = metrics.replication.as_ref()?;
    voters.into_iter().filter_map(|id| Some((replication.get(&id)?.as_ref()?.index(), id))).max().map(|(_, id)| id)
}
