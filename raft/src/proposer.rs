//! The leader's side of a write: commands of all streams and nodes are stamped with cluster time and joined into log
//! entries by a byte budget. It lingers only while some entries are in flight, so an idle cluster commits at the
//! disk's speed and a busy one in large entries.

use crate::ambient::Ambient;
use crate::face::{Histogram, SubmitError};
use crate::flights::Flights;
use crate::record;
use crate::types::{Proposal, Reply};
use openraft::RaftTypeConfig;
use openraft::error::{ClientWriteError, RaftError};
use openraft::storage::RaftStateMachine;
use prefixd_index::command::{Command, Stamped};
use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Commands that may wait for the task.
const QUEUE_COMMANDS: usize = 4_096;
/// Log entries in flight at most.
const IN_FLIGHT: usize = 4;
/// Of these, such that need not be full: while the disks write one, followers receive the next, and their logs and the
/// leader's write together what has come in meanwhile.
const SMALL_IN_FLIGHT: usize = 3;

/// Where a command landed.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Done {
    pub(crate) index: u64,
    pub(crate) reply: Reply,
}

/// Why a command was not committed by this node.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// Another node leads, if any.
    NotLeader(Option<u64>),
    /// Not now.
    Submit(SubmitError),
    /// Never: it can't be read or encoded.
    Unreadable(String),
}

pub(crate) type Outcome = Result<Done, Refusal>;

struct Item {
    command: Command,
    bytes: usize,
    reply: oneshot::Sender<Outcome>,
}

/// What the task needs of the node.
pub(crate) trait Leadership: Ambient {
    /// Has Raft commit one log entry and apply it here.
    fn write(&self, proposal: Proposal) -> impl Future<Output = Outcome> + Send;
    /// The stamp of a command proposed now. Awaits the clock check that follows an election.
    fn stamp(&self) -> impl Future<Output = u64> + Send;
}

/// The way to the task.
#[derive(Clone)]
pub(crate) struct Proposer {
    queue: mpsc::Sender<Item>,
    waiting_bytes: Arc<AtomicUsize>,
    limit_bytes: usize,
    latency: Arc<Mutex<Histogram>>,
}

/// The receiving end, to be run once.
pub(crate) struct ProposerTask {
    queue: mpsc::Receiver<Item>,
    waiting_bytes: Arc<AtomicUsize>,
    latency: Arc<Mutex<Histogram>>,
    entry_bytes: usize,
}

impl Proposer {
    pub(crate) fn new(entry_bytes: usize, limit_bytes: usize) -> (Self, ProposerTask) {
        let (send, queue) = mpsc::channel(QUEUE_COMMANDS);
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let bounds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
        let latency = Arc::new(Mutex::new(Histogram {
            bounds_seconds: bounds.to_vec(),
            counts: vec![0; bounds.len()],
            ..Histogram::default()
        }));
        let proposer =
            Self { queue: send, waiting_bytes: waiting_bytes.clone(), limit_bytes, latency: latency.clone() };
        (proposer, ProposerTask { queue, waiting_bytes, latency, entry_bytes })
    }

