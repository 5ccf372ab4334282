//! What a disk does next, given what it holds, how it was started and what its peers answer. Pure: no clock, no disk,
//! no network; the one random number that founding needs is an argument.
//!
//! Why two clusters can't come out of one peer list:
//! - A disk holds at most one promise, and a round of asking begins with a look at the own disk. What the round led to
//!   is done only if the disk still holds what it held then. So whoever adopts a cluster because all founders were
//!   seen to have promised its list L held L itself all the while.
//! - Let p adopt L's cluster and q that of another list M of the same names, in rounds that began at s(p) and s(q). p
//!   saw q with L after s(p), and q holds M from s(q) on, so s(p) < s(q); q saw p with M after s(q), and p holds L from
//!   s(p) on, so s(q) < s(p). Both can't be. Where q's place in L is another disk, that disk lived after s(p) and was
//!   gone before q came, and M, which names q, is younger than s(p): p never held it after. Likewise for p in M.
//! - A promise is dropped only when another disk answers in a place that it names; a promise that came true is found
//!   true by any member of its cluster, and a member never promises.
//! - A disk that adopted nothing has voted for nobody. So it may adopt the cluster of a live member that counts it in,
//!   whatever it promised or took back.
//! - Lists of other names are refused, by the asked and by the asking. A promise binds to the names it was made with
//!   even when the peer list is changed afterwards.
//!
//! The founding itself is in [`founding`], the way into a cluster that exists in [`entering`].

mod entering;
mod founding;
#[cfg(test)]
mod oracle;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests;

use super::peers::{PeerAnswer, Standing};
use super::promise::Promise;
use crate::face::{BootstrapMode, Peer};
use std::collections::{BTreeMap, BTreeSet};

/// How a node was started: its place and the places of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This node's name.
    pub name: String,
    /// All names, this node's included, sorted; empty for a node without a peer list.
    pub peer_names: Vec<String>,
    /// What to do with an empty disk.
    pub bootstrap: BootstrapMode,
}

impl Place {
    /// The place named `name` among `peers`.
    pub fn new(name: &str, peers: &[Peer], bootstrap: BootstrapMode) -> Place {
        let peer_names: BTreeSet<String> = peers.iter().map(|peer| peer.name.clone()).collect();
        Place { name: name.to_owned(), peer_names: peer_names.into_iter().collect(), bootstrap }
    }
}

/// What this node's disk holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskState {
    /// The id of the disk.
    pub node_id: u64,
    /// The cluster that it adopted.
    pub cluster_id: Option<u128>,
    /// Its promise; kept after adopting until Raft is initialised.
    pub promise: Option<Promise>,
}

/// By peer name, this node itself left out: what the peer answered, or why there is no answer.
pub type Answers = BTreeMap<String, Result<PeerAnswer, String>>;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// This disk is a member: start Raft, and initialise it with `found` if that hasn't happened.
    Start {
        /// The founding list, while it is not known to be in Raft's log.
        found: Option<Promise>,
    },
    /// Found this cluster of one.
    FoundSolo(Promise),
    /// Make this promise durable unless it is held already, then ask these peers to make it.
    Propose {
        /// The founding list.
        promise: Promise,
        /// Peers that don't hold it yet.
        to: Vec<String>,
    },
    /// Adopt this cluster.
    Adopt {
        /// The cluster.
        cluster_id: u128,
        /// The founding list to initialise Raft with; `None` where others do that.
        found: Option<Promise>,
        /// False: this disk is a learner there and must ask to be promoted.
        voter: bool,
    },
    /// Take the promise back: it can't come true.
    DropPromise {
        /// Why.
        reason: String,
    },
    /// Ask to become a member.
    AskJoin {
        /// The cluster.
        cluster_id: u128,
        /// Whom to ask, the likely leader first.
        via: Vec<String>,
    },
    /// Nothing can be done now; look again.
    Wait {
        /// What is being waited for.
        reason: String,
    },
    /// Only an operator can resolve this.
    Stop {
        /// What is wrong and what to do about it.
        reason: String,
    },
}

