//! Members come and go: an operator lets nodes in, takes them out, and puts an empty disk in the place of one that is
//! lost. What is allowed is decided by the product's own rules, and carried out by its own code; what it asks of the network
//! is simulated here.

use super::executor;
use super::machine::CLUSTER;
use super::network::call;
use super::node::{self, Member, timing};
use super::places;
use super::world::World;
use crate::join::{self, current_members, heard_ids, matched, unsettled};
use crate::membership::{
    Candidate, Decision, JoinAnswer, JoinAsk, JoinStep, JoinView, Order, PeerAnswer, Roster, Standing, must_join, obey,
    plan,
};
use crate::operate;
use crate::record::FEATURE_MAX;
use openraft::ServerState;
use openraft::async_runtime::watch::WatchReceiver;
use rand::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Between two questions of who waits for something.
const PAUSE: Duration = Duration::from_millis(150);
/// How long a change may take, and an order be waited for.
const CHANGE_LIMIT: Duration = Duration::from_secs(3);
/// How long a member may take to say that it is there.
const ANSWER_WAIT: Duration = Duration::from_millis(300);
/// A member that lacks more entries than this is neither promoted nor made the leader.
const MAX_LAG: u64 = 20;

/// What an order came to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Said {
    Done,
    Unknown,
    No,
}

impl Member {
    /// One try of an order on this node, if it leads.
    async fn obeys(&self, order: Order) -> Said {
        let raft = self.raft();
        let answering = self.answering(&order).await;
        let Ok(_one_at_a_time) = self.changing.clone().try_lock_owned() else { return Said::No };
        let metrics = raft.metrics().borrow_watched().clone();
        if metrics.state != ServerState::Leader {
            return Said::No;
        }
        let members = current_members(&metrics);
        let mut heard = heard_ids(&metrics, timing().election_max);
        heard.retain(|id| answering.as_ref().is_none_or(|answering| answering.contains(id)));
        let replication = metrics.replication.iter().flatten();
        let matched: BTreeMap<u64, u64> =
            replication.filter_map(|(id, pos)| Some((*id, pos.as_ref()?.index()))).collect();
        let decision = obey(
            &Roster {
                cluster_id: CLUSTER,
                leader: self.id,
                members: &members,
                changing: join::changing(&metrics),
                heard: &heard,
                matched: &matched,
                last_log: metrics.last_log_index.unwrap_or(0),
                max_lag: MAX_LAG,
                feature_level: FEATURE_MAX,
            },
            &order,
        );
        match decision {
            Decision::Nothing(_) => Said::Done,
            Decision::Unknown(_) => Said::Unknown,
            Decision::Refuse(_) | Decision::Busy(_) => Said::No,
            Decision::HandOver(to) => {
                self.world.count("leader hands over to be taken out", self.id, (to, 0));
                // A Raft that has ended is noticed elsewhere.
                let _asked = raft.trigger().transfer_leader(to).await;
                Said::No
            }
            _ if unsettled(&metrics) => Said::No,
            change => match executor::within(CHANGE_LIMIT, operate::carry_out(&raft, &members, &change)).await {
                Some(Ok(_)) => Said::Done,
                _ => Said::No,
            },
        }
    }

    async fn answering(&self, order: &Order) -> Option<BTreeSet<u64>> {
        if !matches!(order, Order::Remove(_)) {
            return None;
        }
        let ids = self.world.ids().into_iter().filter(|id| *id != self.id);
        let asked = ids.map(|id| call(&self.world, (self.id, id), ANSWER_WAIT, |target| async move { target.id }));
        let answers = futures::future::join_all(asked).await;
        Some(answers.into_iter().flatten().chain([self.id]).collect())
    }

