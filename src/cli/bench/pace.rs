//! When calls begin. Open load: a thread of its own says when a call is due, since timers of the runtime are good to a
//! millisecond only, and the call begins then or as soon as its connection has room; its latency counts from when it was
//! due. Closed load: a connection begins a call when one has ended.

use super::content::mix;
use super::outcome::{Side, Tally};
use prefixd_client::{Client, Error};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// Calls that are due and wait for their connection; beyond it the clock itself waits, and calls are due late.
const MAX_DUE: usize = 1 << 16;

/// How much load, and for how long.
#[derive(Copy, Clone, Debug)]
pub struct Pace {
    /// Calls a second over all connections; 0 is closed load.
    pub rate: f64,
    /// Calls under way on a connection.
    pub in_flight: u16,
    /// How long to run before measuring.
    pub warmup: Duration,
    /// How long to measure.
    pub length: Duration,
    /// Seed of the times between calls.
    pub seed: u64,
}

/// One kind of calls on some connections.
pub struct Load {
    /// One a connection.
    pub clients: Vec<Client>,
    /// When calls begin.
    pub pace: Pace,
}

/// When the load starts, and from when to when calls count, by when they were due.
#[derive(Copy, Clone)]
struct Window {
    start: Instant,
    begin: Instant,
    end: Instant,
}

impl Load {
    /// Runs to the end; `call` gets a connection and the call's number and returns how much was done.
    pub async fn run<F>(self, call: impl Fn(Client, u64) -> F + Clone + Send + Sync + 'static) -> Side
    where
        F: Future<Output = Result<u64, Error>> + Send + 'static,
    {
        let start = Instant::now();
        let begin = start + self.pace.warmup;
        let window = Window { start, begin, end: begin + self.pace.length };
        let numbers = Arc::new(AtomicU64::new(mix(self.pace.seed)));
        let mut connections = JoinSet::new();
        let mut due = Vec::new();
        for client in self.clients {
            let (call, numbers) = (call.clone(), numbers.clone());
            let call = move || call(client.clone(), numbers.fetch_add(1, Ordering::Relaxed));
            if self.pace.rate > 0.0 {
                let (sender, receiver) = mpsc::channel(MAX_DUE);
                due.push(sender);
                connections.spawn(open(call, self.pace.in_flight, window, receiver));
            } else {
                for _ in 0..self.pace.in_flight {
                    connections.spawn(closed(call.clone(), window));
                }
            }
        }
        let clock = (!due.is_empty()).then(|| {
            let pace = self.pace;
            tokio::task::spawn_blocking(move || tick(pace, window, &due))
        });
        let mut tally = Tally::default();
        while let Some(one) = connections.join_next().await {
            match one {
                Ok(one) => tally.add(one),
                // One that panicked is a call that was not answered.
                Err(error) => tally.fail(error.to_string()),
            }
        }
        let late_us = match clock {
            Some(clock) => clock.await.ok(),
            None => None,
        };
        Side { tally, pace: self.pace, late_us }
    }
}

/// Says when calls are due, at random intervals of the right mean, as independent callers would; returns by how many
/// microseconds it was late at most, beyond which no latency below can be believed.
fn tick(pace: Pace, window: Window, connections: &[mpsc::Sender<Instant>]) -> u64 {
    let (mut next, mut random, mut late) = (window.start, pace.seed, Duration::ZERO);
    for connection in connections.iter().cycle() {
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let uniform = (mix(random) >> 11) as f64 / (1u64 << 53) as f64;
        next += Duration::from_secs_f64(-(1.0 - uniform).ln() / pace.rate);
        if next >= window.end {
            break;
        }
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        late = late.max(next.elapsed());
        if connection.blocking_send(next).is_err() {
            break;
        }
    }
    u64::try_from(late.as_micros()).unwrap_or(u64::MAX)
}

async fn open<F>(call: impl Fn() -> F, in_flight: u16, window: Window, mut due: mpsc::Receiver<Instant>) -> Tally
where
    F: Future<Output = Result<u64, Error>> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(usize::from(in_flight)));
    let (mut calls, mut tally) = (JoinSet::new(), Tally::default());
    let mut record = |done: Result<(Instant, Duration, Result<u64, Error>), tokio::task::JoinError>| match done {
        Ok((due, took, result)) => tally.record(window.begin <= due, took, result),
        Err(error) => tally.fail(error.to_string()),
    };
    while let Some(due) = due.recv().await {
        // Never closed.
        let Ok(place) = room.clone().acquire_owned().await else { break };
        let call = call();
        calls.spawn(async move {
            let result = call.await;
            let took = due.elapsed();
            drop(place);
            (due, took, result)
        });
        while let Some(done) = calls.try_join_next() {
            record(done);
        }
    }
    while let Some(done) = calls.join_next().await {
        record(done);
    }
    tally
}

async fn closed<F>(call: impl Fn() -> F, window: Window) -> Tally
where
    F: Future<Output = Result<u64, Error>> + Send + 'static,
{
    let mut tally = Tally::default();
    loop {
        let begun = Instant::now();
        if begun >= window.end {
            return tally;
        }
        let result = call().await;
        let failed = result.is_err();
        tally.record(window.begin <= begun, begun.elapsed(), result);
        if failed {
            // A cluster that refuses at once is not to be asked in a spin.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
