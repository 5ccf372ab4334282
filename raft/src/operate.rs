//! Carries out what operators order: on the leader, wherever the order came in. A node that does not lead passes it on,
//! once, and tries again while leadership moves. The rules are in [`crate::membership::orders`].

use crate::join::{current_members, unsettled};
use crate::membership::orders::endures;
use crate::membership::{Candidate, Decision, Member, Order, Roster, obey};
use crate::node::{Inner, Raft};
use crate::types::{MemberNode, OurConfig, TypeConfig};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::storage::RaftStateMachine;
use openraft::{ChangeMembers, RaftMetrics, ServerState};
use prefixd_proto::node as wire;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;
use tonic::Status;

/// How long a node may take to say who it is.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// An order as it comes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Add { name: String, addr: String },
    Remove(String),
    Promote(String),
    HandOver(Option<String>),
}

/// What came of an order on the leader.
#[derive(Clone, Debug)]
pub(crate) struct Obeyed {
    pub(crate) message: String,
    pub(crate) changed: bool,
}

/// Why this node did not carry an order out.
#[derive(Debug)]
pub(crate) enum Miss {
    /// Another node leads, or nobody: look again.
    NotLeader,
    /// Another change is in the way: look again.
    Busy(String),
    /// It was begun and is not known to be done: look again.
    Unclear(String),
    /// No, and the operator is told.
    Told(Status),
}

impl Inner {
    /// One try on this node, if it leads.
    pub(crate) async fn obey_here(self: &Arc<Self>, ask: &Ask) -> Result<Obeyed, Miss> {
        let Some((me, raft)) = self.member() else { return Err(Miss::NotLeader) };
        let order = self.order(ask).await;
        let answering = self.answering(ask).await;
        let Ok(one_at_a_time) = self.changing.clone().try_lock_owned() else {
            return Err(Miss::Busy("another change of the membership is under way".into()));
        };
        let metrics = raft.metrics().borrow_watched().clone();
        if metrics.state != ServerState::Leader {
            return Err(Miss::NotLeader);
        }
        let members = current_members(&metrics);
        let decision = self.with_roster(&metrics, |roster| {
            let answers = |id: &u64| answering.as_ref().is_none_or(|answering| answering.contains(id));
            let heard: Vec<u64> = roster.heard.iter().copied().filter(answers).collect();
            obey(&Roster { heard: &heard, ..roster.clone() }, &order)
        });
        tracing::info!(order = ?ask, decision = ?decision, "an operator's order");
        match decision {
            Decision::Nothing(message) => Ok(Obeyed { message, changed: false }),
            Decision::Unknown(why) => Err(Miss::Told(Status::not_found(why))),
            Decision::Refuse(why) => Err(Miss::Told(Status::failed_precondition(why))),
            Decision::Busy(why) => Err(Miss::Busy(why)),
            Decision::HandOver(to) => {
                let leader = self.hand_over(me.node_id, &raft, to).await.map_err(Miss::Unclear)?;
                match ask {
                    // The one that was named fell silent, and an election found another: that is not what was ordered.
                    Ask::HandOver(Some(_)) if leader != to => {
                        let (named_one, other) = (named(&members, to), named(&members, leader));
                        Err(Miss::Unclear(format!("{named_one} did not take over, and {other} leads now")))
                    }
                    Ask::HandOver(_) => {
                        let message = format!("{} leads now", named(&members, leader));
                        Ok(Obeyed { message, changed: true })
                    }
                    // The order is for the next leader: it takes this one out.
                    _ => Err(Miss::NotLeader),
                }
            }
            _ if unsettled(&metrics) => Err(Miss::Busy("the leader was elected just now".into())),
            change => self.carry_order_out(raft.clone(), &metrics, change, one_at_a_time).await,
        }
    }

    /// Who answers at this moment, for an order to remove: a voter that was heard of a second ago may have died since, and
    /// a change that the rest can't commit would stop all writes.
    async fn answering(&self, ask: &Ask) -> Option<BTreeSet<u64>> {
        if !matches!(ask, Ask::Remove(_)) {
            return None;
        }
        let members = ask_members(self, &self.metrics()?).await;
        Some(members.into_iter().filter(|(_, status)| status.is_some()).map(|(member, _)| member.node_id).collect())
    }

    /// The order with what the leader must know of it.
    async fn order(&self, ask: &Ask) -> Order {
        match ask.clone() {
            Ask::Add { name, addr } => {
                let asked = tokio::time::timeout(ANSWER_WAIT, self.calls.raw_status(&addr)).await;
                let found = asked.unwrap_or_else(|_| Err("did not answer in time".into())).and_then(|status| {
                    let feature_max = status.feature_max;
                    let answer = crate::calls::peer_answer(status).map_err(|what| format!("sent {what}"))?;
                    Ok(Candidate { answer, feature_max })
                });
                Order::Add { name, addr, found }
            }
            Ask::Remove(who) => Order::Remove(who),
            Ask::Promote(who) => Order::Promote(who),
            Ask::HandOver(to) => Order::HandOver(to),
        }
    }

