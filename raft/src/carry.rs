//! How a command gets from this node to the leader: straight into the proposer when this node leads, else by one call.

use crate::ambient::Ambient;
use crate::face::SubmitError;
use crate::forwards::Road;
use crate::lanes::Carrier;
use crate::node::Inner;
use crate::proposer::{self, Done, Leadership, Outcome, Refusal};
use crate::record;
use crate::types::{Proposal, Reply};
use openraft::async_runtime::watch::WatchReceiver;
use prefixd_index::command::Command;
use prefixd_proto::node as wire;
use std::time::Duration;
use tokio::time::Instant;

/// Longest wait for a leader to appear within one try.
const LEADER_WAIT: Duration = Duration::from_millis(200);

impl Ambient for Inner {}

impl Leadership for Inner {
    async fn write(&self, proposal: Proposal) -> Outcome {
        match self.member() {
            Some((_, raft)) => proposer::write(&raft, proposal).await,
            None => Err(Refusal::NotLeader(None)),
        }
    }

    async fn stamp(&self) -> u64 {
        self.stamps.next(self).await
    }
}

impl Carrier for Inner {
    async fn carry(&self, command: Command, bytes: usize, until: Instant) -> Result<Done, Refusal> {
        let Some((me, raft)) = self.member() else {
            return Err(Refusal::Submit(SubmitError::Unavailable(self.no_raft())));
        };
        let mut watched = raft.metrics();
        let known = watched.borrow_watched().current_leader;
        let leader = match known {
            Some(leader) => leader,
            None => {
                // Whether it changed or the wait was over, the next try looks again.
                let _looked = tokio::time::timeout_at(until.min(Instant::now() + LEADER_WAIT), watched.changed()).await;
                watched.borrow_watched().current_leader.ok_or(Refusal::NotLeader(None))?
            }
        };
        if leader != me.node_id {
            return match command {
                Command::Deltas(batches) => self.forwards.send(leader, batches, bytes, until).await,
                command => self.forward(leader, command, until).await,
            };
        }
        let unavailable = || Refusal::Submit(SubmitError::Unavailable("no quorum took it in time".into()));
        tokio::time::timeout_at(until, self.propose_here(command, bytes)).await.unwrap_or_else(|_| Err(unavailable()))
    }

    async fn applied(&self, index: u64, until: Instant) -> bool {
        let mut applied = self.core.published.applied();
        let reached = tokio::time::timeout_at(until, applied.wait_for(|at| *at >= index)).await;
        matches!(reached, Ok(Ok(_)))
    }
}

impl Road for Inner {
    async fn forward(&self, leader: u64, command: Command, until: Instant) -> Outcome {
        let unavailable = |why: String| Refusal::Submit(SubmitError::Unavailable(why));
        let Some((me, raft)) = self.member() else { return Err(Refusal::NotLeader(None)) };
        let addr = self.addr_of(&raft.metrics().borrow_watched(), leader).ok_or(Refusal::NotLeader(None))?;
        // Not all metrics: those change with every entry, and would wake every call under way.
        let mut watched = raft.server_metrics();
        let command = record::encode_forward(&command).map_err(|e| Refusal::Unreadable(e.to_string()))?;
        let mut client = self.calls.client(&addr).map_err(|why| unavailable(format!("{addr} {why}")))?;
        let mut request =
            tonic::Request::new(wire::ForwardRequest { header: Some(me.header(leader)), command: command.into() });
        request.set_timeout(until.saturating_duration_since(Instant::now()));
        let another_leads = async {
            while watched.changed().await.is_ok() {
                if watched.borrow_watched().current_leader.is_some_and(|id| id != leader) {
                    return;
                }
            }
        };
        let response = tokio::select! {
            response = client.forward(request) => response,
            () = another_leads => return Err(Refusal::NotLeader(None)),
            () = tokio::time::sleep_until(until) => return Err(unavailable("the leader did not answer in time".into())),
        };
        let response = response
            .map_err(|e| unavailable(format!("the leader known last, at {addr}, {}", crate::calls::told(&e))))?
            .into_inner();
        use wire::forward_response::Outcome;
        match response.outcome() {
            Outcome::Committed => Ok(Done {
                index: response.index,
                reply: Reply { removed: response.removed, wants_sweep: response.wants_sweep },
            }),
            Outcome::NotLeader | Outcome::Unspecified => Err(Refusal::NotLeader(response.leader)),
            Outcome::QueueFull => Err(Refusal::Submit(SubmitError::QueueFull(response.reason))),
            Outcome::Unavailable => Err(unavailable(response.reason)),
            Outcome::NoRoom => Err(Refusal::Submit(SubmitError::NoRoom(response.reason))),
            Outcome::Refused => Err(Refusal::Unreadable(response.reason)),
        }
    }
}
