//! The leader's side of joining: the next step for a node that wants in. Pure; the node carries the step out and asks
//! again at the joiner's next call.
//!
//! A name has one member. A disk is replaced only when it is silent: a node started by mistake under the name of a
//! healthy one must not push it out.

use super::member::Member;
use super::peers::JoinAsk;
use super::promise::NAME_BYTES_MAX;

/// What the leader knows when it is asked.
#[derive(Clone, Debug)]
pub struct JoinView<'a> {
    /// The leader's cluster.
    pub cluster_id: u128,
    /// The leader's own id.
    pub leader: u64,
    /// The names of the leader's peer list.
    pub peer_names: &'a [String],
    /// The effective membership, learners included.
    pub members: &'a [Member],
    /// A membership change is not finished: joint, or not committed.
    pub changing: bool,
    /// Ids that the leader heard of within the longest election timeout.
    pub heard: &'a [u64],
    /// Last log index known to be on the joiner's disk.
    pub matched: Option<u64>,
    /// The leader's last log index.
    pub last_log: u64,
    /// A joiner that lacks more entries than this is not promoted.
    pub max_lag: u64,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinStep {
    /// Nothing to do: it is a voter.
    AlreadyVoter,
    /// Remove these learners, dead disks of the same name, then add the joiner as a learner.
    AddLearner {
        /// Ids to remove.
        replace: Vec<u64>,
    },
    /// It is a learner and catching up.
    WaitCatchUp,
    /// One joint change: these ids leave the membership, this one becomes a voter.
    Swap {
        /// Voters and learners of the same name.
        remove: Vec<u64>,
        /// The joiner.
        add: u64,
    },
    /// Never.
    Refuse(String),
    /// Not now.
    Busy(String),
}

/// The next step for `joiner`.
pub fn plan(view: &JoinView<'_>, joiner: &JoinAsk) -> JoinStep {
    if let Some(reason) = refusal(view, joiner) {
        return JoinStep::Refuse(reason);
    }
    if view.changing {
        return JoinStep::Busy("another change of the membership is under way".into());
    }
    let mine = view.members.iter().find(|member| member.node_id == joiner.node_id);
    if mine.is_some_and(|member| member.voter) {
        return JoinStep::AlreadyVoter;
    }
    if mine.is_none()
        && let Some(step) = unexpected(view, joiner)
    {
        return step;
    }
    let namesakes: Vec<&Member> =
        view.members.iter().filter(|member| member.name == joiner.name && member.node_id != joiner.node_id).collect();
    if let Some(alive) = namesakes.iter().find(|member| view.heard.contains(&member.node_id)) {
        let (name, id) = (&joiner.name, alive.node_id);
        return JoinStep::Busy(format!("the name {name} is held by the disk {id:016x}, which was heard of just now"));
    }
    let others = namesakes.iter().map(|member| member.node_id);
    if mine.is_none() {
        let learners = namesakes.iter().filter(|member| !member.voter);
        return JoinStep::AddLearner { replace: learners.map(|member| member.node_id).collect() };
    }
    match view.matched {
        Some(matched) if view.last_log.saturating_sub(matched) <= view.max_lag => {
            JoinStep::Swap { remove: others.collect(), add: joiner.node_id }
        }
        _ => JoinStep::WaitCatchUp,
    }
}

/// Learners to remove: disks that died before they were promoted and whose place is taken, since nobody will ask for
/// them again. A join that was long under way can bring one back after its place was taken by the next disk. To be
/// looked at by the leader from time to time, while no change is under way.
pub fn ghosts(members: &[Member], heard: &[u64]) -> Vec<u64> {
    let taken = |name: &str| members.iter().any(|m| m.voter && m.name == name && heard.contains(&m.node_id));
    let ghosts =
        members.iter().filter(|member| !member.voter && !heard.contains(&member.node_id) && taken(&member.name));
    ghosts.map(|member| member.node_id).collect()
}

/// Why the joiner can never be let in as it is, if so.
fn refusal(view: &JoinView<'_>, joiner: &JoinAsk) -> Option<String> {
    let JoinAsk { node_id, name, cluster_id, .. } = joiner;
    if *cluster_id != view.cluster_id {
        return Some(format!("this is cluster {:032x}, not {cluster_id:032x}", view.cluster_id));
    }
    if *node_id == 0 || name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Some(format!("a member needs an id and a name of 1 to {NAME_BYTES_MAX} bytes"));
    }
    if let Some(other) = view.members.iter().find(|member| member.node_id == *node_id && member.name != *name) {
        return Some(format!("the disk {node_id:016x} is the member {}, not {name}", other.name));
    }
    if view.members.iter().any(|member| member.node_id == view.leader && member.name == *name)
        && *node_id != view.leader
    {
        return Some(format!("the leader itself has the name {name}: two nodes were started with it"));
    }
    None
}

/// What a disk that is no member is told when the cluster doesn't expect its name.
fn unexpected(view: &JoinView<'_>, joiner: &JoinAsk) -> Option<JoinStep> {
    let JoinAsk { node_id, name, addr, .. } = joiner;
    if view.members.iter().any(|member| member.name == *name) {
        return None;
    }
    // It asked to get in, was let in, and an operator took it out before it had caught up: it must not undo that.
    if joiner.promotion {
        return Some(JoinStep::Refuse(format!(
            "the disk {node_id:016x} of {name} was taken out of the membership; stop this node, or run `prefixd ctl \
             member add {name} {addr}` to let it in again"
        )));
    }
    (!view.peer_names.contains(name)).then(|| {
        JoinStep::Busy(format!(
            "no member has the name {name}, and the leader's --peers ({}) lacks it; run `prefixd ctl member add {name} \
             {addr}`, or start the members with it in --peers",
            view.peer_names.join(",")
        ))
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests;
