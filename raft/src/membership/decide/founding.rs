//! Founding: nobody that was reached is a member of a cluster.

use super::{Action, Seen};
use crate::face::BootstrapMode;
use crate::membership::peers::{PeerAnswer, Standing};
use crate::membership::promise::Promise;

/// A node that founds by itself. With other names in its peer list that would be a second cluster in the making the
/// day this disk is lost, so it is refused.
pub(super) fn alone(seen: &Seen<'_>, fresh_cluster_id: u128) -> Action {
    let name = &seen.place.name;
    if seen.place.peer_names.iter().any(|peer| peer != name) {
        return Action::Stop {
            reason: "--bootstrap=solo founds a cluster of one, but --peers names others: use --bootstrap=peers to \
                     found one with them, or --bootstrap=never to join theirs"
                .into(),
        };
    }
    let mine = [(name.clone(), seen.disk.node_id)];
    match &seen.disk.promise {
        Some(held) if *held.members() == mine => Action::FoundSolo(held.clone()),
        Some(held) => Action::Stop {
            reason: format!(
                "this disk has promised to found {held}; start it with that peer list and --bootstrap=peers, or empty \
                 its data directory"
            ),
        },
        None => match Promise::new(fresh_cluster_id, mine.into()) {
            Ok(promise) => Action::FoundSolo(promise),
            Err(reason) => Action::Stop { reason },
        },
    }
}

/// A node that founds with its peers, or not at all.
pub(super) fn together(seen: &Seen<'_>, fresh_cluster_id: u128) -> Action {
    if let Some(held) = &seen.disk.promise {
        return promised(seen, held);
    }
    if seen.place.bootstrap == BootstrapMode::Never {
        return Action::Wait { reason: nobody_yet(seen) };
    }
    if seen.place.peer_names.is_empty() {
        return Action::Stop { reason: "--bootstrap=peers needs --peers".into() };
    }
    if let Some(reason) = other_names(seen) {
        return Action::Stop { reason };
    }
    if let Some(silent) = seen.silent() {
        return Action::Wait { reason: format!("founding a cluster takes all peers; no answer from {silent}") };
    }
    match coordinator(seen) {
        Some(name) if name != seen.place.name => {
            Action::Wait { reason: format!("all peers are empty; {name} is to propose the new cluster") }
        }
        _ => propose_anew(seen, fresh_cluster_id),
    }
}

/// This disk holds a promise: make it come true, or find that it can't.
fn promised(seen: &Seen<'_>, held: &Promise) -> Action {
    if !held.names().eq(seen.place.peer_names.iter().map(String::as_str)) {
        return Action::Stop {
            reason: format!(
                "this disk has promised to found {held}, but --peers is now {}; start it with the names of the promise \
                 or empty its data directory",
                seen.place.peer_names.join(",")
            ),
        };
    }
    if seen.place.bootstrap == BootstrapMode::Peers
        && let Some(reason) = other_names(seen)
    {
        return Action::Stop { reason };
    }
    let silent = seen.silent();
    if silent.is_none()
        && let Some((name, id)) = held.members().iter().find(|(name, id)| seen.current_id(name) != Some(*id))
    {
        return Action::DropPromise {
            reason: format!("{name} has lost the disk {id:016x} that was to found {held}, and no peer is a member"),
        };
    }
    let lacking: Vec<&PeerAnswer> =
        seen.answered().filter(|answer| answer.standing != Standing::Promised(held.clone())).collect();
    if silent.is_none() && lacking.is_empty() && seen.place.bootstrap == BootstrapMode::Peers {
        return Action::Adopt { cluster_id: held.cluster_id(), found: Some(held.clone()), voter: true };
    }
    let able = lacking.iter().filter(|answer| held.node_id_of(&answer.name) == Some(answer.node_id));
    let to: Vec<String> = able.map(|answer| answer.name.clone()).collect();
    if seen.place.bootstrap == BootstrapMode::Peers && !to.is_empty() && coordinator(seen) == Some(&seen.place.name) {
        return Action::Propose { promise: held.clone(), to };
    }
    let lacking = || lacking.iter().map(|answer| answer.name.as_str()).collect::<Vec<_>>().join(", ");
    let waiting_for = silent.unwrap_or_else(lacking);
    Action::Wait { reason: format!("this node has promised to found {held}; waiting for {waiting_for}") }
}

/// All peers answered, none is a member, this one coordinates and holds no promise: take up the promise that a peer
/// holds for exactly these disks, or draw a new one.
fn propose_anew(seen: &Seen<'_>, fresh_cluster_id: u128) -> Action {
    let current = seen.place.peer_names.iter().filter_map(|name| Some((name.clone(), seen.current_id(name)?)));
    let drawn = match Promise::new(fresh_cluster_id, current.collect()) {
        Ok(drawn) => drawn,
        Err(reason) => return Action::Stop { reason },
    };
    let mut promise = drawn;
    for answer in seen.answered() {
        if let Standing::Promised(held) = &answer.standing {
            if held.members() != promise.members() {
                let reason =
                    format!("{} must first drop its promise to found {held}, which can't come true", answer.name);
                return Action::Wait { reason };
            }
            promise = held.clone();
        }
    }
    let lacks = |standing: &Standing| !matches!(standing, Standing::Promised(held) if *held == promise);
    let to = seen.answered().filter(|answer| lacks(&answer.standing)).map(|answer| answer.name.clone()).collect();
    Action::Propose { promise, to }
}

/// The smallest name proposes.
fn coordinator<'a>(seen: &Seen<'a>) -> Option<&'a str> {
    seen.place.peer_names.first().map(String::as_str)
}

fn other_names(seen: &Seen<'_>) -> Option<String> {
    let other = seen.answered().find(|answer| answer.peer_names != seen.place.peer_names)?;
    Some(format!(
        "{} was started with other --peers ({}) than this node ({}); a cluster is founded only by nodes with the same \
         names in --peers",
        other.name,
        other.peer_names.join(","),
        seen.place.peer_names.join(",")
    ))
}

fn nobody_yet(seen: &Seen<'_>) -> String {
    let text = "no peer is a member of a cluster, and --bootstrap=never does not found one";
    match seen.silent() {
        Some(silent) => format!("{text}; no answer from {silent}"),
        None => text.into(),
    }
}
