//! The loop of a node that is no member yet: ask all peers, decide, act, until this disk belongs to a cluster.
//!
//! It decides nothing itself. Its disk writes block the thread for an fsync each, a handful in the life of a disk; its
//! waits are bounded and end early when a peer's call changes what this disk holds. What it waits for is published, so
//! that readiness can show it, and logged once a change.

use super::decide::{Action, Answers, DiskState, Place, decide};
use super::founder::{Disk, DiskFailure, Founder};
use super::pace::{Backoff, Pace};
use super::peers::{JoinAnswer, PeerAnswer, Peers, PromiseAnswer, Standing};
use super::promise::Promise;
use crate::face::Peer;
use futures::future::{Either, join_all, select};
use rand::{CryptoRng, RngExt};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::watch;

/// Rounds that may follow each other without a pause because each brought something new.
const ROUNDS_AT_ONCE_MAX: u32 = 8;

/// A disk that belongs to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// The cluster.
    pub cluster_id: u128,
    /// This disk.
    pub node_id: u64,
    /// Initialise Raft with these voters, the same list on every founder; that it is initialised already is fine.
    /// Call [`Founder::founded`] after.
    pub found: Option<Promise>,
    /// Run [`Newcomer::become_voter`] beside Raft. A member that restarts isn't told here: see
    /// [`super::must_join`].
    pub join: bool,
}

/// Why a node did not come to belong to a cluster. Waiting is no reason: it is waited for ever.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotEstablished {
    /// Only an operator can resolve it.
    #[error("{0}")]
    Stop(String),
    /// The leader refuses this node.
    #[error("the cluster refuses this node: {0}")]
    Refused(String),
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskFailure),
}

/// A node on its way to membership.
pub struct Newcomer<P, D> {
    /// Its place and how it was started.
    pub place: Place,
    /// All peers with their addresses; this node may be among them.
    pub peers: Vec<Peer>,
    /// host:port that it announces.
    pub addr: String,
    /// Its disk.
    pub founder: Arc<Founder<D>>,
    /// Calls to peers.
    pub net: P,
    /// Timing.
    pub pace: Pace,
    /// What it waits for; empty when it doesn't.
    pub reason: watch::Sender<String>,
}

/// What came of acting once.
enum Step {
    Done(Established),
    /// Something changed: look again at once.
    Changed,
    /// Look again after a pause.
    Idle,
}

impl<P: Peers, D: Disk> Newcomer<P, D> {
    /// Waits until this disk belongs to a cluster. A disk that is a member already returns at once, without asking
    /// anybody. Safe to drop and to call again at any moment.
    pub async fn establish(&self, rng: &mut impl CryptoRng) -> Result<Established, NotEstablished> {
        let mut backoff = Backoff::new(&self.pace);
        let mut disk = self.founder.watch();
        let mut rounds_at_once = 0;
        loop {
            // Before anybody is asked: see [`super::decide`].
            let seen = disk.borrow_and_update().clone();
            if let Some(failure) = self.founder.failure() {
                return Err(failure.into());
            }
            let answers = if seen.cluster_id.is_some() { Answers::new() } else { self.ask_all().await };
            let action = decide(&self.place, &seen, &answers, rng.random_range(1..=u128::MAX));
            match self.act(&seen, action).await? {
                Step::Done(established) => {
                    self.note("");
                    return Ok(established);
                }
                Step::Changed if rounds_at_once < ROUNDS_AT_ONCE_MAX => {
                    rounds_at_once += 1;
                    backoff.reset();
                }
                Step::Changed | Step::Idle => {
                    rounds_at_once = 0;
                    let pause = pin!(self.net.sleep(backoff.pause(rng)));
                    if let Either::Left(_) = select(pin!(disk.changed()), pause).await {
                        backoff.reset();
                    }
                }
            }
        }
    }

    /// Asks all peers once, and says by log which of them belong to another cluster than `cluster_id`: a member can't
    /// talk to those. Returns their names.
    pub async fn foreign_peers(&self, cluster_id: u128) -> Vec<String> {
        let mut foreign = Vec::new();
        for (name, answer) in self.ask_all().await {
            if let Ok(PeerAnswer { standing: Standing::Member { cluster_id: other, .. }, .. }) = answer
                && other != cluster_id
            {
                tracing::error!(
                    peer = %name,
                    "the peer belongs to cluster {other:032x}, this node to {cluster_id:032x}: they can't talk to each \
                     other; one of the two has the wrong disk or the wrong peer list"
                );
                foreign.push(name);
            }
        }
        foreign
    }

