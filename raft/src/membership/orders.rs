//! What an operator may order, and what the leader does about it. Pure: the node carries the decision out.
//!
//! A refusal says why and which command to run next. Nothing here may leave the cluster without a voter, or with voters
//! of which no quorum answers; two members of one name exist only while a later disk takes over from a silent one.

use super::member::{Member, quorum};
use super::peers::{PeerAnswer, Standing};
use super::promise::NAME_BYTES_MAX;
use std::collections::BTreeMap;

/// Most members of a cluster, learners included.
pub const MEMBERS_MAX: usize = 15;

/// What the leader knows when it gets an order.
#[derive(Clone, Debug)]
pub struct Roster<'a> {
    /// The leader's cluster.
    pub cluster_id: u128,
    /// The leader's own id.
    pub leader: u64,
    /// The effective membership, learners included.
    pub members: &'a [Member],
    /// A membership change is not finished: joint, or not committed.
    pub changing: bool,
    /// Ids that the leader heard of within the longest election timeout, its own included.
    pub heard: &'a [u64],
    /// Last log index known to be on a member's disk, by id.
    pub matched: &'a BTreeMap<u64, u64>,
    /// The leader's last log index.
    pub last_log: u64,
    /// A member that lacks more entries than this is neither promoted nor made the leader.
    pub max_lag: u64,
    /// The cluster's feature level.
    pub feature_level: u32,
}

/// What the node at an address said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Who it is.
    pub answer: PeerAnswer,
    /// The highest feature level that it reads.
    pub feature_max: u32,
}

/// An order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Let a node in.
    Add {
        /// Its name.
        name: String,
        /// host:port of its node port.
        addr: String,
        /// What it said when it was asked, or why it could not be: the end of a sentence that begins with it.
        found: Result<Candidate, String>,
    },
    /// Take a member out, by name or id.
    Remove(String),
    /// Make a learner a voter, by name or id.
    Promote(String),
    /// Hand leadership over, to a voter by name or id, or to the best one.
    HandOver(Option<String>),
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is so already.
    Nothing(String),
    /// Add this disk as a learner.
    AddLearner(Member),
    /// Take this voter out.
    RemoveVoter(u64),
    /// Take this learner out.
    RemoveLearner(u64),
    /// One change: `add` becomes a voter, the silent disks of its name leave.
    Promote {
        /// The learner.
        add: u64,
        /// Other disks of its name.
        remove: Vec<u64>,
    },
    /// Name this voter as the next leader. The order itself then goes to that one, unless it was to hand over.
    HandOver(u64),
    /// Nobody has that name.
    Unknown(String),
    /// Not as things are.
    Refuse(String),
    /// Not now: another change is under way.
    Busy(String),
}

/// Decides on one order.
pub fn obey(roster: &Roster<'_>, order: &Order) -> Decision {
    let outcome = match order {
        Order::Add { name, addr, found } => roster.add(name, addr, found),
        Order::Remove(who) => roster.find(who).and_then(|member| roster.remove(member)),
        Order::Promote(who) => roster.find(who).and_then(|member| roster.promote(member)),
        Order::HandOver(None) => roster.successor_or_why().map(Decision::HandOver),
        Order::HandOver(Some(who)) => roster.find(who).and_then(|member| roster.hand_over(member)),
    };
    let decision = outcome.unwrap_or_else(|no| no);
    let changes = matches!(
        decision,
        Decision::AddLearner(_) | Decision::RemoveVoter(_) | Decision::RemoveLearner(_) | Decision::Promote { .. }
    );
    // What is so by a change that isn't committed may still come to nothing: whoever asks again must not be told that it is.
    let claims = match &decision {
        Decision::Nothing(_) => !matches!(order, Order::HandOver(_)),
        Decision::Unknown(_) => matches!(order, Order::Remove(_)),
        _ => false,
    };
    match roster.changing && (changes || claims) {
        true => Decision::Busy("another change of the membership is under way".into()),
        false => decision,
    }
}

/// Refuses.
fn no(reason: impl Into<String>) -> Decision {
    Decision::Refuse(reason.into())
}

