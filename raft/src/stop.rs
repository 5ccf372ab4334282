//! The planned end of a node: leadership goes to another, what was taken in is answered, Raft ends, the log is closed.
//! Membership stays as it is. Each step has a limit of its own and a share of the time that there is for all, and none of
//! them may keep a node from ending.

use crate::node::{Inner, Raft};
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Voters that are asked to take over, one after the other, each for an election timeout.
const SUCCESSORS_ASKED: usize = 2;
/// How long a change of the membership under way may take to end.
const CHANGE_WAIT: Duration = Duration::from_secs(1);

/// Between two questions to a successor whether it leads, and how long it may take to answer one.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
const ASK_WAIT: Duration = Duration::from_millis(500);

/// When each step must be over at the latest, from the beginning of the stop: what one doesn't need is the next one's, and
/// what one can't finish it leaves. The last step is not cut short: it syncs the log.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Stages {
    resigned: Duration,
    drained: Duration,
    ended: Duration,
}

impl Stages {
    /// Four, six and eight tenths of the time that there is.
    fn of(budget: Duration) -> Self {
        Self { resigned: budget * 4 / 10, drained: budget * 6 / 10, ended: budget * 8 / 10 }
    }
}

impl Inner {
    /// Ends the node within about `budget`.
    pub(crate) async fn stop(&self, budget: Duration) {
        let (began, stages) = (Instant::now(), Stages::of(budget));
        self.stopping.cancel();
        let Some((me, raft)) = self.member() else {
            self.stopped.cancel();
            return;
        };
        if timeout_at(began + stages.resigned, self.resign(me.node_id, &raft)).await.is_err() {
            tracing::warn!(budget = ?stages.resigned, "leadership was not handed over in time: an election finds a leader");
        }
        if timeout_at(began + stages.drained, self.drain()).await.is_err() {
            tracing::warn!(budget = ?stages.drained, "some of what was taken in is not answered in time");
        }
        match timeout_at(began + stages.ended, raft.shutdown()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "Raft did not end cleanly"),
            Err(_) => {
                tracing::warn!(budget = ?stages.ended, "Raft did not end in time: its log is closed all the same")
            }
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

    /// Hands leadership to the voter that has most of the log; to the next best if that one doesn't take it.
    async fn resign(&self, own_id: u64, raft: &Raft) {
        // A change that is cut in two is finished by the next leader, but not as soon.
        let _one_at_a_time = tokio::time::timeout(CHANGE_WAIT, self.changing.lock()).await;
        let mut asked = Vec::new();
        while asked.len() < SUCCESSORS_ASKED {
            let metrics = raft.metrics().borrow_watched().clone();
            if metrics.state != ServerState::Leader {
                return;
            }
            let Some(successor) = self.with_roster(&metrics, |roster| roster.successor(&asked)) else { return };
            asked.push(successor);
            match self.hand_over(own_id, raft, successor).await {
                Ok(leader) => return tracing::info!(leader = format!("{leader:016x}"), "leadership was handed over"),
                Err(why) => {
                    tracing::warn!(successor = format!("{successor:016x}"), why, "leadership was not taken over")
                }
            }
        }
    }

    /// Names the next leader and waits for one; returns its id. A node that named a successor leads no more: if that one
    /// fails, an election finds another, this node perhaps. The successor is asked as well: a node whose disk stands still
    /// doesn't learn who leads until it has saved its vote for that one.
    pub(crate) async fn hand_over(&self, own_id: u64, raft: &Raft, successor: u64) -> Result<u64, String> {
        let mut watched = raft.metrics();
        let term = watched.borrow_watched().current_term;
        raft.trigger().transfer_leader(successor).await.map_err(|e| e.to_string())?;
        let moved = async {
            loop {
                let leader = {
                    let metrics = watched.borrow_watched();
                    metrics.current_leader.filter(|id| *id != own_id || metrics.current_term > term)
                };
                if let Some(leader) = leader {
                    return Ok(leader);
                }
                watched.changed().await.map_err(|_| "Raft has ended".to_owned())?;
            }
        };
        let limit = self.config.timing.election_max;
        let seen = async {
            tokio::select! {
                moved = moved => moved,
                leader = self.takes_over(successor, term) => Ok(leader),
            }
        };
        match tokio::time::timeout(limit, seen).await {
            Ok(Ok(leader)) if leader != own_id => Ok(leader),
            Ok(Ok(_)) => Err("this node was elected again".into()),
            Ok(Err(ended)) => Err(ended),
            Err(_) => Err(format!("nobody led within {limit:?}")),
        }
    }

    /// Resolves when the successor knows of a leader in a later term than this.
    async fn takes_over(&self, successor: u64, term: u64) -> u64 {
        loop {
            tokio::time::sleep(ASK_INTERVAL).await;
            let Some(addr) = self.metrics().and_then(|metrics| self.addr_of(&metrics, successor)) else { continue };
            let Ok(Ok(status)) = tokio::time::timeout(ASK_WAIT, self.calls.raw_status(&addr)).await else { continue };
            if let Some(leader) = status.leader.filter(|_| status.node_id == successor && status.term > term) {
                return leader;
            }
        }
    }

    /// Waits until what was taken in is committed, applied here and answered. A leader does that in no time; without one
    /// nothing would come of it.
    async fn drain(&self) {
        let Some(lanes) = self.lanes.get() else { return };
        if tokio::time::timeout(self.config.timing.election_max, lanes.drained()).await.is_err() {
            tracing::warn!("some of what was taken in is not known to be committed");
        }
    }
}

#[cfg(test)]
mod tests;