    /// Answers a node that wants in.
    async fn answers_join(&self, ask: JoinAsk) -> JoinAnswer {
        let busy = |reason: &str| JoinAnswer::Busy { reason: reason.into() };
        let raft = self.raft();
        let metrics = raft.metrics().borrow_watched().clone();
        if metrics.state != ServerState::Leader {
            return JoinAnswer::NotLeader { leader: None };
        }
        if unsettled(&metrics) {
            return busy("the leader was elected just now");
        }
        let step = plan(
            &JoinView {
                cluster_id: CLUSTER,
                leader: self.id,
                peer_names: &self.world.places.listed(),
                members: &current_members(&metrics),
                changing: join::changing(&metrics),
                heard: &heard_ids(&metrics, timing().election_max),
                matched: matched(&metrics, ask.node_id),
                last_log: metrics.last_log_index.unwrap_or(0),
                max_lag: MAX_LAG,
            },
            &ask,
        );
        match step {
            JoinStep::AlreadyVoter => JoinAnswer::Voter,
            JoinStep::WaitCatchUp => JoinAnswer::Learner,
            JoinStep::Refuse(reason) => JoinAnswer::Refused { reason },
            JoinStep::Busy(reason) => JoinAnswer::Busy { reason },
            JoinStep::AddLearner { .. } | JoinStep::Swap { .. } => {
                let Ok(one_at_a_time) = self.changing.clone().try_lock_owned() else {
                    return busy("another change is under way");
                };
                self.world.count(
                    if matches!(step, JoinStep::Swap { .. }) { "joiner becomes a voter" } else { "joiner is let in" },
                    self.id,
                    (ask.node_id, 0),
                );
                let changed = executor::within(CHANGE_LIMIT, join::carry_out(raft, step, ask, one_at_a_time)).await;
                changed.unwrap_or_else(|| Err("late".into())).unwrap_or_else(|why| busy(&why))
            }
        }
    }

    fn sees(&self) -> Vec<crate::membership::Member> {
        current_members(&self.raft().metrics().borrow_watched())
    }
}

/// An empty disk asks to be let in, before its Raft begins, until it was told that it is.
pub(super) async fn ask_in(world: &Arc<World>, id: u64) {
    while !world.places.is_in(id) {
        executor::sleep(PAUSE).await;
        if let Some(JoinAnswer::Learner | JoinAnswer::Voter) = ask_leader(world, id, false).await {
            world.note("told that it is in", id, (0, 0));
            world.places.adopt(id);
        }
    }
}

/// A learner asks to become a voter, whenever it is one, as the product does it.
pub(super) async fn come_in(member: Arc<Member>) {
    let is_founder = member.world.places.founders_with(member.id).is_some();
    loop {
        if must_join(&member.sees(), member.id, is_founder) {
            match ask_leader(&member.world, member.id, true).await {
                Some(JoinAnswer::Refused { .. }) => return,
                _ => executor::sleep(PAUSE).await,
            }
        } else {
            executor::sleep(timing().election_max).await;
        }
    }
}

/// Asks the others in turn, until one answers as the leader.
async fn ask_leader(world: &Arc<World>, id: u64, promotion: bool) -> Option<JoinAnswer> {
    let name = places::name(world.places.of(id));
    let ask = JoinAsk { node_id: id, name, addr: String::new(), cluster_id: CLUSTER, promotion };
    for other in world.ids().into_iter().filter(|other| *other != id) {
        let ask = ask.clone();
        let asked = call(world, (id, other), CHANGE_LIMIT, |target| async move { target.answers_join(ask).await });
        match asked.await {
            Ok(JoinAnswer::NotLeader { .. }) | Err(_) => {}
            Ok(answer) => return Some(answer),
        }
    }
    None
}

/// What a leader sees to from time to time: changes left halfway, and learners whose place was taken.
pub(super) async fn tidy(member: &Member) {
    let Ok(_one_at_a_time) = member.changing.try_lock() else { return };
    let raft = member.raft();
    // What could not be done now is tried again.
    let _finished = executor::within(CHANGE_LIMIT, join::finish(&raft)).await;
    let _laid = executor::within(CHANGE_LIMIT, join::lay_ghosts(&raft, timing().election_max)).await;
}

