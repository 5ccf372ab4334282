//! Asks the peers of a member that hears from no leader whether its cluster has gone on without it.

use crate::membership::{Sighting, cast_out};
use crate::node::Inner;
use crate::types::wire_members;
use prefixd_proto::node as wire;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

/// Between looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a peer may take to say who it is.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

impl Inner {
    /// Looks until the node stops: whenever no leader has been heard for an election timeout, and from the start on, so
    /// that a disk of another cluster is never ready among strangers.
    pub(crate) async fn watch_for_exile(self: Arc<Self>) {
        let mut ticker = tokio::time::interval(INTERVAL);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.stopping.run_until_cancelled(ticker.tick()).await.is_some() {
            let Some((me, _)) = self.member() else { continue };
            let spoke = self.heard().at.filter(|at| at.elapsed() < self.config.timing.election_max);
            if spoke.is_some() || self.is_leader() {
                // What a leader said before this disk was told that it is out says nothing.
                if self.is_leader() || self.exile_since() < spoke {
                    self.cast_out(None);
                }
                if self.is_leader() {
                    self.move_as_leader().await;
                }
                continue;
            }
            self.announce_move().await;
            let seen = self.sightings().await;
            // Whom nobody answers has learnt nothing.
            if !seen.is_empty() {
                self.cast_out(cast_out(&self.config.node_name, me.cluster_id, me.node_id, &seen));
            }
        }
    }

    /// Why this disk is no member any more, if it was told so.
    pub(crate) fn exile(&self) -> Option<String> {
        self.outcast.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(why, _)| why.clone())
    }

    fn exile_since(&self) -> Option<Instant> {
        self.outcast.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, since)| *since)
    }

    /// Notes why this disk is no member any more, or that it is one; says so when that is news.
    pub(crate) fn cast_out(&self, why: Option<String>) {
        let mut known = self.outcast.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().map(|(why, _)| why) == why.as_ref() {
            return;
        }
        match &why {
            Some(why) => tracing::error!("{why}"),
            None => tracing::info!("this disk is a member again"),
        }
        *known = why.map(|why| (why, Instant::now()));
    }

    /// What all peers say of themselves that answer: those of the peer list and those of the membership.
    async fn sightings(&self) -> Vec<Sighting> {
        let mut addrs: BTreeMap<String, String> = BTreeMap::new();
        if let Some(metrics) = self.metrics() {
            for member in wire_members(metrics.membership_config.membership()) {
                addrs.insert(member.name, member.node_addr);
            }
        }
        addrs.extend(self.config.peers.iter().map(|peer| (peer.name.clone(), peer.addr.clone())));
        addrs.remove(&self.config.node_name);
        let mut asked = JoinSet::new();
        for (name, addr) in addrs.into_iter().filter(|(_, addr)| !addr.is_empty()) {
            let calls = self.calls.clone();
            asked.spawn(async move { (name, tokio::time::timeout(ANSWER_WAIT, calls.raw_status(&addr)).await) });
        }
        let mut seen = Vec::new();
        while let Some(answer) = asked.join_next().await {
            if let Ok((name, Ok(Ok(status)))) = answer {
                seen.push(sighting(name, status));
            }
        }
        seen.sort_by(|a, b| a.name.cmp(&b.name));
        seen
    }
}

fn sighting(name: String, status: wire::PeerStatusResponse) -> Sighting {
    Sighting {
        name,
        node_id: status.node_id,
        cluster_id: crate::calls::cluster_id(&status.cluster_id).ok(),
        leader: status.leader,
        members: status.members.into_iter().map(crate::calls::member_from_wire).collect(),
    }
}
