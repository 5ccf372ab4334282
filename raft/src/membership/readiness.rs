//! Whether this node may answer: it has what was committed when it started, and it keeps up.
//!
//! Pure: fed with what was observed and when. It never waits for a leader for longer than two election timeouts, since
//! lookups must go on without a quorum; a learner, which has no past of its own, does wait.

use std::time::Duration;

/// Limits of readiness.
#[derive(Copy, Clone, Debug)]
pub struct ReadinessLimits {
    /// How long after the start the word of a leader is waited for: two election timeouts.
    pub leader_wait: Duration,
    /// A ready node that lacks more committed entries than this is no longer ready; it is again at half of it.
    pub max_lag_entries: u64,
}

/// What was observed at one moment.
#[derive(Copy, Clone, Debug)]
pub struct Observed {
    /// Time since the node's Raft was started, monotonic.
    pub since_start: Duration,
    /// Highest applied log index; 0 for none.
    pub applied: u64,
    /// The commit index as a leader of this life reported it, or this node's own while it leads; `None` without one.
    pub leader_commit: Option<u64>,
    /// Without a vote.
    pub learner: bool,
}

/// Ready or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Ready to answer.
    pub ready: bool,
    /// Why not; empty when ready.
    pub reason: String,
}

/// The readiness of one node in one life.
#[derive(Clone, Debug)]
pub struct Readiness {
    limits: ReadinessLimits,
    /// What must be applied before the node is ready for the first time.
    target: u64,
    /// A leader has been heard, and `target` includes its word.
    heard: bool,
    /// The highest commit index known.
    commit: u64,
    phase: Phase,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Phase {
    Loading,
    Ready,
    Lagging,
}

impl Readiness {
    /// Of a node whose own disk says that `committed` (0 for none) was committed.
    pub fn new(limits: ReadinessLimits, committed: u64) -> Readiness {
        Readiness { limits, target: committed, heard: false, commit: committed, phase: Phase::Loading }
    }

    /// Takes an observation and judges.
    pub fn observe(&mut self, observed: &Observed) -> Verdict {
        if let Some(commit) = observed.leader_commit {
            self.commit = self.commit.max(commit);
            if !self.heard {
                self.heard = true;
                self.target = self.target.max(commit);
            }
        }
        let lag = self.commit.saturating_sub(observed.applied);
        let reason = match self.phase {
            Phase::Loading => self.still_loading(observed),
            Phase::Ready if lag > self.limits.max_lag_entries => Some(self.lagging(lag)),
            Phase::Lagging if lag > self.limits.max_lag_entries / 2 => Some(self.lagging(lag)),
            Phase::Ready | Phase::Lagging => None,
        };
        match (&reason, self.phase) {
            (None, _) => self.phase = Phase::Ready,
            (Some(_), Phase::Ready) => self.phase = Phase::Lagging,
            (Some(_), Phase::Loading | Phase::Lagging) => {}
        }
        Verdict { ready: reason.is_none(), reason: reason.unwrap_or_default() }
    }

    fn still_loading(&self, observed: &Observed) -> Option<String> {
        let what = if observed.learner { "learner" } else { "node" };
        if observed.applied < self.target {
            return Some(format!("this {what} has applied {} of {} log entries", observed.applied, self.target));
        }
        if self.heard || (!observed.learner && observed.since_start >= self.limits.leader_wait) {
            return None;
        }
        if observed.learner {
            return Some("this learner has not heard from a leader how far it is behind".into());
        }
        let left = self.limits.leader_wait.saturating_sub(observed.since_start);
        Some(format!("no leader has been heard yet; ready without one in {} ms", left.as_millis()))
    }

    fn lagging(&self, lag: u64) -> String {
        let limit = self.limits.max_lag_entries;
        format!("this node lags {lag} log entries behind, more than {limit}; ready again at {}", limit / 2)
    }
}

#[cfg(test)]
mod tests;
