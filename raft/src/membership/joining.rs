//! The joiner's side: find the leader, follow it when it moves, ask until this node is a voter.

use super::establish::{Newcomer, NotEstablished};
use super::founder::Disk;
use super::member::Member;
use super::pace::Backoff;
use super::peers::{JoinAnswer, JoinAsk, Peers};
use crate::face::Peer;
use rand::Rng;

/// Redirects that are followed in one attempt.
const REDIRECTS_MAX: usize = 3;

/// True while a started member must still run [`Newcomer::become_voter`]: `members` as its own Raft knows them say
/// that it is a learner, or nothing at all and it wasn't a founder. A node that was taken out of the membership is not
/// a joiner: it must not come back by itself.
pub fn must_join(members: &[Member], node_id: u64, founder: bool) -> bool {
    match members.iter().find(|member| member.node_id == node_id) {
        Some(member) => !member.voter,
        None => members.is_empty() && !founder,
    }
}

impl<P: Peers, D: Disk> Newcomer<P, D> {
    /// Asks the leader of `cluster_id` again and again until this node is a voter there. Runs beside Raft, which
    /// catches up meanwhile. Safe to drop and to call again.
    pub async fn become_voter(&self, cluster_id: u128, rng: &mut impl Rng) -> Result<(), NotEstablished> {
        let mut backoff = Backoff::new(&self.pace);
        loop {
            let others = self.peers.iter().filter(|peer| peer.name != self.place.name).cloned().collect();
            let waiting = match self.ask_leader(cluster_id, true, others).await {
                Ok(JoinAnswer::Voter) => {
                    self.note("");
                    tracing::info!("this node is a voter of cluster {cluster_id:032x}");
                    return Ok(());
                }
                Ok(JoinAnswer::Refused { reason }) => {
                    self.note(&reason);
                    return Err(NotEstablished::Refused(reason));
                }
                Ok(JoinAnswer::Learner) => "a learner, catching up".to_owned(),
                Ok(JoinAnswer::NotLeader { .. }) => "a learner; the leader is not known now".to_owned(),
                Ok(JoinAnswer::Busy { reason }) => format!("a learner, not promoted yet: {reason}"),
                Err(error) => format!("a learner; the leader is out of reach: {error}"),
            };
            self.note(&waiting);
            self.net.sleep(backoff.pause(rng)).await;
        }
    }

    /// Asks the peers of `via` in turn, following what they say of the leader, until one answers as the leader. The
    /// error names who could not be reached.
    pub(super) async fn ask_leader(
        &self,
        cluster_id: u128,
        promotion: bool,
        via: Vec<Peer>,
    ) -> Result<JoinAnswer, String> {
        let ask = JoinAsk {
            node_id: self.founder.state().node_id,
            name: self.place.name.clone(),
            addr: self.addr.clone(),
            cluster_id,
            promotion,
        };
        let mut errors = Vec::new();
        let mut leaderless = false;
        for first in via {
            match self.follow(first, &ask).await {
                Ok(JoinAnswer::NotLeader { .. }) => leaderless = true,
                Ok(answer) => return Ok(answer),
                Err(error) => errors.push(error),
            }
        }
        if leaderless || errors.is_empty() {
            return Ok(JoinAnswer::NotLeader { leader: None });
        }
        Err(errors.join("; "))
    }

    async fn follow(&self, first: Peer, ask: &JoinAsk) -> Result<JoinAnswer, String> {
        let mut peer = first;
        for _ in 0..=REDIRECTS_MAX {
            let answer = self.in_time(self.net.join(&peer, ask)).await;
            match answer.map_err(|error| format!("{} ({error})", peer.name))? {
                JoinAnswer::NotLeader { leader: Some(leader) } if leader.name != peer.name => {
                    peer = self.peer_of(leader);
                }
                answer => return Ok(answer),
            }
        }
        Ok(JoinAnswer::NotLeader { leader: None })
    }

    /// Where a member is reached: the peer list overrides what it announced.
    fn peer_of(&self, member: Member) -> Peer {
        let listed = self.peers.iter().find(|peer| peer.name == member.name).cloned();
        listed.unwrap_or(Peer { name: member.name, addr: member.addr })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests;
