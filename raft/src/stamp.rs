//! The stamps of commands: cluster time as the leader gives it. After an election it first asks the peers for their
//! wall clocks, so that a new leader with a slow clock, or a cluster that was down for an hour, catches up at once, and
//! one with a fast clock carries nobody along.

use crate::ambient::Ambient;
use crate::core::Published;
use crate::membership::{Stamper, median_wall_us};
use crate::node::{Inner, wall_us};
use std::future::Future;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// How long peers may take to tell their clocks.
pub(crate) const CLOCK_WAIT: Duration = Duration::from_millis(300);

/// Pause before the clocks are asked for again.
const CLOCK_PAUSE: Duration = Duration::from_millis(100);

/// The clocks that stamps are made from.
pub(crate) trait Clocks: Ambient {
    /// The current term.
    fn term(&self) -> u64;
    /// Where cluster time and the monotonic clock are read.
    fn published(&self) -> &Published;
    /// This node's wall clock.
    fn wall_us(&self) -> u64;
    /// The median wall clock of the voters that answer, this node included; `None` if they are no quorum.
    fn median_of_quorum(&self) -> impl Future<Output = Option<u64>> + Send;
}

/// Gives stamps, in one task at a time.
#[derive(Default)]
pub(crate) struct Stamps {
    led: Mutex<Led>,
}

#[derive(Default)]
struct Led {
    /// The term that the stamper belongs to.
    term: u64,
    stamper: Stamper,
}

impl Stamps {
    /// The stamp of a command that is proposed now.
    pub(crate) async fn next(&self, node: &impl Clocks) -> u64 {
        let mut led = self.led.lock().await;
        let term = node.term();
        if led.term != term {
            let published = node.published();
            let mut stamper = Stamper::new(published.now_us(), published.mono_us());
            stamper.elected(None, published.mono_us());
            *led = Led { term, stamper };
        }
        while led.stamper.wants_median() && node.term() == term {
            if let Some(median_us) = node.median_of_quorum().await {
                led.stamper.median(median_us, node.published().mono_us());
            } else if node.published().now_us() > 0 {
                // Time goes on as it did; the next stamp asks again.
                break;
            } else {
                // A new cluster has no time yet, and must not begin at 0. No quorum commits anything meanwhile.
                node.sleep(CLOCK_PAUSE).await;
            }
        }
        led.stamper.stamp(node.wall_us(), node.published().mono_us())
    }
}

impl Clocks for Inner {
    fn term(&self) -> u64 {
        self.term()
    }

    fn published(&self) -> &Published {
        &self.core.published
    }

    fn wall_us(&self) -> u64 {
        wall_us()
    }

    async fn median_of_quorum(&self) -> Option<u64> {
        let (me, others) = self.voters_and_addrs()?;
        let voters = others.len() + 1;
        let mut asked = JoinSet::new();
        for addr in others {
            let calls = self.calls.clone();
            asked.spawn(async move { tokio::time::timeout(CLOCK_WAIT, calls.raw_status(&addr)).await });
        }
        let mut clocks = vec![(me, wall_us())];
        while let Some(answer) = asked.join_next().await {
            if let Ok(Ok(Ok(status))) = answer {
                clocks.push((status.node_id, status.wall_us));
            }
        }
        let walls: Vec<u64> = clocks.into_iter().map(|(_, wall)| wall).collect();
        median_wall_us(&walls, voters)
    }
}
