//! The ingest side of every node: deltas of all streams run in a few lanes, one replica always in the same lane, so
//! that its order is kept. A lane has one batch in flight, under its (session, sequence); a batch whose answer was
//! lost is sent again under the same number, and later batches of the lane wait behind it. That is what keeps a retry
//! from resurrecting what was evicted in between.

use crate::ambient::Ambient;
use crate::face::SubmitError;
use crate::proposer::{Done, Refusal};
use prefixd_index::command::{Batch, Command};
use prefixd_index::delta::Delta;
use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Lanes of a node: sessions that it may have open.
const LANES: usize = 16;
/// Submissions that may wait in one lane, beside the limit in bytes.
const LANE_SUBMISSIONS: usize = 8_192;
/// First and longest pause between two tries of one batch.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// Allowance for what a delta weighs beside its hashes.
const DELTA_OVERHEAD_BYTES: usize = 64;

/// Brings one command to the leader, wherever it is, once. It waits for a leader itself, within reason.
pub(crate) trait Carrier: Ambient {
    /// One try.
    fn carry(
        &self,
        command: Command,
        bytes: usize,
        until: Instant,
    ) -> impl Future<Output = Result<Done, Refusal>> + Send;
    /// Returns once this node has applied the log up to `index`; false when `until` came first.
    fn applied(&self, index: u64, until: Instant) -> impl Future<Output = bool> + Send;
}

/// Who waits for a submission.
type Reply = oneshot::Sender<Result<u64, SubmitError>>;

struct Submission {
    deltas: Vec<Delta>,
    bytes: usize,
    reply: Reply,
}

/// The way into the lanes.
#[derive(Clone)]
pub(crate) struct Lanes {
    lanes: Vec<mpsc::Sender<Submission>>,
    waiting_bytes: Arc<AtomicUsize>,
    limit_bytes: usize,
    /// Submissions that are not answered yet.
    unanswered: watch::Sender<usize>,
}

/// How lanes batch.
#[derive(Copy, Clone, Debug)]
pub(crate) struct LaneLimits {
    pub(crate) batch_bytes: usize,
    pub(crate) queue_bytes: usize,
    pub(crate) timeout: Duration,
}

impl Lanes {
    /// Starts the lanes, until `ended`; `session` draws one session id a lane.
    pub(crate) fn start<C: Carrier>(
        carrier: Arc<C>,
        limits: LaneLimits,
        mut session: impl FnMut() -> u128,
        ended: &CancellationToken,
    ) -> Self {
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let unanswered = watch::Sender::new(0);
        let lanes = (0..LANES)
            .map(|_| {
                let (send, queue) = mpsc::channel(LANE_SUBMISSIONS);
                let lane = Lane {
                    queue,
                    carrier: carrier.clone(),
                    limits,
                    session: session(),
                    sequence: 0,
                    waiting_bytes: waiting_bytes.clone(),
                    unanswered: unanswered.clone(),
                    held: None,
                };
                let ended = ended.clone();
                carrier.spawn(async move {
                    // Whether it was stopped or has run out of senders: it is over.
                    let _ended = ended.run_until_cancelled(lane.run()).await;
                });
                send
            })
            .collect();
        Self { lanes, waiting_bytes, limit_bytes: limits.queue_bytes, unanswered }
    }

    /// Bytes that wait or are in flight.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// Waits until everything taken in so far is answered.
    pub(crate) async fn drained(&self) {
        // The sender lives as long as this does.
        let mut unanswered = self.unanswered.subscribe();
        let _ended = unanswered.wait_for(|unanswered| *unanswered == 0).await;
    }

    /// Takes deltas in at once, in order behind what was submitted before, and gives a future for their outcome:
    /// the highest log index that holds any of them. Dropping the future does not take them back.
    pub(crate) fn submit(
        &self,
        deltas: Vec<Delta>,
    ) -> impl Future<Output = Result<u64, SubmitError>> + Send + 'static + use<> {
        let entered = self.enter(deltas);
        async move {
            let mut index = 0;
            for receive in entered? {
                let stopping = || SubmitError::Unavailable("this node is stopping".into());
                index = index.max(receive.await.unwrap_or_else(|_| Err(stopping()))?);
            }
            Ok(index)
        }
    }

    fn enter(&self, deltas: Vec<Delta>) -> Result<Vec<oneshot::Receiver<Result<u64, SubmitError>>>, SubmitError> {
        let mut by_lane: BTreeMap<usize, (Vec<Delta>, usize)> = BTreeMap::new();
        let mut total = 0;
        for delta in deltas {
            let bytes = weight(&delta);
            total += bytes;
            let (lane, held) = by_lane.entry(lane_of(&delta)).or_default();
            lane.push(delta);
            *held += bytes;
        }
        let full = |what| SubmitError::QueueFull(format!("this node's {what}"));
        if self.waiting_bytes.fetch_add(total, Ordering::Relaxed).saturating_add(total) > self.limit_bytes {
            self.waiting_bytes.fetch_sub(total, Ordering::Relaxed);
            return Err(full("queue holds its limit of bytes"));
        }
        let mut waiting = Vec::with_capacity(by_lane.len());
        let mut refused = None;
        for (lane, (deltas, bytes)) in by_lane {
            let (reply, receive) = oneshot::channel();
            if refused.is_none() {
                self.unanswered.send_modify(|unanswered| *unanswered += 1);
                if self.lanes[lane].try_send(Submission { deltas, bytes, reply }).is_ok() {
                    waiting.push(receive);
                    continue;
                }
                self.unanswered.send_modify(|unanswered| *unanswered -= 1);
            }
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            refused = Some(full("lane holds its limit of submissions"));
        }
        refused.map_or(Ok(waiting), Err)
    }
}

