//! A member of the cluster, as status and membership show it.

/// A disk (by its id) in a place (by its name).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The id of the disk; never 0.
    pub node_id: u64,
    /// The name of the place; one member a name.
    pub name: String,
    /// host:port of its node port as it announced it; a peer list overrides it.
    pub addr: String,
    /// False for a learner.
    pub voter: bool,
}

/// How many voters decide, of `voters`.
pub fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}
