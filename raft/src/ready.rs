//! Whether this node is ready, from what was observed of it.

use crate::membership::{Observed, Readiness, ReadinessLimits};
use crate::node::Inner;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use std::sync::PoisonError;
use tokio::time::Instant;

/// The last verdict, and what it follows from.
pub(crate) struct Judge {
    /// From the moment that Raft runs.
    life: Option<(Readiness, Instant)>,
    verdict: (bool, String),
}

impl Judge {
    pub(crate) fn new() -> Self {
        Self { life: None, verdict: (false, "starting".into()) }
    }

    /// Raft runs from now on; `committed` is what this disk knows to be committed.
    pub(crate) fn began(&mut self, limits: ReadinessLimits, committed: u64) {
        self.life = Some((Readiness::new(limits, committed), Instant::now()));
    }
}

impl Inner {
    pub(crate) fn readiness(&self) -> (bool, String) {
        self.judge.lock().unwrap_or_else(PoisonError::into_inner).verdict.clone()
    }

    /// Looks again.
    pub(crate) fn judge_readiness(&self) {
        let verdict = self.verdict();
        let mut judge = self.judge.lock().unwrap_or_else(PoisonError::into_inner);
        if judge.verdict.0 != verdict.0 {
            match verdict.0 {
                true => tracing::info!("this node is ready"),
                false => tracing::warn!(reason = verdict.1, "this node is not ready"),
            }
        }
        judge.verdict = verdict;
    }

    fn verdict(&self) -> (bool, String) {
        if self.stopping.is_cancelled() {
            return (false, "stopping".into());
        }
        if let Some(index) = self.core.published.summary().last_mismatch {
            return (
                false,
                format!("the digest at log index {index} differs from the leader's: this index has diverged"),
            );
        }
        if let Some(reason) = self.left_behind() {
            return (false, reason);
        }
        let Some((_, raft)) = self.member() else {
            // While the log is opened anew there is no Raft, and nothing that was ready is less so.
            let reopening = self.room.is_reopening() && self.identity.get().is_some();
            return if reopening { self.readiness() } else { (false, self.waiting_for()) };
        };
        if let Some(why) = self.exile() {
            return (false, why);
        }
        let (leads, learner, own_commit) = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow_watched();
            let commit = metrics.cluster_committed.as_ref().map(|id| id.index());
            (metrics.state == ServerState::Leader, metrics.state == ServerState::Learner, commit)
        };
        let mut judge = self.judge.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((readiness, began)) = &mut judge.life else { return (false, "starting".into()) };
        let verdict = readiness.observe(&Observed {
            since_start: began.elapsed(),
            applied: self.core.published.applied_index(),
            leader_commit: if leads { own_commit } else { self.heard().commit },
            learner,
        });
        (verdict.ready, verdict.reason)
    }
}
