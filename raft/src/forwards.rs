//! What this node's lanes send to a leader elsewhere: batches that wait while a call is under way go together with the
//! next one, as the leader joins them into log entries. A lane has one batch here at a time, so all of it is bounded by
//! their number. Each waits for the outcome by itself: a batch that is sent again is told by its (session, sequence).

use crate::ambient::Ambient;
use crate::face::SubmitError;
use crate::flights::Flights;
use crate::proposer::{Outcome, Refusal};
use prefixd_index::command::{Batch, Command};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Batches that may wait for the task.
const QUEUE_BATCHES: usize = 64;
/// Calls under way at most.
const IN_FLIGHT: usize = 4;

/// Brings one command to another node, once.
pub(crate) trait Road: Ambient {
    /// One call, given up at `until` or as soon as another node leads.
    fn forward(&self, leader: u64, command: Command, until: Instant) -> impl Future<Output = Outcome> + Send;
}

struct Item {
    leader: u64,
    batches: Vec<Batch>,
    bytes: usize,
    until: Instant,
    reply: oneshot::Sender<Outcome>,
}

/// The way to the task.
#[derive(Clone)]
pub(crate) struct Forwards {
    queue: mpsc::Sender<Item>,
}

/// The receiving end, to be run once.
pub(crate) struct ForwardsTask {
    queue: mpsc::Receiver<Item>,
    call_bytes: usize,
}

impl Forwards {
    /// A way on which one call carries about `call_bytes`.
    pub(crate) fn new(call_bytes: usize) -> (Self, ForwardsTask) {
        let (send, queue) = mpsc::channel(QUEUE_BATCHES);
        (Self { queue: send }, ForwardsTask { queue, call_bytes })
    }

    /// Has batches committed by the leader, together with others.
    pub(crate) async fn send(&self, leader: u64, batches: Vec<Batch>, bytes: usize, until: Instant) -> Outcome {
        let unavailable = |why: &str| Refusal::Submit(SubmitError::Unavailable(why.into()));
        let (reply, receive) = oneshot::channel();
        let outcome = async {
            let item = Item { leader, batches, bytes, until, reply };
            let stopping = || unavailable("this node is stopping");
            self.queue.send(item).await.map_err(|_| stopping())?;
            receive.await.unwrap_or_else(|_| Err(stopping()))
        };
        let late = || unavailable("the leader did not answer in time");
        tokio::time::timeout_at(until, outcome).await.unwrap_or_else(|_| Err(late()))
    }
}

impl ForwardsTask {
    /// Runs until the last [`Forwards`] is gone.
    pub(crate) async fn run<R: Road>(mut self, road: Arc<R>) {
        let mut waiting: VecDeque<Item> = VecDeque::new();
        let mut flights = Flights::new(IN_FLIGHT);
        while flights.wait(&mut self.queue, |item| waiting.push_back(item)).await {
            while flights.has_room()
                && flights.is_worth_it(waiting.iter().map(|item| item.bytes).sum())
                && let Some(call) = take(&mut waiting, self.call_bytes)
            {
                let (flight, to) = (flights.take_off(call.bytes), road.clone());
                road.spawn(async move {
                    call.make(&*to).await;
                    drop(flight);
                });
            }
        }
    }
}

/// What one call carries: all that waits for the same leader, up to `call_bytes`. Who has gone is left out.
fn take(waiting: &mut VecDeque<Item>, call_bytes: usize) -> Option<Call> {
    let mut call: Option<Call> = None;
    while let Some(item) = waiting.front() {
        let fits = call
            .as_ref()
            .is_none_or(|call| call.leader == item.leader && call.bytes.saturating_add(item.bytes) <= call_bytes);
        if !fits {
            break;
        }
        let Some(item) = waiting.pop_front() else { break };
        if item.reply.is_closed() {
            continue;
        }
        let call = call.get_or_insert_with(|| Call::to(item.leader, item.until));
        call.bytes = call.bytes.saturating_add(item.bytes);
        call.until = call.until.max(item.until);
        call.batches.extend(item.batches);
        call.replies.push(item.reply);
    }
    call
}

struct Call {
    leader: u64,
    until: Instant,
    batches: Vec<Batch>,
    bytes: usize,
    replies: Vec<oneshot::Sender<Outcome>>,
}

impl Call {
    fn to(leader: u64, until: Instant) -> Self {
        Self { leader, until, batches: Vec::new(), bytes: 0, replies: Vec::new() }
    }

    async fn make(self, road: &impl Road) {
        let outcome = road.forward(self.leader, Command::Deltas(self.batches), self.until).await;
        for reply in self.replies {
            // The lane may have given up waiting.
            let _gone = reply.send(outcome.clone());
        }
    }
}

#[cfg(test)]
mod tests;
