//! The leader's side of a write: commands of all streams and nodes are stamped with cluster time and joined into log
//! entries by a byte budget. It lingers only while another entry is in flight, so an idle cluster commits at the
//! disk's speed and a busy one in large entries.

use crate::face::{Histogram, SubmitError};
use crate::record;
use crate::types::{Proposal, Reply, TypeConfig};
use openraft::error::{ClientWriteError, RaftError};
use prefixd_index::command::{Command, Stamped};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Commands that may wait for the task.
const QUEUE_COMMANDS: usize = 4_096;
/// Log entries in flight at most; full ones may overlap.
const IN_FLIGHT: usize = 4;

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
pub(crate) trait Leadership: Send + Sync + 'static {
    /// The running Raft.
    fn raft(&self) -> Option<crate::node::Raft>;
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

/// One log entry with those who wait for it.
struct Group {
    command: Command,
    bytes: usize,
    replies: Vec<oneshot::Sender<Outcome>>,
}

impl ProposerTask {
    /// Runs until the last [`Proposer`] is gone.
    pub(crate) async fn run(mut self, node: Arc<impl Leadership>) {
        let mut groups: VecDeque<Group> = VecDeque::new();
        let mut flying = JoinSet::new();
        loop {
            tokio::select! {
                item = self.queue.recv() => match item {
                    Some(item) => self.join(&mut groups, item),
                    None => return,
                },
                Some(_landed) = flying.join_next() => {}
            }
            while let Ok(item) = self.queue.try_recv() {
                self.join(&mut groups, item);
            }
            while self.may_fly(&groups, flying.len()) {
                let Some(group) = groups.pop_front() else { break };
                let stamp_us = node.stamp().await;
                self.launch(&node, group, stamp_us, &mut flying);
            }
        }
    }

    fn may_fly(&self, groups: &VecDeque<Group>, flying: usize) -> bool {
        match groups.front() {
            None => false,
            Some(_) if flying == 0 => true,
            Some(first) => flying < IN_FLIGHT && (groups.len() > 1 || first.bytes >= self.entry_bytes),
        }
    }

    /// Adds a command behind all others: into the last group if both are deltas and it has room, else as a new one.
    fn join(&self, groups: &mut VecDeque<Group>, item: Item) {
        let (mut command, bytes) = (item.command, item.bytes);
        if let Command::Deltas(batches) = &mut command
            && let Some(Group { command: Command::Deltas(last), bytes: held, replies }) = groups.back_mut()
            && held.saturating_add(bytes) <= self.entry_bytes
        {
            last.append(batches);
            *held += bytes;
            replies.push(item.reply);
            return;
        }
        groups.push_back(Group { command, bytes, replies: vec![item.reply] });
    }

    fn launch(&self, node: &Arc<impl Leadership>, group: Group, stamp_us: u64, flying: &mut JoinSet<()>) {
        let Group { command, bytes, replies } = group;
        let encoded = record::encode_command(&Stamped { stamp_us, command }).map(Proposal);
        let waiting_bytes = self.waiting_bytes.clone();
        let latency = self.latency.clone();
        let node = node.clone();
        flying.spawn(async move {
            let began = Instant::now();
            let outcome = match (encoded, node.raft()) {
                (Err(error), _) => Err(Refusal::Unreadable(error.to_string())),
                (_, None) => Err(Refusal::NotLeader(None)),
                (Ok(proposal), Some(raft)) => raft.client_write(proposal).await.map_or_else(
                    |error| Err(refusal(error)),
                    |response| Ok(Done { index: response.log_id.index(), reply: response.data }),
                ),
            };
            if outcome.is_ok() {
                observe(&latency, began.elapsed());
            }
            waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            for reply in replies {
                // The caller may have given up waiting.
                let _gone = reply.send(outcome.clone());
            }
        });
    }
}

fn observe(latency: &Mutex<Histogram>, took: Duration) {
    let mut latency = latency.lock().unwrap_or_else(PoisonError::into_inner);
    latency.observe(took.as_secs_f64());
}

fn refusal(error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> Refusal {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => Refusal::NotLeader(to.leader_id),
        other => Refusal::Submit(SubmitError::Unavailable(other.to_string())),
    }
}
