//! The stamps of commands: cluster time as the leader gives it. After an election it first asks the peers for their
//! wall clocks, so that a new leader with a slow clock, or a cluster that was down for an hour, catches up at once, and
//! one with a fast clock carries nobody along.

use crate::membership::{Stamper, median_wall_us};
use crate::node::{Inner, wall_us};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// How long peers may take to tell their clocks.
const CLOCK_WAIT: Duration = Duration::from_millis(300);

/// Gives stamps, in one task at a time.
#[derive(Default)]
pub(crate) struct Stamps {
    led: Mutex<Led>,
}

#[derive(Default)]
struct Led {
    /// The term whose election was followed by a clock check.
    term: u64,
    stamper: Option<Stamper>,
}

impl Stamps {
    /// The stamp of a command that is proposed now.
    pub(crate) async fn next(&self, node: &Inner) -> u64 {
        let mut led = self.led.lock().await;
        let term = node.term();
        let mono_us = node.core.published.mono_us();
        let base = node.core.published.now_us();
        if led.stamper.is_none() || led.term != term {
            let mut stamper = Stamper::new(base, mono_us);
            stamper.elected(median_of_quorum(node).await, node.core.published.mono_us());
            *led = Led { term, stamper: Some(stamper) };
        }
        match &mut led.stamper {
            Some(stamper) => stamper.stamp(wall_us(), node.core.published.mono_us()),
            None => base,
        }
    }
}

/// The median wall clock of the voters that answer, this node included; `None` if they are no quorum.
async fn median_of_quorum(node: &Inner) -> Option<u64> {
    let (me, others) = node.voters_and_addrs()?;
    let voters = others.len() + 1;
    let mut asked = JoinSet::new();
    for addr in others {
        let calls = node.calls.clone();
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
