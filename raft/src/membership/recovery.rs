//! Whether a disk may be made a cluster of its own: what `recover` says before it does anything. Pure.
//!
//! Recovery gives up whatever the lost disks alone acknowledged, and parts with every other disk of the cluster. It is
//! for a quorum that is gone for good, so anything that looks like less is refused.

use super::member::{Member, quorum};
use std::collections::BTreeMap;

/// What a member of the disk's cluster answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It belongs to the same cluster, with the disk that the membership names. Whether it names a leader says little:
    /// one that hears from nobody goes on naming the last.
    Alive,
    /// Its disk is empty, or another one.
    Gone,
    /// It belongs to another cluster.
    Elsewhere(u128),
    /// Somebody takes connections at its address and does not answer: it may live, behind a TLS that it wasn't asked by.
    Unheard,
    /// It did not answer, or nobody asked.
    Silent,
}

/// Said of members of which nothing is known but that somebody is there.
const UNHEARD: &str = ". Who takes connections and does not answer counts as there: behind mutual TLS it answers this node's own certificate \
                       (--node-tls-cert-file, --node-tls-key-file, --node-tls-ca-file)";

/// What the disk and its peers look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Nothing to recover, or nothing that must be: never done.
    Refuse(String),
    /// A quorum seems to be there: done only when the operator insists.
    Healthy(String),
    /// The quorum is not seen: done when the operator confirms. The text says what is given up.
    Lost(String),
}

/// Judges the disk `node_id` of `cluster_id` by the members that it knows and what they answered, by id.
pub fn outlook(cluster_id: Option<u128>, node_id: u64, members: &[Member], signs: &BTreeMap<u64, Sign>) -> Outlook {
    let Some(cluster_id) = cluster_id else {
        return Outlook::Refuse(
            "this disk belongs to no cluster, so there is nothing to recover from it; start it with `prefixd serve`, or \
             recover the disk of another node"
                .into(),
        );
    };
    let voters: Vec<&Member> = members.iter().filter(|member| member.voter).collect();
    if voters.is_empty() {
        return Outlook::Refuse(format!(
            "this disk has joined cluster {cluster_id:032x} and received nothing of it; recover the disk of another node"
        ));
    }
    let mine = members.iter().find(|member| member.node_id == node_id);
    if voters.len() == 1 && mine.is_some_and(|member| member.voter) {
        return Outlook::Refuse(format!(
            "this disk alone is the quorum of cluster {cluster_id:032x}: nothing is lost; start it with `prefixd serve`"
        ));
    }
    let sign = |voter: &Member| signs.get(&voter.node_id).cloned().unwrap_or(Sign::Silent);
    let may_live = |voter: &Member| matches!(sign(voter), Sign::Alive | Sign::Unheard);
    let alive = voters.iter().filter(|v| v.node_id == node_id || may_live(v)).count();
    let others: Vec<String> =
        voters.iter().filter(|v| v.node_id != node_id).map(|v| format!("{} {}", v.name, told(&sign(v)))).collect();
    let others = others.join(", ");
    let needed = quorum(voters.len());
    if alive >= needed {
        return Outlook::Healthy(format!(
            "cluster {cluster_id:032x} has a quorum with this node ({others}; {needed} of {} voters decide): start this node with `prefixd \
             serve` instead of recovering it. What is recovered all the same is a second cluster beside the first{}",
            voters.len(),
            if voters.iter().any(|v| sign(v) == Sign::Unheard) { UNHEARD } else { "" },
        ));
    }
    let part = match mine {
        Some(member) if member.voter => "a voter",
        Some(_) => "only a learner: it may lack what the voters acknowledged, so prefer the disk of one",
        None => "a member no more: it lacks what was acknowledged since it was taken out, so prefer another",
    };
    Outlook::Lost(format!(
        "cluster {cluster_id:032x} needs {needed} of {} voters ({others}); this disk is {part}. Of several that are left \
         recover the one with the highest term, then the highest last index. What only the lost disks hold is given up, \
         and no other disk of this cluster can join the recovered one unless it is emptied",
        voters.len()
    ))
}

fn told(sign: &Sign) -> String {
    match sign {
        Sign::Alive => "answers".into(),
        Sign::Gone => "has lost its disk".into(),
        Sign::Elsewhere(other) => format!("belongs to cluster {other:032x} now"),
        Sign::Unheard => "takes connections and does not answer".into(),
        Sign::Silent => "is silent".into(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests {
    use super::*;

    fn members(text: &str) -> Vec<Member> {
        let member = |word: &str| {
            let (name, id) = word.trim_end_matches('?').split_at(1);
            Member { node_id: id.parse().unwrap(), name: name.into(), addr: String::new(), voter: !word.ends_with('?') }
        };
        text.split_whitespace().map(member).collect()
    }

    fn sign(code: u32) -> Sign {
        match code {
            0 => Sign::Silent,
            1 => Sign::Gone,
            2 => Sign::Elsewhere(9),
            3 => Sign::Unheard,
            _ => Sign::Alive,
        }
    }

    #[test]
    fn disks_that_are_never_recovered() {
        let none = BTreeMap::new();
        for (cluster, text, part) in [
            (None, "", "belongs to no cluster"),
            (Some(7), "", "received nothing of it"),
            (Some(7), "a1?", "received nothing of it"),
            (Some(7), "a1", "this disk alone is the quorum"),
            (Some(7), "a1 b2?", "this disk alone is the quorum"),
        ] {
            let found = outlook(cluster, 1, &members(text), &none);
            assert!(matches!(&found, Outlook::Refuse(why) if why.contains(part)), "{text}: {found:?}");
        }
    }

    /// Every answer of the others: healthy exactly when a quorum answers, this disk included if it is a voter.
    #[test]
    fn every_answer_of_every_other() {
        for text in ["a1 b2 c3", "a1 b2 c3 d4 e5", "a1? b2 c3 d4", "b2 c3"] {
            let members = members(text);
            let others: Vec<&Member> = members.iter().filter(|member| member.node_id != 1).collect();
            for code in 0..5u32.pow(others.len() as u32) {
                let codes: Vec<u32> = (0..others.len() as u32).map(|i| code / 5u32.pow(i) % 5).collect();
                let signs = others.iter().zip(&codes).map(|(member, code)| (member.node_id, sign(*code))).collect();
                let voters = members.iter().filter(|member| member.voter).count();
                let own = usize::from(members.iter().any(|member| member.node_id == 1 && member.voter));
                let alive = codes.iter().filter(|code| **code >= 3).count() + own;
                let healthy = alive * 2 > voters;
                let found = outlook(Some(7), 1, &members, &signs);
                match &found {
                    Outlook::Healthy(why) => {
                        assert!(healthy && why.contains("prefixd serve"), "{text} {codes:?}: {why}");
                        assert_eq!(why.contains("--node-tls-cert-file"), codes.contains(&3), "{text} {codes:?}: {why}");
                    }
                    Outlook::Lost(why) => {
                        assert!(!healthy, "{text} {codes:?}: {why}");
                        assert_eq!(why.contains("only a learner"), text.starts_with("a1?"));
                        assert_eq!(why.contains("a member no more"), !text.contains('a'));
                    }
                    Outlook::Refuse(why) => panic!("{text} {codes:?}: {why}"),
                }
            }
        }
    }
}
