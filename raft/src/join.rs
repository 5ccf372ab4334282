//! The leader's side of joining: carries out what the plan says, one change at a time.

use crate::calls::{cluster_id, join_to_wire};
use crate::membership::{JoinAnswer, JoinAsk, JoinStep, JoinView, Member, ghosts, plan};
use crate::node::{Inner, Raft};
use crate::types::{MemberNode, OurConfig, TypeConfig, wire_members};
use openraft::Instant as _;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::storage::RaftStateMachine;
use openraft::{ChangeMembers, RaftMetrics, ServerState};
use prefixd_proto::node as wire;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

impl Inner {
    /// Answers a node that wants in.
    pub(crate) async fn answer_join(self: &Arc<Self>, request: wire::JoinRequest) -> wire::JoinResponse {
        let members = self
            .member()
            .map(|(_, raft)| wire_members(raft.metrics().borrow_watched().membership_config.membership()))
            .unwrap_or_default();
        join_to_wire(self.join_answer(request).await, members)
    }

    async fn join_answer(self: &Arc<Self>, request: wire::JoinRequest) -> JoinAnswer {
        let refused = |reason: String| JoinAnswer::Refused { reason };
        let (Some(member), Ok(cluster_id)) = (request.member, cluster_id(&request.cluster_id)) else {
            return refused("the request names no member or no cluster".into());
        };
        let needed = self.level_needed();
        if request.feature_max < needed {
            return refused(format!(
                "the cluster is at feature level {needed}, the joining release reads up to {}",
                request.feature_max
            ));
        }
        let Some((me, raft)) = self.member() else {
            return JoinAnswer::Busy { reason: "this node belongs to no cluster yet".into() };
        };
        let metrics = raft.metrics().borrow_watched().clone();
        let members = current_members(&metrics);
        if metrics.state != ServerState::Leader {
            let leader = metrics.current_leader.and_then(|id| members.into_iter().find(|m| m.node_id == id));
            return JoinAnswer::NotLeader { leader };
        }
        if unsettled(&metrics) {
            return JoinAnswer::Busy { reason: "the leader was elected just now".into() };
        }
        let ask = JoinAsk {
            node_id: member.node_id,
            name: member.name,
            addr: member.node_addr,
            cluster_id,
            promotion: request.promotion,
        };
        let peer_names: Vec<String> = self.config.peers.iter().map(|peer| peer.name.clone()).collect();
        if request.moved {
            return self.answer_moved(&raft, &metrics, &ask).await;
        }
        let step = plan(
            &JoinView {
                cluster_id: me.cluster_id,
                leader: me.node_id,
                peer_names: &peer_names,
                members: &members,
                changing: changing(&metrics),
                heard: &self.heard_ids(&metrics),
                matched: matched(&metrics, ask.node_id),
                last_log: metrics.last_log_index.unwrap_or(0),
                max_lag: self.config.limits.max_lag_entries / 2,
            },
            &ask,
        );
        match step {
            JoinStep::AlreadyVoter => JoinAnswer::Voter,
            JoinStep::WaitCatchUp => JoinAnswer::Learner,
            JoinStep::Refuse(reason) => JoinAnswer::Refused { reason },
            JoinStep::Busy(reason) => JoinAnswer::Busy { reason },
            JoinStep::AddLearner { .. } | JoinStep::Swap { .. } => self.change(raft.clone(), step, ask).await,
        }
    }

    /// Runs the change in a task of its own, so that it goes on when the asking node stops waiting.
    async fn change(self: &Arc<Self>, raft: Raft, step: JoinStep, ask: JoinAsk) -> JoinAnswer {
        let Ok(one_at_a_time) = self.changing.clone().try_lock_owned() else {
            return JoinAnswer::Busy { reason: "another change of the membership is under way".into() };
        };
        let limit = self.config.timing.propose_timeout;
        let change = tokio::spawn(async move {
            let changed = tokio::time::timeout(limit, carry_out(raft, step, ask, one_at_a_time)).await;
            changed.unwrap_or_else(|_| Err("the change was not committed in time".into()))
        });
        match change.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(reason)) => JoinAnswer::Busy { reason },
            Err(error) => JoinAnswer::Busy { reason: error.to_string() },
        }
    }

    /// Finishes a change whose leader died or resigned halfway: the membership stays joint until somebody does, and
    /// nothing else can be changed. For the leader, from time to time.
    pub(crate) async fn finish_change(&self) {
        let Some((_, raft)) = self.member() else { return };
        let Ok(_one_at_a_time) = self.changing.try_lock() else { return };
        match tokio::time::timeout(self.config.timing.propose_timeout, finish(&raft)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error, "it could not be finished now"),
            Err(_) => tracing::warn!("it could not be finished in time"),
        }
    }

    /// Takes dead disks out of the membership whose place was taken. For the leader, from time to time.
    pub(crate) async fn lay_ghosts(&self) {
        let Some((_, raft)) = self.member() else { return };
        let Ok(_one_at_a_time) = self.changing.try_lock() else { return };
        let recent = self.config.timing.election_max;
        match tokio::time::timeout(self.config.timing.propose_timeout, lay_ghosts(&raft, recent)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error, "they could not be removed now"),
            Err(_) => tracing::warn!("they could not be removed in time"),
        }
    }

    /// The ids of this node and of those that answered a heartbeat within the longest election timeout.
    pub(crate) fn heard_ids(&self, metrics: &RaftMetrics<TypeConfig>) -> Vec<u64> {
        heard_ids(metrics, self.config.timing.election_max)
    }
}

