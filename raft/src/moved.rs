//! Members that have another address than the one they joined with. One that hears from no leader and has moved asks for
//! its address to be changed, as a joiner asks to be let in; the leader looks whether it is there, and writes it into the
//! membership. Raft keeps the links that it has, with the address that they were made for, so what moved is looked up here
//! at each dial. An address that works is never changed: an operator may have given it.

use crate::join::{changing, current_members, heard_ids};
use crate::membership::{JoinAnswer, JoinAsk, Member};
use crate::node::{Inner, Raft};
use crate::types::{MemberNode, TypeConfig};
use openraft::{ChangeMembers, RaftMetrics};
use prefixd_proto::node as wire;
use prefixd_proto::node::join_response::Outcome;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a leader may take to answer, and a member that has moved to say that it is there.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// Between two looks of a leader at new addresses: a change of the membership each, so not too many.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Moves that are remembered; beyond it the oldest names go, and their links wait for the next election.
const MOVES_MAX: usize = 64;

/// True when the membership gives this disk an address that is not the one it announces. A member without an address is in
/// everybody's peer list.
pub(crate) fn has_moved(members: &[Member], node_id: u64, announces: &str) -> bool {
    let own = members.iter().find(|member| member.node_id == node_id);
    own.is_some_and(|own| !own.addr.is_empty() && own.addr != announces)
}

/// Why a member's address stays as it is, if so. Pure, but for the look at that address, which comes after.
fn stays(members: &[Member], heard: &[u64], is_changing: bool, ask: &JoinAsk) -> Option<JoinAnswer> {
    let refused = |reason: String| Some(JoinAnswer::Refused { reason });
    let busy = |reason: &str| Some(JoinAnswer::Busy { reason: reason.into() });
    let Some(own) = members.iter().find(|member| member.node_id == ask.node_id) else {
        return refused(format!("the disk {:016x} is no member", ask.node_id));
    };
    if own.name != ask.name {
        return refused(format!("the disk {:016x} is the member {}, not {}", ask.node_id, own.name, ask.name));
    }
    if !has_moved(members, ask.node_id, &ask.addr) || ask.addr.is_empty() {
        return Some(if own.voter { JoinAnswer::Voter } else { JoinAnswer::Learner });
    }
    if heard.contains(&ask.node_id) {
        return busy("it answers the leader where it was");
    }
    is_changing.then(|| JoinAnswer::Busy { reason: "another change of the membership is under way".into() })
}

/// Whether a leader that answered so has the new address; `None` when it may have it later. Pure.
fn taken(outcome: Outcome) -> Option<bool> {
    match outcome {
        Outcome::Learner | Outcome::Voter => Some(true),
        Outcome::Refused => Some(false),
        Outcome::Busy | Outcome::NotLeader | Outcome::Unspecified => None,
    }
}

impl Inner {
    /// Asks the leader for this node's new address, by way of whoever answers. For a member that hears from no leader, from
    /// time to time.
    pub(crate) async fn announce_move(&self) {
        let (Some((me, _)), Some(metrics)) = (self.member(), self.metrics()) else { return };
        let members = current_members(&metrics);
        if !has_moved(&members, me.node_id, &self.advertise_addr) {
            return;
        }
        let own = wire::Member {
            node_id: me.node_id,
            name: self.config.node_name.clone(),
            node_addr: self.advertise_addr.clone(),
            voter: false,
        };
        let request = wire::JoinRequest {
            member: Some(own),
            feature_max: self.config.feature_max,
            cluster_id: me.cluster_id.to_be_bytes().to_vec().into(),
            promotion: false,
            moved: true,
        };
        let others = members.iter().filter(|member| member.node_id != me.node_id);
        let mut addrs: Vec<String> = others.map(|member| self.dialer.addr(&member.name, &member.addr)).collect();
        addrs.retain(|addr| !addr.is_empty());
        for addr in addrs {
            let Ok(mut client) = self.calls.client(&addr) else { continue };
            match tokio::time::timeout(ANSWER_WAIT, client.join(request.clone())).await {
                Ok(Ok(answer)) if answer.get_ref().outcome() != Outcome::NotLeader => {
                    let answer = answer.into_inner();
                    return self.tell_of_move(answer.outcome(), &answer.reason);
                }
                Ok(Ok(_)) => {}
                Ok(Err(status)) => {
                    let why = crate::calls::told(&status);
                    tracing::debug!(addr, why, "a peer did not take this node's new address");
                }
                Err(_) => tracing::debug!(addr, "a peer did not answer"),
            }
        }
    }

