//! What founding and joining see of Raft: a leader exists while a quorum of voters is up and one of them has the
//! founding entry, and membership changes are done at once.

use super::world::{Sim, World};
use crate::membership::{
    Established, JoinAnswer, JoinAsk, JoinStep, JoinView, Member, Promise, Standing, ghosts, plan,
};
use rand::RngExt;
use std::collections::BTreeSet;

/// A cluster that somebody initialised.
pub(super) struct Cluster {
    pub(super) founding: Promise,
    pub(super) members: Vec<Member>,
    /// Disks whose log has the founding entry.
    pub(super) logs: BTreeSet<u64>,
}

impl Sim {
    pub(super) fn raft_starts(&self, name: &str, established: &Established) {
        let mut world = self.world();
        let world = &mut *world;
        if let Some(process) = &mut world.nodes.get_mut(name).unwrap().process {
            process.raft = true;
        }
        if let Some(found) = &established.found {
            let cluster = world.clusters.entry(established.cluster_id).or_insert_with(|| Cluster {
                founding: found.clone(),
                members: found.as_members(),
                logs: BTreeSet::new(),
            });
            assert_eq!(&cluster.founding, found, "seed {}: two founding lists of one cluster", world.seed);
            cluster.logs.insert(established.node_id);
        }
    }
}

impl World {
    fn raft_runs(&self, cluster_id: u128, node_id: u64) -> bool {
        self.nodes.values().any(|node| {
            node.disk == node_id
                && self.disks[&node_id].cluster_id == Some(cluster_id)
                && node.process.as_ref().is_some_and(|process| process.raft)
        })
    }

    fn leader(&mut self, cluster_id: u128) -> Option<u64> {
        let members = self.clusters.get(&cluster_id)?.members.clone();
        let up: Vec<&Member> = members.iter().filter(|member| self.raft_runs(cluster_id, member.node_id)).collect();
        let voters_up = up.iter().filter(|member| member.voter).count();
        let voters = members.iter().filter(|member| member.voter).count();
        if voters_up <= voters / 2 {
            return None;
        }
        let logs = &mut self.clusters.get_mut(&cluster_id)?.logs;
        let leader = up.iter().find(|member| member.voter && logs.contains(&member.node_id))?.node_id;
        logs.extend(up.iter().map(|member| member.node_id));
        Some(leader)
    }

    pub(super) fn members_known_to(&self, cluster_id: u128, node_id: u64) -> Vec<Member> {
        let cluster = self.clusters.get(&cluster_id).filter(|cluster| cluster.logs.contains(&node_id));
        cluster.map(|cluster| cluster.members.clone()).unwrap_or_default()
    }

    pub(super) fn standing(&mut self, name: &str) -> Option<Standing> {
        let process = self.nodes[name].process.as_ref()?;
        let before_raft = process.founder.standing();
        let (raft, node_id) = (process.raft, self.nodes[name].disk);
        let Standing::Member { cluster_id, .. } = before_raft else { return Some(before_raft) };
        let leader = self.leader(cluster_id);
        let members = self.members_known_to(cluster_id, node_id);
        if !raft || members.is_empty() {
            return Some(before_raft);
        }
        Some(Standing::Member { cluster_id, members, leader })
    }

    pub(super) fn join(&mut self, name: &str, ask: &JoinAsk) -> JoinAnswer {
        if self.harsh && self.rng.random_bool(0.1) {
            return JoinAnswer::Busy { reason: "just so".into() };
        }
        let me = self.nodes[name].disk;
        let Some(cluster_id) = self.disks[&me].cluster_id.filter(|id| self.raft_runs(*id, me)) else {
            return JoinAnswer::Busy { reason: "no member yet".into() };
        };
        let leader = self.leader(cluster_id);
        let members = self.members_known_to(cluster_id, me);
        if leader != Some(me) {
            return JoinAnswer::NotLeader { leader: members.into_iter().find(|member| Some(member.node_id) == leader) };
        }
        let heard: Vec<u64> =
            members.iter().map(|member| member.node_id).filter(|id| self.raft_runs(cluster_id, *id)).collect();
        let view = JoinView {
            cluster_id,
            leader: me,
            peer_names: &self.nodes[name].place.peer_names,
            members: &members,
            changing: false,
            heard: &heard,
            matched: self.raft_runs(cluster_id, ask.node_id).then_some(10),
            last_log: 10,
            max_lag: 0,
        };
        match plan(&view, ask) {
            JoinStep::AlreadyVoter => JoinAnswer::Voter,
            JoinStep::WaitCatchUp => JoinAnswer::Learner,
            JoinStep::Refuse(reason) => JoinAnswer::Refused { reason },
            JoinStep::Busy(reason) => JoinAnswer::Busy { reason },
            JoinStep::AddLearner { replace } => {
                let JoinAsk { node_id, name, addr, .. } = ask.clone();
                self.change(cluster_id, &replace, Member { node_id, name, addr, voter: false });
                JoinAnswer::Learner
            }
            JoinStep::Swap { remove, add } => {
                let JoinAsk { name, addr, .. } = ask.clone();
                self.change(cluster_id, &remove, Member { node_id: add, name, addr, voter: true });
                JoinAnswer::Voter
            }
        }
    }

    /// What a leader does from time to time.
    pub(super) fn remove_ghosts(&mut self) {
        for cluster_id in self.live_clusters() {
            if self.leader(cluster_id).is_none() {
                continue;
            }
            let members = &self.clusters[&cluster_id].members;
            let ids = members.iter().map(|member| member.node_id);
            let heard: Vec<u64> = ids.filter(|id| self.raft_runs(cluster_id, *id)).collect();
            let ghosts = ghosts(members, &heard);
            if let Some(cluster) = self.clusters.get_mut(&cluster_id) {
                cluster.members.retain(|member| !ghosts.contains(&member.node_id));
            }
        }
    }

    fn change(&mut self, cluster_id: u128, remove: &[u64], member: Member) {
        let seed = self.seed;
        let members = &mut self.clusters.get_mut(&cluster_id).unwrap().members;
        members.retain(|old| !remove.contains(&old.node_id) && old.node_id != member.node_id);
        members.push(member);
        let voters: Vec<&str> =
            members.iter().filter(|member| member.voter).map(|member| member.name.as_str()).collect();
        let names: BTreeSet<&str> = voters.iter().copied().collect();
        assert_eq!(names.len(), voters.len(), "seed {seed}: two voters of one name: {members:?}");
    }
}
