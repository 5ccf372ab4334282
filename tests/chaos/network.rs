//! What can be done to the network between nodes, whichever it is: the proxy's, or bridges between network namespaces.

/// The network between the nodes of one cluster.
pub trait Network {
    /// How many nodes it is between.
    fn size(&self) -> usize;

    /// Cuts what one node says to another; what it hears stays.
    fn cut(&self, from: usize, to: usize);

    /// Ends all faults of all ways.
    fn heal(&self);

    /// Bytes carried so far on all ways.
    fn carried_bytes(&self) -> u64;

    /// What faults have touched so far, chunks or packets: the proof that they happened to somebody.
    fn faults(&self) -> u64;

    /// Cuts all ways between these nodes and all others.
    fn part(&self, some: &[usize]) {
        for one in some {
            for other in (0..self.size()).filter(|other| !some.contains(other)) {
                self.cut(*one, other);
                self.cut(other, *one);
            }
        }
    }
}