    /// Has a command committed and applied here, if this node leads.
    pub(crate) async fn propose(&self, command: Command, bytes: usize) -> Outcome {
        let full = |what: &str| Refusal::Submit(SubmitError::QueueFull(format!("the leader's {what}")));
        if self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed) > self.limit_bytes {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(full("queue holds its limit of bytes"));
        }
        let (reply, receive) = oneshot::channel();
        if self.queue.try_send(Item { command, bytes, reply }).is_err() {
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(full("queue holds its limit of commands"));
        }
        receive.await.unwrap_or_else(|_| Err(Refusal::Submit(SubmitError::Unavailable("this node is stopping".into()))))
    }

    /// Proposal latencies since start.
    pub(crate) fn latency(&self) -> Histogram {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What goes into one log entry, with those who wait for it.
struct Group {
    items: Vec<Item>,
    bytes: usize,
}

impl Group {
    fn is_joinable(&self) -> bool {
        self.items.first().is_some_and(|item| matches!(item.command, Command::Deltas(_)))
    }

    /// The one command of all its items.
    fn into_command(self) -> Option<(Command, Vec<oneshot::Sender<Outcome>>)> {
        let mut replies = Vec::with_capacity(self.items.len());
        let mut joined: Option<Command> = None;
        for mut item in self.items {
            match (&mut joined, &mut item.command) {
                (Some(Command::Deltas(batches)), Command::Deltas(more)) => batches.append(more),
                _ => joined = Some(item.command),
            }
            replies.push(item.reply);
        }
        joined.map(|command| (command, replies))
    }
}

impl ProposerTask {
    /// Runs until the last [`Proposer`] is gone.
    pub(crate) async fn run(mut self, node: Arc<impl Leadership>) {
        let mut groups: VecDeque<Group> = VecDeque::new();
        let mut flights = Flights::new(IN_FLIGHT);
        while flights.wait(&mut self.queue, |item| join(&mut groups, item, self.entry_bytes)).await {
            while self.may_fly(&groups, &flights) {
                let Some(group) = groups.pop_front() else { break };
                let (bytes, stamp_us) = (group.bytes, node.stamp().await);
                if let Some(writing) = self.launch(&node, group, stamp_us) {
                    let flight = flights.take_off(bytes);
                    node.spawn(async move {
                        writing.await;
                        drop(flight);
                    });
                }
            }
        }
    }

    fn may_fly(&self, groups: &VecDeque<Group>, flights: &Flights) -> bool {
        match groups.front() {
            None => false,
            Some(first) if flights.flying() < SMALL_IN_FLIGHT && flights.is_worth_it(first.bytes) => true,
            Some(first) => flights.has_room() && (groups.len() > 1 || first.bytes >= self.entry_bytes),
        }
    }

    /// What brings a group into the log. Commands whose callers have gone are left out: they were told that it
    /// failed, and a leader that was cut off for long must not come up with them then.
    fn launch<N: Leadership>(
        &self,
        node: &Arc<N>,
        mut group: Group,
        stamp_us: u64,
    ) -> Option<impl Future<Output = ()> + Send + use<N>> {
        let given_up = group.items.extract_if(.., |item| item.reply.is_closed()).map(|item| item.bytes).sum();
        self.waiting_bytes.fetch_sub(given_up, Ordering::Relaxed);
        let bytes = group.bytes - given_up;
        let (command, replies) = group.into_command()?;
        let encoded = record::encode_command(&Stamped { stamp_us, command }).map(Proposal);
        let waiting_bytes = self.waiting_bytes.clone();
        let latency = self.latency.clone();
        let node = node.clone();
        Some(async move {
            let began = node.now();
            let outcome = match encoded {
                Err(error) => Err(Refusal::Unreadable(error.to_string())),
                Ok(proposal) => node.write(proposal).await,
            };
            if outcome.is_ok() {
                observe(&latency, node.now().saturating_duration_since(began));
            }
            waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            for reply in replies {
                // The caller may have given up waiting.
                let _gone = reply.send(outcome.clone());
            }
        })
    }
}

/// Adds a command behind all others: into the last group if both are deltas and it has room, else as a new one.
fn join(groups: &mut VecDeque<Group>, item: Item, entry_bytes: usize) {
    let bytes = item.bytes;
    if matches!(item.command, Command::Deltas(_))
        && let Some(last) = groups.back_mut()
        && last.is_joinable()
        && last.bytes.saturating_add(bytes) <= entry_bytes
    {
        last.bytes += bytes;
        last.items.push(item);
        return;
    }
    groups.push_back(Group { items: vec![item], bytes });
}

fn observe(latency: &Mutex<Histogram>, took: Duration) {
    let mut latency = latency.lock().unwrap_or_else(PoisonError::into_inner);
    latency.observe(took.as_secs_f64());
}

/// Writes through a running Raft.
pub(crate) async fn write<C, M>(raft: &openraft::Raft<C, M>, proposal: Proposal) -> Outcome
where
    C: RaftTypeConfig<D = Proposal, R = Reply, NodeId = u64>,
    M: RaftStateMachine<C>,
{
    match raft.client_write(proposal).await {
        Ok(response) => Ok(Done { index: response.log_id.index(), reply: response.data }),
        Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => Err(Refusal::NotLeader(to.leader_id)),
        Err(other) => Err(Refusal::Submit(SubmitError::Unavailable(other.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_waits_behind_much() {
        let (_proposer, task) = Proposer::new(10_000, 100_000);
        let group = |bytes| VecDeque::from([Group { items: Vec::new(), bytes }]);
        let mut flights = Flights::new(IN_FLIGHT);
        assert!(task.may_fly(&group(1), &flights), "an idle cluster waits for nothing");
        let _first = flights.take_off(1_000);
        assert!(!task.may_fly(&group(499), &flights));
        assert!(task.may_fly(&group(500), &flights));
        let _second = flights.take_off(1_000);
        assert!(!task.may_fly(&group(999), &flights));
        assert!(task.may_fly(&group(1_000), &flights));
        let _third = flights.take_off(1_000);
        assert!(!task.may_fly(&group(9_999), &flights), "a fourth has to be full");
        assert!(task.may_fly(&group(10_000), &flights));
    }
}
