//! In which order nodes are tried: round robin over those in good standing, then those that failed lately, the one
//! whose penalty ends first leading. Plain values and atomics: no clock and no IO, so the order can be tested as it is.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The standing of every node. Times are milliseconds since an origin of the caller's choice.
pub(crate) struct Health {
    penalty_ends_ms: Vec<AtomicU64>,
    turn: AtomicUsize,
}

impl Health {
    /// Everybody in good standing; `first` is the node whose turn it is.
    pub(crate) fn new(nodes: usize, first: usize) -> Self {
        Self { penalty_ends_ms: (0..nodes).map(|_| AtomicU64::new(0)).collect(), turn: AtomicUsize::new(first) }
    }

    /// All nodes, in the order in which the next call should try them.
    pub(crate) fn order(&self, now_ms: u64) -> Vec<usize> {
        let nodes = self.penalty_ends_ms.len();
        let start = self.turn.fetch_add(1, Ordering::Relaxed) % nodes.max(1);
        let mut order: Vec<usize> = (start..nodes).chain(0..start).collect();
        order.sort_by_key(|&node| {
            let ends_ms = self.penalty_ends_ms[node].load(Ordering::Relaxed);
            if ends_ms > now_ms { ends_ms } else { 0 }
        });
        order
    }

    /// Takes note that a node did not answer.
    pub(crate) fn failed(&self, node: usize, penalty_ends_ms: u64) {
        self.penalty_ends_ms[node].store(penalty_ends_ms, Ordering::Relaxed);
    }

    /// Takes note that a node answered.
    pub(crate) fn answered(&self, node: usize) {
        self.penalty_ends_ms[node].store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Health;

    #[test]
    fn healthy_nodes_take_turns() {
        let health = Health::new(3, 1);
        assert_eq!(health.order(0), [1, 2, 0]);
        assert_eq!(health.order(0), [2, 0, 1]);
        assert_eq!(health.order(0), [0, 1, 2]);
    }

    #[test]
    fn a_failed_node_is_last_until_its_penalty_ends() {
        let health = Health::new(3, 0);
        health.failed(1, 100);
        assert_eq!(health.order(99), [0, 2, 1]);
        assert_eq!(health.order(99), [2, 0, 1]);
        assert_eq!(health.order(99), [2, 0, 1]);
        assert_eq!(health.order(100), [0, 1, 2]);
    }

    #[test]
    fn among_failed_nodes_the_oldest_failure_leads() {
        let health = Health::new(3, 0);
        health.failed(0, 300);
        health.failed(1, 200);
        health.failed(2, 100);
        assert_eq!(health.order(0), [2, 1, 0]);
        health.answered(0);
        assert_eq!(health.order(0), [0, 2, 1]);
    }

    #[test]
    fn the_turn_may_wrap_around() {
        let health = Health::new(3, usize::MAX);
        for _ in 0..3 {
            let mut order = health.order(0);
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2], "every node, once");
        }
    }
}