    async fn act(&self, seen: &DiskState, action: Action) -> Result<Step, NotEstablished> {
        match action {
            Action::Start { found } => Ok(self.done(seen, seen.cluster_id.unwrap_or_default(), found, false)),
            Action::FoundSolo(promise) => {
                if seen.promise.is_none() {
                    tracing::warn!("founding a new cluster of one node: {promise}");
                    self.founder.promise(seen, &promise)?;
                    return Ok(Step::Changed);
                }
                self.adopt(seen, promise.cluster_id(), Some(promise), false)
            }
            Action::Propose { promise, to } => self.propose(seen, &promise, &to).await,
            Action::Adopt { cluster_id, found, voter } => self.adopt(seen, cluster_id, found, !voter),
            Action::DropPromise { reason } => {
                tracing::warn!("this node takes its promise back: {reason}");
                self.founder.drop_promise(seen)?;
                Ok(Step::Changed)
            }
            Action::AskJoin { cluster_id, via } => self.ask_to_join(seen, cluster_id, &via).await,
            Action::Wait { reason } => {
                self.note(&reason);
                Ok(Step::Idle)
            }
            Action::Stop { reason } => {
                self.note(&reason);
                Err(NotEstablished::Stop(reason))
            }
        }
    }

    async fn propose(&self, seen: &DiskState, promise: &Promise, to: &[String]) -> Result<Step, NotEstablished> {
        if seen.promise.is_none() {
            tracing::warn!("all peers are empty: founding a new cluster with them: {promise}");
            if !self.founder.promise(seen, promise)? {
                return Ok(Step::Changed);
            }
        }
        let asked = self.peers.iter().filter(|peer| to.contains(&peer.name)).map(async |peer| {
            match self.in_time(self.net.promise(peer, promise)).await {
                Ok(PromiseAnswer::Promised) => None,
                Ok(PromiseAnswer::Refused { reason, .. }) => Some(format!("{} refuses: {reason}", peer.name)),
                Err(error) => Some(format!("{}: {error}", peer.name)),
            }
        });
        let open: Vec<String> = join_all(asked).await.into_iter().flatten().collect();
        if open.is_empty() {
            return Ok(Step::Changed);
        }
        self.note(&format!("founding {promise}; not promised by all peers: {}", open.join("; ")));
        Ok(Step::Idle)
    }

    async fn ask_to_join(&self, seen: &DiskState, cluster_id: u128, via: &[String]) -> Result<Step, NotEstablished> {
        let via = via.iter().filter_map(|name| self.peers.iter().find(|peer| peer.name == *name));
        let answer = self.ask_leader(cluster_id, false, via.cloned().collect()).await;
        let waiting = match answer {
            Ok(JoinAnswer::Learner) => return self.adopt(seen, cluster_id, None, true),
            Ok(JoinAnswer::Voter) => return self.adopt(seen, cluster_id, None, false),
            Ok(JoinAnswer::Refused { reason }) => {
                self.note(&reason);
                return Err(NotEstablished::Refused(reason));
            }
            Ok(JoinAnswer::NotLeader { .. }) => "its leader is not known yet".to_owned(),
            Ok(JoinAnswer::Busy { reason }) => reason,
            Err(error) => error,
        };
        self.note(&format!("asking to join cluster {cluster_id:032x}: {waiting}"));
        Ok(Step::Idle)
    }

    fn adopt(
        &self,
        seen: &DiskState,
        cluster_id: u128,
        found: Option<Promise>,
        join: bool,
    ) -> Result<Step, NotEstablished> {
        if !self.founder.adopt(seen, cluster_id)? {
            return Ok(Step::Changed);
        }
        tracing::info!(node_id = %format_args!("{:016x}", seen.node_id), "this node belongs to cluster {cluster_id:032x}");
        Ok(self.done(seen, cluster_id, found, join))
    }

    fn done(&self, seen: &DiskState, cluster_id: u128, found: Option<Promise>, join: bool) -> Step {
        Step::Done(Established { cluster_id, node_id: seen.node_id, found, join })
    }

    /// Asks every other peer who it is, all at once.
    async fn ask_all(&self) -> Answers {
        let others = self.peers.iter().filter(|peer| peer.name != self.place.name);
        let asked = others.map(async |peer| {
            let answer = self.in_time(self.net.status(peer)).await;
            (peer.name.clone(), answer.and_then(|answer| plausible(peer, answer)))
        });
        join_all(asked).await.into_iter().collect()
    }

    /// The call's outcome, unless it takes too long.
    pub(super) async fn in_time<T>(&self, call: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        match select(pin!(call), pin!(self.net.sleep(self.pace.call_timeout))).await {
            Either::Left((answer, _)) => answer,
            Either::Right(_) => Err("no answer in time".into()),
        }
    }

    /// Publishes what is being waited for, and logs it when it is news.
    pub(super) fn note(&self, reason: &str) {
        let news = self.reason.send_if_modified(|old| {
            let news = old != reason;
            if news {
                reason.clone_into(old);
            }
            news
        });
        if news && !reason.is_empty() {
            tracing::info!("{reason}");
        }
    }
}

/// An answer that can be from whom it was asked of.
fn plausible(peer: &Peer, answer: PeerAnswer) -> Result<PeerAnswer, String> {
    if answer.name != peer.name {
        return Err(format!("{} answers as {}", peer.addr, answer.name));
    }
    if answer.node_id == 0 || matches!(answer.standing, Standing::Member { cluster_id: 0, .. }) {
        return Err("answers without an id".into());
    }
    Ok(answer)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests;