impl<'a> Roster<'a> {
    fn find(&self, who: &str) -> Result<&'a Member, Decision> {
        let named: Vec<&Member> = self.members.iter().filter(|member| member.name == who).collect();
        match named[..] {
            [one] => return Ok(one),
            [] => {}
            _ => {
                let ids: Vec<String> = named.iter().map(|member| format!("{:016x}", member.node_id)).collect();
                return Err(no(format!(
                    "{who} is the name of {} disks ({}), one taking over from another; name one of them by its id",
                    named.len(),
                    ids.join(", ")
                )));
            }
        }
        let id = (who.len() == 16).then(|| u64::from_str_radix(who, 16).ok()).flatten();
        if let Some(found) = self.members.iter().find(|member| Some(member.node_id) == id) {
            return Ok(found);
        }
        let names: Vec<&str> = self.members.iter().map(|member| member.name.as_str()).collect();
        Err(Decision::Unknown(format!(
            "{who:?} is no member of cluster {:032x}, which has {}; `prefixd ctl member list` shows them",
            self.cluster_id,
            names.join(", ")
        )))
    }

    fn add(&self, name: &str, addr: &str, found: &Result<Candidate, String>) -> Result<Decision, Decision> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(no(format!("a member needs a name of 1 to {NAME_BYTES_MAX} bytes")));
        }
        let Candidate { answer, feature_max } = found.as_ref().map_err(|why| {
            let end = if why.ends_with('?') { "" } else { "." };
            no(format!(
                "no node answers at {addr}: it {why}{end} Start it with an empty disk, `prefixd serve --node-name={name} \
                 --bootstrap=never --peers=…` naming itself and the members, then run this again"
            ))
        })?;
        self.identity(name, addr, answer)?;
        if let Some(member) = self.members.iter().find(|member| member.node_id == answer.node_id) {
            return match member.name == name {
                true => Ok(Decision::Nothing(format!("{name} is a {} already", role(member)))),
                false => Err(no(format!(
                    "the disk {:016x} at {addr} is the member {} already, not {name}",
                    answer.node_id, member.name
                ))),
            };
        }
        if let Some(namesake) = self.members.iter().find(|member| member.name == name) {
            return Err(no(format!(
                "{name} is a member already, with the disk {:016x}; a name has one member. A node that lost its disk \
                 comes back by itself when it is started empty; else run `prefixd ctl member remove {name}` first",
                namesake.node_id
            )));
        }
        if *feature_max < self.feature_level {
            return Err(no(format!(
                "the cluster is at feature level {}, the release at {addr} reads up to {feature_max}; start a later \
                 release there",
                self.feature_level
            )));
        }
        if self.members.len() >= MEMBERS_MAX {
            return Err(no(format!("a cluster has at most {MEMBERS_MAX} members; remove one first")));
        }
        let member = Member { node_id: answer.node_id, name: name.to_owned(), addr: addr.to_owned(), voter: false };
        Ok(Decision::AddLearner(member))
    }

    /// Whether the node that answered at `addr` is one that may become the member `name`.
    fn identity(&self, name: &str, addr: &str, answer: &PeerAnswer) -> Result<(), Decision> {
        if answer.name != name {
            return Err(no(format!("the node at {addr} was started as {}, not as {name}", answer.name)));
        }
        if answer.node_id == 0 {
            return Err(no(format!("the node at {addr} answers without an id")));
        }
        match &answer.standing {
            Standing::Member { cluster_id, .. } if *cluster_id != self.cluster_id => Err(no(format!(
                "the disk of {name} at {addr} belongs to cluster {cluster_id:032x}, this is {:032x}; stop that node, \
                 empty its data directory and start it with --bootstrap=never, then run this again",
                self.cluster_id
            ))),
            Standing::Promised(held) if held.cluster_id() != self.cluster_id => Err(no(format!(
                "the disk of {name} at {addr} has promised to found {held}; stop that node, empty its data directory \
                 and start it with --bootstrap=never, then run this again"
            ))),
            _ => Ok(()),
        }
    }

    fn remove(&self, member: &Member) -> Result<Decision, Decision> {
        if !member.voter {
            return Ok(Decision::RemoveLearner(member.node_id));
        }
        let left: Vec<&Member> = self.voters().filter(|voter| voter.node_id != member.node_id).collect();
        let name = &member.name;
        if left.is_empty() {
            return Err(no(format!(
                "{name} is the last voter, and a cluster can't be without one; to end the cluster stop its nodes"
            )));
        }
        let silent: Vec<&str> =
            left.iter().filter(|voter| !self.hears(voter.node_id)).map(|voter| voter.name.as_str()).collect();
        if left.len() - silent.len() < quorum(left.len()) {
            return Err(no(format!(
                "without {name} {} voters are left and {} of them must answer, but {} is silent: the cluster would lose \
                 its quorum. Start {} first, or remove it instead",
                left.len(),
                quorum(left.len()),
                silent.join(", "),
                silent.join(" or ")
            )));
        }
        match member.node_id == self.leader {
            true => self.successor_or_why().map(Decision::HandOver),
            false => Ok(Decision::RemoveVoter(member.node_id)),
        }
    }

    fn promote(&self, member: &Member) -> Result<Decision, Decision> {
        let name = &member.name;
        if member.voter {
            return Ok(Decision::Nothing(format!("{name} is a voter already")));
        }
        self.close_behind(member)?;
        let namesakes: Vec<&Member> =
            self.members.iter().filter(|m| m.name == *name && m.node_id != member.node_id).collect();
        if let Some(alive) = namesakes.iter().find(|namesake| self.hears(namesake.node_id)) {
            return Err(no(format!(
                "the name {name} is held by the disk {id:016x}, which was heard of just now; stop one of the two nodes, \
                 or run `prefixd ctl member remove {id:016x}`",
                id = alive.node_id
            )));
        }
        let remove = namesakes.into_iter().map(|namesake| namesake.node_id).collect();
        Ok(Decision::Promote { add: member.node_id, remove })
    }

    fn hand_over(&self, member: &Member) -> Result<Decision, Decision> {
        let name = &member.name;
        if member.node_id == self.leader {
            return Ok(Decision::Nothing(format!("{name} leads already")));
        }
        if !member.voter {
            return Err(no(format!(
                "{name} is a learner, and only a voter can lead; run `prefixd ctl member promote {name}` first"
            )));
        }
        self.close_behind(member)?;
        Ok(Decision::HandOver(member.node_id))
    }

    /// The voter, other than the leader and those of `not`, that answers and has most of the log.
    pub fn successor(&self, not: &[u64]) -> Option<u64> {
        let able = self.voters().filter(|voter| voter.node_id != self.leader && !not.contains(&voter.node_id));
        let able = able.filter(|voter| self.close_behind(voter).is_ok());
        able.max_by_key(|voter| (self.matched.get(&voter.node_id), voter.node_id)).map(|voter| voter.node_id)
    }

    fn successor_or_why(&self) -> Result<u64, Decision> {
        self.successor(&[]).ok_or_else(|| {
            no(match self.voters().count() {
                1 => "the leader is the only voter; run `prefixd ctl member add` to have another".to_owned(),
                _ => "no other voter answers and is close enough behind to lead; `prefixd ctl member list` shows how \
                      far each is"
                    .to_owned(),
            })
        })
    }

    /// Refuses a member that is silent, or lacks too much of the log.
    fn close_behind(&self, member: &Member) -> Result<(), Decision> {
        let name = &member.name;
        if !self.hears(member.node_id) {
            return Err(no(format!(
                "{name} does not answer the leader at present; start it, or see to its disk or its address in --peers"
            )));
        }
        let lag = self.last_log.saturating_sub(self.matched.get(&member.node_id).copied().unwrap_or(0));
        if member.node_id != self.leader && lag > self.max_lag {
            return Err(no(format!(
                "{name} is {lag} log entries behind, at most {} are allowed; it is catching up: watch it with `prefixd \
                 ctl member list` and run this again",
                self.max_lag
            )));
        }
        Ok(())
    }

    fn voters(&self) -> impl Iterator<Item = &'a Member> {
        self.members.iter().filter(|member| member.voter)
    }

    fn hears(&self, id: u64) -> bool {
        id == self.leader || self.heard.contains(&id)
    }
}

/// The word for a member's part.
pub fn role(member: &Member) -> &'static str {
    if member.voter { "voter" } else { "learner" }
}

/// What a number of voters endures, for people.
pub fn endures(voters: usize) -> String {
    let failures = voters.saturating_sub(quorum(voters));
    let noun = if voters == 1 { "voter" } else { "voters" };
    format!("{voters} {noun} now; the cluster endures the loss of {failures}")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests;
