//! What an operator is told while nobody leads: that it is so, whom this node knew to lead last, and what to do. It
//! decides nothing; who leads is Raft's to say, and [`crate::orders`] how long that is waited for.

use crate::node::Inner;
use openraft::async_runtime::watch::WatchReceiver;
use std::fmt;
use std::sync::atomic::Ordering;

/// The leader that a node knew last.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// None since it was started.
    Nobody,
    /// Itself: it still would, if a quorum heard it.
    Itself,
    /// Another one.
    Other {
        /// Its name and id, as the membership has them.
        who: String,
        /// Where its node port was reached.
        addr: String,
        /// Since it was last heard of.
        silent_ms: u64,
    },
}

/// A node that knows of no leader, as it says so itself.
#[derive(Debug)]
pub(crate) struct Leaderless<'a> {
    pub(crate) asked: &'a str,
    pub(crate) term: u64,
    pub(crate) last: Last,
}

impl fmt::Display for Leaderless<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, term, last } = self;
        write!(f, "there is no leader now (term {term}), so nothing can be changed: ")?;
        match last {
            Last::Nobody => write!(f, "{asked} has heard of none since it was started"),
            Last::Itself => write!(f, "{asked} itself led last, and no quorum answers it"),
            Last::Other { who, addr, silent_ms } => {
                let silent = *silent_ms as f64 / 1_000.0;
                write!(f, "{who} at {addr} led last, and {asked} has not heard of it for {silent:.1} s")
            }
        }?;
        f.write_str(
            ". A quorum of the voters elects one by itself: `prefixd ctl member list` shows who answers; start the \
             others. If the quorum is lost for good, stop the nodes that are left and run `prefixd recover --data-dir DIR` \
             on the one with the longest log",
        )
    }
}

impl Inner {
    /// The leader that this node hears of at present; on the leader, while a quorum answers it.
    pub(crate) fn present_leader(&self) -> Option<u64> {
        let (_, raft) = self.member()?;
        let leader = raft.metrics().borrow_watched().current_leader;
        // Raft goes on naming a leader that nobody hears any more, and one that hears nobody names itself.
        let patience_ms = u64::try_from(self.config.timing.election_max.as_millis() * 2).unwrap_or(u64::MAX);
        leader.filter(|_| self.stale_ms() <= patience_ms)
    }

    /// That there is no leader, for whoever wants something of it.
    pub(crate) fn leaderless(&self) -> Option<String> {
        let metrics = self.metrics()?;
        let last = match self.leader_known_last.load(Ordering::Relaxed) {
            0 => Last::Nobody,
            id if id == metrics.id => Last::Itself,
            id => {
                let node = metrics.membership_config.membership().get_node(&id);
                let name = node.map_or("a disk that is no member", |node| node.name.as_str());
                let addr = self.addr_of(&metrics, id).filter(|addr| !addr.is_empty());
                Last::Other {
                    who: format!("{name} ({id:016x})"),
                    addr: addr.unwrap_or_else(|| "an unknown address".into()),
                    silent_ms: self.stale_ms(),
                }
            }
        };
        Some(Leaderless { asked: &self.config.node_name, term: metrics.current_term, last }.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_who_led_last_and_what_to_do_and_blames_nobody_else() {
        let other = Last::Other { who: "n1 (000000000000000b)".into(), addr: "n1:9091".into(), silent_ms: 12_340 };
        let rows = [
            (Last::Nobody, "n0 has heard of none since it was started."),
            (Last::Itself, "n0 itself led last, and no quorum answers it."),
            (other, "n1 (000000000000000b) at n1:9091 led last, and n0 has not heard of it for 12.3 s."),
        ];
        for (last, part) in rows {
            let said = Leaderless { asked: "n0", term: 7, last }.to_string();
            assert!(said.starts_with("there is no leader now (term 7), so nothing can be changed: "), "{said}");
            for part in [part, "member list", "prefixd recover"] {
                assert!(said.contains(part), "{part}: {said}");
            }
        }
    }
}