/// Gives an order again and again, until it is done or nobody knows whom it is about.
async fn order(world: &Arc<World>, order: Order) {
    loop {
        if let Some(leader) = world.members().into_iter().find(|member| member.leads()) {
            let (send, receive) = oneshot::channel();
            let order = order.clone();
            executor::spawn_in(leader.group, async move {
                // The operator may have stopped waiting; a leader that dies answers nobody.
                let _late = send.send(leader.obeys(order).await);
            });
            if let Some(Ok(Said::Done | Said::Unknown)) = executor::within(CHANGE_LIMIT * 2, receive).await {
                return;
            }
        }
        executor::sleep(PAUSE).await;
    }
}

/// Waits until the voters, by the committed log, are exactly the disks that are in a place. What a leader says would not
/// do: it may be one that was deposed and doesn't know.
pub(super) async fn at_full_strength(world: &World) {
    while !is_whole(world) {
        executor::sleep(PAUSE).await;
    }
}

fn is_whole(world: &World) -> bool {
    world.truth.lock().unwrap().voters() == Some(&world.ids().into_iter().collect())
}

async fn grow(world: &Arc<World>, place: u64) {
    let by_order = executor::happens(0.5);
    let id = world.new_disk(place, by_order);
    world.count("a node is added", id, (place, u64::from(by_order)));
    node::start(world, id);
    if by_order {
        let_in(world, place, id).await;
    }
    at_full_strength(world).await;
}

/// Lets a node in by orders: the peer lists lack its name.
async fn let_in(world: &Arc<World>, place: u64, id: u64) {
    let name = places::name(place);
    let answer =
        PeerAnswer { name: name.clone(), node_id: id, peer_names: world.places.listed(), standing: Standing::Empty };
    let found = Ok(Candidate { answer, feature_max: FEATURE_MAX });
    loop {
        order(world, Order::Add { name: name.clone(), addr: "there:1".into(), found: found.clone() }).await;
        order(world, Order::Promote(name.clone())).await;
        // A deposed leader may take both for done, or know of no such member.
        if world.truth.lock().unwrap().voters().is_some_and(|voters| voters.contains(&id)) {
            break;
        }
        executor::sleep(PAUSE).await;
    }
    world.count("a node is promoted by order", id, (place, 0));
}

async fn shrink(world: &Arc<World>, id: u64) {
    let place = world.places.of(id);
    loop {
        order(world, Order::Remove(places::name(place))).await;
        // A deposed leader may not know that there ever was such a member.
        if world.truth.lock().unwrap().voters().is_some_and(|voters| !voters.contains(&id)) {
            break;
        }
        executor::sleep(PAUSE).await;
    }
    world.count("a node is removed", id, (place, 0));
    // It runs on for a while and may disturb nobody.
    executor::sleep(executor::between(Duration::ZERO, Duration::from_secs(2))).await;
    world.places.leave(id);
    node::crash(world, id);
}

/// A disk is lost, and an empty one put in its place.
async fn replace(world: &Arc<World>, id: u64) {
    let place = world.places.of(id);
    let by = world.new_disk(place, false);
    world.count("a disk is lost", id, (place, by));
    node::crash(world, id);
    executor::sleep(executor::between(Duration::ZERO, Duration::from_secs(1))).await;
    node::start(world, by);
    at_full_strength(world).await;
    world.count("a lost disk is replaced", by, (place, id));
}

/// An operator, until faults are over and what was begun is done.
pub(super) async fn operate(world: Arc<World>) {
    loop {
        executor::sleep(executor::between(Duration::from_millis(200), Duration::from_millis(1_500))).await;
        if world.places.is_settled() {
            return;
        }
        let ids = world.ids();
        let chosen = ids[executor::chance(|rng| rng.random_range(0..ids.len()))];
        // A second disk is lost only when the first is replaced: two of three are for `prefixd recover`.
        let is_whole = is_whole(&world);
        match (executor::chance(|rng| rng.random_range(0..3)), world.places.free()) {
            (0, Some(place)) => grow(&world, place).await,
            (1, _) if ids.len() > 2 => shrink(&world, chosen).await,
            (2, _) if ids.len() > 2 && is_whole => replace(&world, chosen).await,
            _ => {}
        }
    }
}