/// The lane of a replica. Which one is a matter of this process alone.
fn lane_of(delta: &Delta) -> usize {
    let key = match delta {
        Delta::Update(update) => (&update.tenant, &update.model, &update.replica),
        Delta::Event(event) => (&event.tenant, &event.model, &event.replica),
    };
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    usize::try_from(hasher.finish() % LANES as u64).unwrap_or(0)
}

/// About how many bytes a delta takes in the log.
fn weight(delta: &Delta) -> usize {
    match delta {
        Delta::Update(update) => {
            let ids = update.replica.len() + update.tenant.len() + update.model.len() + update.scheme.len();
            let entries = update.entries.iter().map(|entry| {
                let chain = entry.chain.as_ref().map_or(0, prefixd_index::delta::Chain::packed_bytes);
                let exact = entry.exact.as_ref().map_or(0, |exact| exact.hash.len() + 4);
                chain + exact + entry.adapter.len() + 8
            });
            DELTA_OVERHEAD_BYTES + ids + entries.sum::<usize>()
        }
        Delta::Event(event) => {
            DELTA_OVERHEAD_BYTES + event.replica.len() + event.tenant.len() + event.model.len() + 128
        }
    }
}

/// Tries until the command is committed or its time is over.
pub(crate) async fn carry_until<C: Carrier>(
    carrier: &C,
    command: Command,
    bytes: usize,
    until: Instant,
) -> Result<Done, SubmitError> {
    let mut pause = BACKOFF.0;
    loop {
        let last = match carrier.carry(command.clone(), bytes, until).await {
            Ok(done) => return Ok(done),
            Err(Refusal::Unreadable(reason)) => return Err(SubmitError::Unavailable(reason)),
            // Nothing that another try would change: whoever called is told now, and may ask another node.
            Err(Refusal::Submit(error @ SubmitError::NoRoom(_))) => return Err(error),
            Err(Refusal::NotLeader(_)) => SubmitError::Unavailable("no leader took it".into()),
            Err(Refusal::Submit(error)) => error,
        };
        if carrier.now() + pause >= until {
            return Err(last);
        }
        carrier.sleep(pause.mul_f64(0.5 + carrier.chance())).await;
        pause = (pause * 2).min(BACKOFF.1);
    }
}

struct Lane<C> {
    queue: mpsc::Receiver<Submission>,
    carrier: Arc<C>,
    limits: LaneLimits,
    session: u128,
    sequence: u64,
    waiting_bytes: Arc<AtomicUsize>,
    unanswered: watch::Sender<usize>,
    /// Taken from the queue, but too large to join the batch before it.
    held: Option<Submission>,
}

impl<C: Carrier> Lane<C> {
    async fn run(mut self) {
        while let Some(first) = self.next().await {
            let (deltas, bytes, replies) = self.gather(first);
            self.sequence += 1;
            let batch = Batch { session: self.session, sequence: self.sequence, producer: None, deltas };
            let until = self.carrier.now() + self.limits.timeout;
            let outcome =
                carry_until(&*self.carrier, Command::Deltas(vec![batch]), bytes, until).await.map(|done| done.index);
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.answer(outcome, until, replies);
        }
    }

    async fn next(&mut self) -> Option<Submission> {
        match self.held.take() {
            Some(held) => Some(held),
            None => self.queue.recv().await,
        }
    }

    /// Joins what waits into one batch. Callers that have gone are joined all the same: what was taken in is applied.
    fn gather(&mut self, first: Submission) -> (Vec<Delta>, usize, Vec<Reply>) {
        let (mut deltas, mut bytes, mut replies) = (first.deltas, first.bytes, vec![first.reply]);
        while bytes < self.limits.batch_bytes {
            let Ok(next) = self.queue.try_recv() else { break };
            if bytes + next.bytes > self.limits.batch_bytes {
                self.held = Some(next);
                break;
            }
            bytes += next.bytes;
            deltas.extend(next.deltas);
            replies.push(next.reply);
        }
        (deltas, bytes, replies)
    }

    /// Answers once the batch is applied here; the lane goes on meanwhile.
    fn answer(&self, outcome: Result<u64, SubmitError>, until: Instant, replies: Vec<Reply>) {
        let carrier = self.carrier.clone();
        let unanswered = self.unanswered.clone();
        self.carrier.spawn(async move {
            let outcome = match outcome {
                Ok(index) if !carrier.applied(index, until).await => {
                    Err(SubmitError::Unavailable("committed, but not applied on this node in time".into()))
                }
                other => other,
            };
            let answered = replies.len();
            for reply in replies {
                // The caller may have given up waiting.
                let _gone = reply.send(outcome.clone());
            }
            unanswered.send_modify(|unanswered| *unanswered -= answered);
        });
    }
}

#[cfg(test)]
mod tests;
