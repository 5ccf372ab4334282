//! Entering: a peer is a member of a cluster, so none may be founded; this disk is counted in already, or asks.

use super::{Action, Seen};
use crate::membership::member::{Member, quorum};
use crate::membership::peers::Standing;

/// The way into `cluster_id`, the only cluster seen.
pub(super) fn enter(seen: &Seen<'_>, cluster_id: u128) -> Action {
    if let Some(other) = listings(seen).find(|member| member.name != seen.place.name) {
        return Action::Stop {
            reason: format!(
                "the cluster {cluster_id:032x} knows this disk ({:016x}) as {}, not as {}; start it with --node-name={}, \
                 or empty its data directory",
                other.node_id, other.name, seen.place.name, other.name
            ),
        };
    }
    if let Some(counted) = listings(seen).max_by_key(|member| member.voter) {
        let found = seen.disk.promise.clone().filter(|promise| promise.cluster_id() == cluster_id);
        return Action::Adopt { cluster_id, found, voter: counted.voter };
    }
    match &seen.disk.promise {
        None => ask(seen, cluster_id),
        Some(held) if held.cluster_id() != cluster_id => Action::Stop {
            reason: format!(
                "this disk has promised to found {held}, but its peers belong to cluster {cluster_id:032x}; empty its \
                 data directory to let it join them"
            ),
        },
        Some(held) if leaders_members(seen).is_some() => {
            Action::DropPromise { reason: format!("the members of {held} have replaced this disk since") }
        }
        Some(held) => Action::Adopt { cluster_id, found: Some(held.clone()), voter: true },
    }
}

/// Asks to join if anybody is there to let this node in.
fn ask(seen: &Seen<'_>, cluster_id: u128) -> Action {
    let members = leaders_members(seen).or_else(|| any_members(seen)).unwrap_or_default();
    let voters: Vec<&Member> = members.iter().filter(|member| member.voter).collect();
    let gone: Vec<&str> = voters
        .iter()
        .filter(|voter| seen.current_id(&voter.name).is_some_and(|id| id != voter.node_id))
        .map(|voter| voter.name.as_str())
        .collect();
    if !voters.is_empty() && voters.len() - gone.len() < quorum(voters.len()) {
        return Action::Wait {
            reason: format!(
                "cluster {cluster_id:032x} has lost its quorum for good: the disks of {} are gone, of {} voters; run \
                 `prefixd recover` on a surviving disk, or restore a backup",
                gone.join(", "),
                voters.len()
            ),
        };
    }
    let via = whom_to_ask(seen);
    if via.is_empty() {
        return Action::Wait {
            reason: format!(
                "cluster {cluster_id:032x} has no leader now that could let this node in; if its quorum is lost for \
                 good, run `prefixd recover` on a surviving disk"
            ),
        };
    }
    Action::AskJoin { cluster_id, via }
}

/// This disk as members list it. As a voter if anybody says so: a disk never goes back to learner.
fn listings<'a>(seen: &'a Seen<'_>) -> impl Iterator<Item = &'a Member> {
    memberships(seen).flat_map(|(_, members, _)| members).filter(|member| member.node_id == seen.disk.node_id)
}

/// (id of the peer, members, leader) of every peer that is a member.
fn memberships<'a>(seen: &'a Seen<'_>) -> impl Iterator<Item = (u64, &'a [Member], Option<u64>)> {
    seen.answered().filter_map(|answer| match &answer.standing {
        Standing::Member { members, leader, .. } => Some((answer.node_id, members.as_slice(), *leader)),
        _ => None,
    })
}

/// The members as the leader itself lists them.
fn leaders_members<'a>(seen: &'a Seen<'_>) -> Option<&'a [Member]> {
    let own = memberships(seen).find(|(id, members, leader)| *leader == Some(*id) && !members.is_empty());
    own.map(|(_, members, _)| members)
}

fn any_members<'a>(seen: &'a Seen<'_>) -> Option<&'a [Member]> {
    memberships(seen).map(|(_, members, _)| members).find(|members| !members.is_empty())
}

/// Members that know a leader, those that are the leader first.
fn whom_to_ask(seen: &Seen<'_>) -> Vec<String> {
    let mut via: Vec<(bool, &str)> = Vec::new();
    for answer in seen.answered() {
        if let Standing::Member { leader: Some(leader), .. } = &answer.standing {
            via.push((*leader != answer.node_id, &answer.name));
        }
    }
    via.sort_unstable();
    via.into_iter().map(|(_, name)| name.to_owned()).collect()
}