    /// Says what the leader made of the new address.
    fn tell_of_move(&self, outcome: Outcome, reason: &str) {
        let addr = &self.advertise_addr;
        match taken(outcome) {
            Some(true) => tracing::info!(addr, "the leader has this node's new address"),
            Some(false) => tracing::warn!(addr, reason, "the leader refuses this node's new address"),
            None => tracing::info!(addr, reason, "the leader does not take this node's new address yet: asked again"),
        }
    }

    /// A leader whose own address no longer leads to it writes the present one: the others forward to it by that.
    pub(crate) async fn move_as_leader(&self) {
        let (Some((me, raft)), Some(metrics)) = (self.member(), self.metrics()) else { return };
        let members = current_members(&metrics);
        let own = members.into_iter().find(|member| member.node_id == me.node_id);
        let Some(own) = own.filter(|own| has_moved(std::slice::from_ref(own), me.node_id, &self.advertise_addr)) else {
            return;
        };
        let mut ask = JoinAsk {
            node_id: me.node_id,
            name: own.name,
            addr: own.addr,
            cluster_id: me.cluster_id,
            promotion: false,
        };
        if changing(&metrics) || !self.may_look() || self.is_there(&ask).await.is_ok() {
            return;
        }
        ask.addr.clone_from(&self.advertise_addr);
        if let Err(why) = self.write_address(&raft, &ask).await {
            tracing::warn!(why, "this leader's new address could not be written");
        }
    }

    /// Answers a member that says that it is elsewhere now. For the leader.
    pub(crate) async fn answer_moved(
        &self,
        raft: &Raft,
        metrics: &RaftMetrics<TypeConfig>,
        ask: &JoinAsk,
    ) -> JoinAnswer {
        let members = current_members(metrics);
        let heard = heard_ids(metrics, self.config.timing.election_max);
        if let Some(answer) = stays(&members, &heard, changing(metrics), ask) {
            return answer;
        }
        if !self.may_look() {
            return JoinAnswer::Busy { reason: format!("one address is looked at every {LOOK_INTERVAL:?}") };
        }
        let changed = match self.is_there(ask).await {
            Ok(()) => self.write_address(raft, ask).await,
            Err(why) => Err(why),
        };
        match changed {
            Ok(()) => JoinAnswer::Learner,
            Err(reason) => JoinAnswer::Busy { reason },
        }
    }

    /// False when it has looked for somebody just now.
    fn may_look(&self) -> bool {
        let mut last = self.looked_for_moved.lock().unwrap_or_else(PoisonError::into_inner);
        let may = last.is_none_or(|last| last.elapsed() >= LOOK_INTERVAL);
        if may {
            *last = Some(Instant::now());
        }
        may
    }

    async fn is_there(&self, ask: &JoinAsk) -> Result<(), String> {
        let addr = &ask.addr;
        let asked = tokio::time::timeout(ANSWER_WAIT, self.calls.raw_status(addr)).await;
        let status = asked.unwrap_or_else(|_| Err("did not answer in time".into()));
        let status = status.map_err(|why| format!("the leader asked {} at {addr}, which {why}", ask.name))?;
        match status.node_id == ask.node_id && status.cluster_id == ask.cluster_id.to_be_bytes()[..] {
            true => Ok(()),
            false => Err(format!("another disk answers at {addr}: {:016x}", status.node_id)),
        }
    }

    async fn write_address(&self, raft: &Raft, ask: &JoinAsk) -> Result<(), String> {
        let Ok(_one_at_a_time) = self.changing.try_lock() else {
            return Err("another change of the membership is under way".into());
        };
        let (id, name, addr) = (ask.node_id, ask.name.clone(), ask.addr.clone());
        tracing::warn!(name, addr, node_id = format!("{id:016x}"), "a member has another address now");
        let there = ChangeMembers::SetNodes(BTreeMap::from([(id, MemberNode { name, addr })]));
        let written =
            tokio::time::timeout(self.config.timing.propose_timeout, raft.change_membership(there, true)).await;
        written.map_err(|_| "the change was not committed in time".to_owned())?.map(|_| ()).map_err(|e| e.to_string())
    }
}

/// Where members were, and where they are now.
#[derive(Debug, Default)]
pub(crate) struct Moved(Mutex<Moves>);

#[derive(Debug, Default)]
struct Moves {
    /// Addresses of the membership that was seen last, by disk.
    known: BTreeMap<u64, (String, String)>,
    /// (Name, earlier address) to the present one.
    to: BTreeMap<(String, String), String>,
}

