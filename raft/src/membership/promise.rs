//! The founding list of a cluster: what every founder must have on its disk before the cluster exists.

use super::member::Member;
use std::collections::BTreeSet;
use std::fmt;

/// Most founders of a cluster, and so most names that a promise may hold.
pub const FOUNDERS_MAX: usize = 64;
/// Longest name of a member in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The promise to found this cluster with these disks and no other. A value of this type is well-formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    cluster_id: u128,
    members: Vec<(String, u64)>,
}

impl Promise {
    /// Checks a list that came from a disk or a peer: sorted by name, no name and no id twice, no id 0, 1 to
    /// [`FOUNDERS_MAX`] members, a cluster id other than 0. The error says what is wrong with it.
    pub fn new(cluster_id: u128, members: Vec<(String, u64)>) -> Result<Promise, String> {
        if cluster_id == 0 {
            return Err("a founding list with cluster id 0".into());
        }
        if members.is_empty() || members.len() > FOUNDERS_MAX {
            return Err(format!("a founding list of {} members; 1 to {FOUNDERS_MAX} can be", members.len()));
        }
        if let Some((name, _)) = members.iter().find(|(name, _)| name.is_empty() || name.len() > NAME_BYTES_MAX) {
            return Err(format!("a founding list with a name of {} bytes; 1 to {NAME_BYTES_MAX} can be", name.len()));
        }
        if let Some(pair) = members.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(format!("a founding list that is not sorted by name: {:?} before {:?}", pair[0].0, pair[1].0));
        }
        if let Some((name, _)) = members.iter().find(|(_, id)| *id == 0) {
            return Err(format!("a founding list with node id 0 for {name}"));
        }
        let ids: BTreeSet<u64> = members.iter().map(|(_, id)| *id).collect();
        if ids.len() != members.len() {
            return Err("a founding list with one node id under two names: a data directory was copied".into());
        }
        Ok(Promise { cluster_id, members })
    }

    /// The id that the cluster has once it exists.
    pub fn cluster_id(&self) -> u128 {
        self.cluster_id
    }

    /// (name, node id) of every founder, sorted by name.
    pub fn members(&self) -> &[(String, u64)] {
        &self.members
    }

    /// The founders as the first members; their addresses are in nobody's promise.
    pub fn as_members(&self) -> Vec<Member> {
        let member =
            |(name, id): &(String, u64)| Member { node_id: *id, name: name.clone(), addr: String::new(), voter: true };
        self.members.iter().map(member).collect()
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|(name, _)| name.as_str())
    }

    /// The disk that is to found the cluster under `name`.
    pub fn node_id_of(&self, name: &str) -> Option<u64> {
        self.members.iter().find(|(member, _)| member == name).map(|(_, id)| *id)
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cluster {:032x} of", self.cluster_id)?;
        for (name, id) in &self.members {
            write!(f, " {name}={id:016x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests {
    use super::*;

    fn list(members: &[(&str, u64)]) -> Result<Promise, String> {
        Promise::new(7, members.iter().map(|(name, id)| ((*name).to_owned(), *id)).collect())
    }

    #[test]
    fn only_well_formed_lists_are_taken() {
        let good = list(&[("a", 3), ("b", 1)]).unwrap();
        assert_eq!(good.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((good.node_id_of("b"), good.node_id_of("c")), (Some(1), None));
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let bad = [
            (vec![], "0 members"),
            (vec![("b", 1), ("a", 2)], "not sorted"),
            (vec![("a", 1), ("a", 2)], "not sorted"),
            (vec![("a", 0)], "node id 0 for a"),
            (vec![("a", 1), ("b", 1)], "was copied"),
            (vec![("", 1)], "name of 0 bytes"),
            (vec![(long.as_str(), 1)], "name of 256 bytes"),
        ];
        for (members, expected) in bad {
            let error = list(&members).unwrap_err();
            assert!(error.contains(expected), "{members:?}: {error}");
        }
        assert!(Promise::new(0, vec![("a".into(), 1)]).is_err());
        let many = (0..=FOUNDERS_MAX as u64).map(|id| (format!("n{id:03}"), id + 1)).collect();
        assert!(Promise::new(1, many).is_err());
    }
}
