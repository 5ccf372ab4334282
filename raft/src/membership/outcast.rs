//! A member's disk that hears from no leader: is the quorum lost, or has the cluster gone on without this disk? Pure.
//!
//! Without a quorum lookups go on and the node stays ready. A disk that was taken out, or that belongs to a cluster that
//! its peers have left, must not: it would answer from the past for ever.

use super::member::Member;

/// What one peer says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The name that answered.
    pub name: String,
    /// Its disk.
    pub node_id: u64,
    /// The cluster that it belongs to, if any.
    pub cluster_id: Option<u128>,
    /// The leader that it knows.
    pub leader: Option<u64>,
    /// The members that it knows.
    pub members: Vec<Member>,
}

/// Why the disk `node_id` of the node `name`, a member of `cluster_id`, is none any more, if what its peers say shows
/// that. To be asked while no leader is heard.
pub fn cast_out(name: &str, cluster_id: u128, node_id: u64, seen: &[Sighting]) -> Option<String> {
    let leader = seen.iter().find(|peer| {
        peer.cluster_id == Some(cluster_id) && peer.leader == Some(peer.node_id) && !peer.members.is_empty()
    });
    if let Some(leader) = leader {
        return (!leader.members.iter().any(|member| member.node_id == node_id)).then(|| {
            format!(
                "this disk ({node_id:016x}) was taken out of the membership, says the leader {}; stop this node, or run \
                 `prefixd ctl member add {name} HOST:PORT` to let it in again",
                leader.name
            )
        });
    }
    if seen.iter().any(|peer| peer.cluster_id == Some(cluster_id)) {
        return None;
    }
    let foreign: Vec<String> =
        seen.iter().filter_map(|peer| Some(format!("{} belongs to {:032x}", peer.name, peer.cluster_id?))).collect();
    (!foreign.is_empty()).then(|| {
        format!(
            "this disk belongs to cluster {cluster_id:032x}, but of its peers {}: that cluster was recovered or restored \
             without it, or --peers is wrong. Move this node's data directory away and start it empty with \
             --bootstrap=never to have it join them",
            foreign.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: u128 = 7;

    /// `b`: no cluster. `b7`: member of 7 without a leader. `b7*`: leads 7 with this disk. `b7-`: leads 7 without it.
    fn seen(text: &str) -> Vec<Sighting> {
        let one = |word: &str| {
            let name = word.get(..1).unwrap_or_default().to_owned();
            let node_id = u64::from(name.as_bytes()[0] - b'a') + 1;
            let cluster_id = word.get(1..2).and_then(|digit| digit.parse().ok());
            let member = |node_id| Member { node_id, name: String::new(), addr: String::new(), voter: true };
            let leads = word.ends_with('*') || word.ends_with('-');
            let members = if word.ends_with('*') { vec![member(1), member(node_id)] } else { vec![member(node_id)] };
            Sighting { name, node_id, cluster_id, leader: leads.then_some(node_id), members }
        };
        text.split_whitespace().map(one).collect()
    }

    #[test]
    fn who_is_out() {
        let rows = [
            ("", None),
            ("b", None),
            ("b7 c7", None),
            ("b7* c7", None),
            ("b7- c7", Some("taken out of the membership, says the leader b")),
            ("b8 c7-", Some("says the leader c")),
            // Others of this cluster are there, only without a leader: a lost quorum is no reason.
            ("b8* c7", None),
            ("b8* c", Some("of its peers b belongs to 00000000000000000000000000000008: that")),
            (
                "b8 c9*",
                Some("b belongs to 00000000000000000000000000000008, c belongs to 0000000000000000000000000000000"),
            ),
        ];
        for (text, expected) in rows {
            let found = cast_out("a", MINE, 1, &seen(text));
            match (&found, expected) {
                (None, None) => {}
                (Some(said), Some(part)) => assert!(said.contains(part), "{text}: {said}"),
                _ => panic!("{text}: {found:?}"),
            }
        }
    }
}