/// The ids of this node and of those that answered a heartbeat that recently.
pub(crate) fn heard_ids<C: OurConfig>(metrics: &RaftMetrics<C>, recent: Duration) -> Vec<u64> {
    let heard = metrics.heartbeat.iter().flatten();
    heard
        .filter(|(_, at)| at.as_ref().is_some_and(|at| at.elapsed() <= recent))
        .map(|(id, _)| *id)
        .chain([metrics.id])
        .collect()
}

/// Finishes a joint membership that no leader of this term works at.
pub(crate) async fn finish<C, M>(raft: &openraft::Raft<C, M>) -> Result<(), String>
where
    C: OurConfig,
    M: RaftStateMachine<C>,
{
    let metrics = raft.metrics().borrow_watched().clone();
    let effective = &metrics.membership_config;
    if metrics.state != ServerState::Leader
        || unsettled(&metrics)
        || effective.membership().get_joint_config().len() < 2
        || effective.log_id() != metrics.committed_membership_config.log_id()
    {
        return Ok(());
    }
    tracing::warn!("finishing a change of the membership that its leader left halfway");
    let finished = raft.change_membership(ChangeMembers::AddVoterIds(BTreeSet::new()), false).await;
    finished.map(|_| ()).map_err(|e| e.to_string())
}

/// Takes out the learners whose place was taken by a later disk.
pub(crate) async fn lay_ghosts<C, M>(raft: &openraft::Raft<C, M>, recent: Duration) -> Result<(), String>
where
    C: OurConfig,
    M: RaftStateMachine<C>,
{
    let metrics = raft.metrics().borrow_watched().clone();
    if metrics.state != ServerState::Leader || changing(&metrics) {
        return Ok(());
    }
    let gone: BTreeSet<u64> = ghosts(&current_members(&metrics), &heard_ids(&metrics, recent)).into_iter().collect();
    if gone.is_empty() {
        return Ok(());
    }
    tracing::warn!(removed = ?gone, "learners whose place was taken by a later disk leave the membership");
    let removed = raft.change_membership(ChangeMembers::RemoveNodes(gone), true).await;
    removed.map(|_| ()).map_err(|e| e.to_string())
}

/// The effective members, learners included.
pub(crate) fn current_members<C: OurConfig>(metrics: &RaftMetrics<C>) -> Vec<Member> {
    let members = wire_members(metrics.membership_config.membership());
    members.into_iter().map(crate::calls::member_from_wire).collect()
}

/// True until a leader has applied an entry of its own term: before that it may not know what it has committed, such as
/// a feature level that a newcomer must read.
pub(crate) fn unsettled<C: OurConfig>(metrics: &RaftMetrics<C>) -> bool {
    metrics.last_applied.as_ref().is_none_or(|id| id.committed_leader_id().term != metrics.current_term)
}

/// Makes a learner a voter and takes other disks out, in one joint change; what were learners among them goes after.
pub(crate) async fn swap<C, M>(raft: &openraft::Raft<C, M>, add: u64, remove: &[u64]) -> Result<(), String>
where
    C: OurConfig,
    M: RaftStateMachine<C>,
{
    let metrics = raft.metrics().borrow_watched().clone();
    let membership = metrics.membership_config.membership();
    let mut voters: BTreeSet<u64> = membership.voter_ids().filter(|id| !remove.contains(id)).collect();
    voters.insert(add);
    let dead: BTreeSet<u64> = membership.learner_ids().filter(|id| remove.contains(id)).collect();
    raft.change_membership(voters, false).await.map_err(|e| e.to_string())?;
    if !dead.is_empty() {
        raft.change_membership(ChangeMembers::RemoveNodes(dead), true).await.map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// True while the effective membership is joint or not committed.
pub(crate) fn changing<C: OurConfig>(metrics: &RaftMetrics<C>) -> bool {
    let effective = &metrics.membership_config;
    effective.membership().get_joint_config().len() > 1
        || effective.log_id() != metrics.committed_membership_config.log_id()
}

pub(crate) fn matched<C: OurConfig>(metrics: &RaftMetrics<C>, id: u64) -> Option<u64> {
    metrics.replication.as_ref()?.get(&id)?.as_ref().map(|pos| pos.index())
}

/// Carries one step of a join out.
pub(crate) async fn carry_out<C, M>(
    raft: openraft::Raft<C, M>,
    step: JoinStep,
    ask: JoinAsk,
    _one_at_a_time: OwnedMutexGuard<()>,
) -> Result<JoinAnswer, String>
where
    C: OurConfig,
    M: RaftStateMachine<C>,
{
    match step {
        JoinStep::AddLearner { replace } => {
            if !replace.is_empty() {
                let gone = ChangeMembers::RemoveNodes(replace.iter().copied().collect());
                raft.change_membership(gone, true).await.map_err(|e| e.to_string())?;
            }
            tracing::info!(name = ask.name, node_id = format!("{:016x}", ask.node_id), "a node joins as a learner");
            let node = MemberNode { name: ask.name, addr: ask.addr };
            raft.add_learner(ask.node_id, node, false).await.map_err(|e| e.to_string())?;
            Ok(JoinAnswer::Learner)
        }
        JoinStep::Swap { remove, add } => {
            tracing::warn!(name = ask.name, added = format!("{add:016x}"), removed = ?remove,
                "a caught-up learner becomes a voter in place of the other disks of its name");
            swap(&raft, add, &remove).await?;
            Ok(JoinAnswer::Voter)
        }
        other => Err(format!("no change to carry out: {other:?}")),
    }
}