/// Decides. `fresh_cluster_id` is random and not 0; it is used only if a new cluster is to be founded.
pub fn decide(place: &Place, disk: &DiskState, answers: &Answers, fresh_cluster_id: u128) -> Action {
    if let Some(cluster_id) = disk.cluster_id {
        let found = disk.promise.clone().filter(|promise| promise.cluster_id() == cluster_id);
        return Action::Start { found };
    }
    let seen = Seen { place, disk, answers };
    if let Some(reason) = seen.misplaced() {
        return Action::Stop { reason };
    }
    if place.bootstrap == BootstrapMode::Solo {
        return founding::alone(&seen, fresh_cluster_id);
    }
    let clusters = seen.clusters();
    let mut ids = clusters.keys();
    match (ids.next(), ids.next()) {
        (None, _) => founding::together(&seen, fresh_cluster_id),
        (Some(cluster_id), None) => entering::enter(&seen, *cluster_id),
        (Some(_), Some(_)) => Action::Stop { reason: two_clusters(&clusters) },
    }
}

/// Everything that a decision rests upon.
struct Seen<'a> {
    place: &'a Place,
    disk: &'a DiskState,
    answers: &'a Answers,
}

impl Seen<'_> {
    /// The peers that answered, by name.
    fn answered(&self) -> impl Iterator<Item = &PeerAnswer> {
        self.answers.values().filter_map(|answer| answer.as_ref().ok())
    }

    /// The cluster ids that peers are members of, with the peers' names.
    fn clusters(&self) -> BTreeMap<u128, Vec<&str>> {
        let mut clusters: BTreeMap<u128, Vec<&str>> = BTreeMap::new();
        for answer in self.answered() {
            if let Standing::Member { cluster_id, .. } = &answer.standing {
                clusters.entry(*cluster_id).or_default().push(&answer.name);
            }
        }
        clusters
    }

    /// The peers without an answer and why, as text; `None` when all answered.
    fn silent(&self) -> Option<String> {
        let others = self.place.peer_names.iter().filter(|name| **name != self.place.name);
        let silent: Vec<String> = others
            .filter_map(|name| match self.answers.get(name) {
                Some(Ok(_)) => None,
                Some(Err(error)) => Some(format!("{name} ({error})")),
                None => Some(format!("{name} (not asked yet)")),
            })
            .collect();
        (!silent.is_empty()).then(|| silent.join(", "))
    }

    /// The id of the disk that answers under `name` now, this node's own included.
    fn current_id(&self, name: &str) -> Option<u64> {
        if name == self.place.name {
            return Some(self.disk.node_id);
        }
        self.answers.get(name).and_then(|answer| answer.as_ref().ok()).map(|answer| answer.node_id)
    }

    /// Why this node can't be where it was put, if so.
    fn misplaced(&self) -> Option<String> {
        let Place { name, peer_names, .. } = self.place;
        if !peer_names.is_empty() && !peer_names.contains(name) {
            let names = peer_names.join(",");
            return Some(format!("--node-name {name} is none of the names in --peers ({names})"));
        }
        let twin = self.answered().find(|answer| answer.node_id == self.disk.node_id)?;
        Some(format!(
            "{} answers with this node's own id {:016x}: a data directory was copied; empty one of the two",
            twin.name, twin.node_id
        ))
    }
}

fn two_clusters(clusters: &BTreeMap<u128, Vec<&str>>) -> String {
    let seen: Vec<String> = clusters.iter().map(|(id, names)| format!("{id:032x} at {}", names.join(","))).collect();
    format!(
        "the peers belong to different clusters ({}); take the nodes of the wrong one out of --peers, or empty their \
         data directories, then start this node again",
        seen.join("; ")
    )
}
