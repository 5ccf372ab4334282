//! Time, tasks and chance, as the lanes, the proposer and the stamps use them. A node's are tokio's, and the defaults
//! here; the simulation brings its own, so that the same loops run there by a seed. What decides must not be in here.

use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;

/// What runs the loops of a node.
pub(crate) trait Ambient: Send + Sync + 'static {
    /// The monotonic clock.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Waits.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(duration)
    }

    /// Runs a task beside the caller.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(task);
    }

    /// A number from 0 to 1.
    fn chance(&self) -> f64 {
        rand::random()
    }
}