impl Moved {
    /// Takes in the membership as it is now. True when somebody has moved.
    pub(crate) fn learn(&self, members: &[Member]) -> bool {
        let mut moves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now: BTreeMap<u64, (String, String)> =
            members.iter().map(|member| (member.node_id, (member.name.clone(), member.addr.clone()))).collect();
        if moves.known == now {
            return false;
        }
        let before = std::mem::replace(&mut moves.known, now.clone());
        let mut any = false;
        for (id, (name, addr)) in &now {
            let Some((_, old)) = before.get(id).filter(|(_, old)| old != addr && !old.is_empty()) else { continue };
            for ((of, _), to) in &mut moves.to {
                if of == name && to == old {
                    to.clone_from(addr);
                }
            }
            moves.to.insert((name.clone(), old.clone()), addr.clone());
            any = true;
        }
        // Whoever is at an address now is meant by it.
        moves.to.retain(|(name, old), _| !now.values().any(|(of, addr)| of == name && addr == old));
        while moves.to.len() > MOVES_MAX {
            moves.to.pop_first();
        }
        any
    }

    /// Where a member is now that announced this address once.
    pub(crate) fn now(&self, name: &str, announced: &str) -> String {
        let moves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let to = moves.to.get(&(name.to_owned(), announced.to_owned()));
        to.cloned().unwrap_or_else(|| announced.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(node_id: u64, name: &str, addr: &str) -> Member {
        Member { node_id, name: name.into(), addr: addr.into(), voter: true }
    }

    #[test]
    fn only_a_member_with_another_address_has_moved() {
        let members = [member(1, "a", ""), member(2, "b", "b:1")];
        assert!(has_moved(&members, 2, "b:2"));
        for (id, addr) in [(2, "b:1"), (1, "a:1"), (3, "c:1")] {
            assert!(!has_moved(&members, id, addr), "{id} {addr}");
        }
    }

    #[test]
    fn an_address_stays_unless_its_member_is_silent_and_says_so_itself() {
        let members = [member(1, "a", ""), member(2, "b", "b:1")];
        let ask = |node_id, name: &str, addr: &str| JoinAsk {
            node_id,
            name: name.into(),
            addr: addr.into(),
            cluster_id: 7,
            promotion: false,
        };
        assert_eq!(stays(&members, &[1], false, &ask(2, "b", "b:2")), None);
        let refused = |ask| matches!(stays(&members, &[1], false, &ask), Some(JoinAnswer::Refused { .. }));
        assert!(refused(ask(3, "c", "c:2")) && refused(ask(2, "a", "b:2")));
        for (id, name, addr) in [(2, "b", "b:1"), (1, "a", "a:2"), (2, "b", "")] {
            assert_eq!(stays(&members, &[1], false, &ask(id, name, addr)), Some(JoinAnswer::Voter), "{name} {addr}");
        }
        let busy = |heard: &[u64], is_changing| {
            matches!(stays(&members, heard, is_changing, &ask(2, "b", "b:2")), Some(JoinAnswer::Busy { .. }))
        };
        assert!(busy(&[1, 2], false) && busy(&[1], true));
    }

    #[test]
    fn only_a_leader_that_took_the_address_is_said_to_have_it() {
        for (outcome, has_it) in [
            (Outcome::Learner, Some(true)),
            (Outcome::Voter, Some(true)),
            (Outcome::Refused, Some(false)),
            (Outcome::Busy, None),
            (Outcome::NotLeader, None),
            (Outcome::Unspecified, None),
        ] {
            assert_eq!(taken(outcome), has_it, "{outcome:?}");
        }
    }

    #[test]
    fn earlier_addresses_lead_to_the_present_one() {
        let moved = Moved::default();
        assert!(!moved.learn(&[member(2, "b", "b:1")]) && moved.now("b", "b:1") == "b:1");
        assert!(moved.learn(&[member(2, "b", "b:2")]));
        assert!(!moved.learn(&[member(2, "b", "b:2")]));
        assert!(moved.learn(&[member(2, "b", "b:3")]));
        for old in ["b:1", "b:2", "b:3"] {
            assert_eq!(moved.now("b", old), "b:3");
        }
        assert_eq!(moved.now("a", "b:1"), "b:1", "another name");
        // Back where it was, and a later disk of the name where it had been.
        assert!(moved.learn(&[member(2, "b", "b:1"), member(5, "b", "b:2")]));
        assert_eq!((moved.now("b", "b:1"), moved.now("b", "b:3")), ("b:1".into(), "b:1".into()));
        assert_eq!(moved.now("b", "b:2"), "b:2");
    }
}