    /// Lets a rule see the cluster as this node, the leader, does.
    pub(crate) fn with_roster<T>(&self, metrics: &RaftMetrics<TypeConfig>, see: impl FnOnce(&Roster<'_>) -> T) -> T {
        let replication = metrics.replication.iter().flatten();
        let matched = replication.filter_map(|(id, pos)| Some((*id, pos.as_ref()?.index()))).collect();
        see(&Roster {
            cluster_id: self.member().map_or(0, |(me, _)| me.cluster_id),
            leader: metrics.id,
            members: &current_members(metrics),
            changing: crate::join::changing(metrics),
            heard: &self.heard_ids(metrics),
            matched: &matched,
            last_log: metrics.last_log_index.unwrap_or(0),
            max_lag: self.config.limits.max_lag_entries / 2,
            feature_level: self.level_needed(),
        })
    }

    /// Runs the change in a task of its own, so that it goes on when the operator stops waiting.
    async fn carry_order_out(
        &self,
        raft: Raft,
        metrics: &RaftMetrics<TypeConfig>,
        change: Decision,
        one_at_a_time: OwnedMutexGuard<()>,
    ) -> Result<Obeyed, Miss> {
        let members = current_members(metrics);
        let limit = self.config.timing.propose_timeout;
        let task = tokio::spawn(async move {
            let _one_at_a_time = one_at_a_time;
            let done = tokio::time::timeout(limit, carry_out(&raft, &members, &change)).await;
            match done {
                Ok(done) => done,
                Err(_) => Err("the change was not committed in time".to_owned()),
            }
        });
        match task.await {
            Ok(Ok(message)) => Ok(Obeyed { message, changed: true }),
            Ok(Err(why)) => Err(Miss::Unclear(why)),
            Err(error) => Err(Miss::Told(Status::internal(error.to_string()))),
        }
    }
}

/// Carries one change out, and says what was done.
pub(crate) async fn carry_out<C, M>(
    raft: &openraft::Raft<C, M>,
    members: &[Member],
    change: &Decision,
) -> Result<String, String>
where
    C: OurConfig,
    M: RaftStateMachine<C>,
{
    let failed = |error: openraft::error::RaftError<_, _>| error.to_string();
    let voters = members.iter().filter(|member| member.voter).count();
    Ok(match change {
        Decision::AddLearner(member) => {
            let node = MemberNode { name: member.name.clone(), addr: member.addr.clone() };
            raft.add_learner(member.node_id, node, false).await.map_err(failed)?;
            let name = &member.name;
            format!(
                "{name} (disk {:016x}) is a learner now and becomes a voter when it has caught up; a disk that was taken \
                 out while it came in needs `prefixd ctl member promote {name}` for that",
                member.node_id
            )
        }
        Decision::RemoveVoter(id) => {
            let gone = ChangeMembers::RemoveVoters(BTreeSet::from([*id]));
            raft.change_membership(gone, false).await.map_err(failed)?;
            format!("{} is no member any more; {}", named(members, *id), endures(voters.saturating_sub(1)))
        }
        Decision::RemoveLearner(id) => {
            raft.change_membership(ChangeMembers::RemoveNodes(BTreeSet::from([*id])), true).await.map_err(failed)?;
            format!("the learner {} is no member any more", named(members, *id))
        }
        Decision::Promote { add, remove } => {
            crate::join::swap(raft, *add, remove).await?;
            let replaced = members.iter().filter(|member| member.voter && remove.contains(&member.node_id)).count();
            format!("{} is a voter now; {}", named(members, *add), endures(voters + 1 - replaced))
        }
        other => return Err(format!("no change to carry out: {other:?}")),
    })
}

/// A member by name and id.
fn named(members: &[Member], id: u64) -> String {
    let name = members.iter().find(|member| member.node_id == id).map_or("a disk", |member| member.name.as_str());
    format!("{name} ({id:016x})")
}

/// Every member, and what its node says of itself; `None` where it doesn't answer, or another disk does.
pub(crate) async fn ask_members(
    inner: &Inner,
    metrics: &RaftMetrics<TypeConfig>,
) -> Vec<(Member, Option<wire::PeerStatusResponse>)> {
    let mut asked = JoinSet::new();
    for member in current_members(metrics) {
        if member.node_id == metrics.id {
            let own = inner.peer_status();
            asked.spawn(async move { (member, Some(own)) });
            continue;
        }
        let addr = inner.dialer.addr(&member.name, &member.addr);
        let calls = inner.calls.clone();
        asked.spawn(async move {
            let answer = tokio::time::timeout(ANSWER_WAIT, calls.raw_status(&addr)).await;
            let status = answer.ok().and_then(Result::ok).filter(|status| status.node_id == member.node_id);
            (member, status)
        });
    }
    let mut all: Vec<_> = asked.join_all().await;
    all.sort_by(|(a, _), (b, _)| (&a.name, a.node_id).cmp(&(&b.name, b.node_id)));
    all
}
