//! Log entries as one stream from leader to follower: the next request leaves before the last one is answered, so that a
//! follower hears of a commit while its disk still writes the entries behind it. This file owns both ends; what one
//! append is and may do is the same as without a stream, in [`crate::network`] and [`crate::service`].
//!
//! An append without entries that begins a stream is a heartbeat or a probe: those go by a call of their own, with its
//! shorter limit.

use crate::dial::Purpose;
use crate::network::{Link, append_to_wire};
use crate::node::Raft;
use crate::service::NodeService;
use crate::types::{LogId, TypeConfig, wire_pos, wire_vote};
use futures::{FutureExt, Stream, StreamExt, stream};
use openraft::base::{BoxFuture, BoxStream};
use openraft::error::{NetworkError, RPCError};
use openraft::network::{RPCOption, stream_append_sequential};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult};
use openraft::{AnyError, OptionalSend};
use prefixd_proto::node as wire;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// Requests of one stream that may wait for their answer. HTTP/2's windows bound their bytes.
const IN_FLIGHT: usize = 32;
/// What operators are told of it.
const WHAT: &str = "append";

type Answer = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>;
/// What openraft is given: answers in the order of the requests.
pub(crate) type Appending<'s> = Result<BoxStream<'s, Answer>, RPCError<TypeConfig>>;

/// A request that is not answered yet.
struct Sent {
    prev: Option<LogId>,
    last: Option<LogId>,
    has_entries: bool,
    at: Instant,
}

impl Sent {
    fn now(rpc: &AppendEntriesRequest<TypeConfig>) -> Self {
        let last = rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id);
        Self { prev: rpc.prev_log_id, last, has_entries: !rpc.entries.is_empty(), at: Instant::now() }
    }
}

/// The leader's end of a stream. What is to be sent is polled together with what comes back, by openraft and in no task
/// of its own: openraft's own locks are held while it waits for something to send, and go with this.
struct Session<'s, S> {
    link: &'s Link,
    /// None once there is nothing more to send.
    sending: Option<(S, mpsc::Sender<wire::AppendEntriesRequest>)>,
    answers: Streaming<wire::AppendEntriesResponse>,
    unanswered: VecDeque<Sent>,
    limit: Duration,
}

/// Sends appends as they come, each within the limit of an append that carries entries.
pub(crate) fn append<'s, S>(link: &'s mut Link, mut input: S, option: RPCOption) -> BoxFuture<'s, Appending<'s>>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
{
    Box::pin(async move {
        let Some(first) = input.next().await else { return Ok(stream::empty().boxed()) };
        if link.knows_no_stream {
            return stream_append_sequential(link, stream::iter([first]).chain(input), option).await;
        }
        if first.entries.is_empty() {
            return stream_append_sequential(link, stream::iter([first]), option).await;
        }
        let (send, outgoing) = mpsc::channel(IN_FLIGHT);
        let unanswered = VecDeque::from([Sent::now(&first)]);
        // There is room for all that may be unanswered.
        let _sent = send.try_send(append_to_wire(&link.network.me, link.target, &first)?);
        let limit = link.network.append_timeout;
        let mut client = link.client(Purpose::Raft)?;
        let answers = match tokio::time::timeout(limit, client.stream_append(ReceiverStream::new(outgoing))).await {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                link.knows_no_stream = true;
                let why = "it has no stream for appends: from here on each is a call";
                return Err(NetworkError::new(&AnyError::error(why)).into());
            }
            Ok(Err(status)) => return Err(link.refused(WHAT, &status).into()),
            Err(_) => return Err(link.unanswered(WHAT, limit).into()),
        };
        let session = Session { link, sending: Some((input, send)), answers, unanswered, limit };
        Ok(stream::unfold(Some(session), |session| async { session?.next().await }).boxed())
    })
}

impl<'s, S> Session<'s, S>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
{
    /// The next answer, and the session if it goes on.
    async fn next(mut self) -> Option<(Answer, Option<Self>)> {
        loop {
            let has_room = self.unanswered.len() < IN_FLIGHT;
            let sending = self.sending.as_mut().filter(|_| has_room);
            let is_sending = sending.is_some();
            let next = async { sending?.0.next().await };
            let due = self.unanswered.front().map(|sent| sent.at + self.limit);
            let late = async {
                tokio::time::sleep_until(due?).await;
                Some(())
            };
            tokio::select! {
                biased;
                answer = self.answers.message() => return Some(self.answered(answer)),
                rpc = next, if is_sending => {
                    let failed = match rpc {
                        Some(rpc) => self.send(&rpc).err(),
                        None => {
                            self.sending = None;
                            None
                        }
                    };
                    if let Some(error) = failed {
                        return Some((Err(error), None));
                    }
                    if self.sending.is_none() && self.unanswered.is_empty() {
                        return None;
                    }
                }
                Some(()) = late, if due.is_some() => {
                    return Some((Err(self.link.unanswered(WHAT, self.limit).into()), None));
                }
            }
        }
    }

    fn send(&mut self, rpc: &AppendEntriesRequest<TypeConfig>) -> Result<(), RPCError<TypeConfig>> {
        let message = append_to_wire(&self.link.network.me, self.link.target, rpc)?;
        let Some((_, send)) = &self.sending else { return Ok(()) };
        // It fails when the connection is gone, and then the answers say why.
        let _sent = send.try_send(message);
        self.unanswered.push_back(Sent::now(rpc));
        Ok(())
    }

    fn answered(mut self, answer: Result<Option<wire::AppendEntriesResponse>, Status>) -> (Answer, Option<Self>) {
        let message = match answer {
            Ok(Some(message)) => message,
            Ok(None) => return (Err(self.link.failed(WHAT, "the peer ended the stream").into()), None),
            Err(status) => return (Err(self.link.refused(WHAT, &status).into()), None),
        };
        let Some(sent) = self.unanswered.pop_front() else {
            return (Err(self.link.failed(WHAT, "an answer to nothing").into()), None);
        };
        self.link.answered();
        if sent.has_entries {
            self.link.took_entries();
        }
        let result = match self.link.append_answer(&message) {
            Ok(AppendEntriesResponse::Conflict) if sent.prev.is_none() => {
                return (Err(self.link.failed(WHAT, "a conflict at nothing").into()), None);
            }
            Ok(answer) => answer.into_stream_result(sent.prev, sent.last),
            Err(error) => return (Err(error.into()), None),
        };
        let goes_on = result.is_ok() && (self.sending.is_some() || !self.unanswered.is_empty());
        (Ok(result), goes_on.then_some(self))
    }
}

/// What the follower's end remembers of a stream.
#[derive(Default)]
struct Taken {
    /// Why no more is taken.
    refused: Option<Status>,
    /// What the leader said to be committed.
    commit: Option<u64>,
}

/// The follower's end: each request is admitted by itself, and the first one that isn't ends the stream.
pub(crate) fn serve(
    service: NodeService,
    raft: &Raft,
    requests: Streaming<wire::AppendEntriesRequest>,
) -> futures::stream::BoxStream<'static, Result<wire::AppendEntriesResponse, Status>> {
    let taken = Arc::new(Mutex::new(Taken::default()));
    let (admitting, at_end) = (taken.clone(), taken.clone());
    let node = service.0.clone();
    let input = stream::unfold((service, requests, admitting), |(service, mut requests, taken)| async move {
        let request = match requests.message().await {
            Ok(request) => request?,
            // The leader is gone, and nobody reads what more is said.
            Err(_) => return None,
        };
        match service.admit_append(request) {
            Ok((_, rpc)) => {
                lock(&taken).commit = rpc.leader_commit.map(|id| id.index());
                Some((rpc, (service, requests, taken)))
            }
            Err(status) => {
                lock(&taken).refused = Some(status);
                None
            }
        }
    });
    let answers = raft.stream_append(input).map(move |answer| {
        let answer = answer.map_err(crate::service::ended)?;
        if !matches!(answer, Err(StreamAppendError::HigherVote(_))) {
            node.heard_leader(lock(&taken).commit);
        }
        Ok(append_result(answer))
    });
    let refused = async move { lock(&at_end).refused.take() }.into_stream();
    answers.chain(refused.filter_map(|refused| async { refused.map(Err) })).boxed()
}

fn lock(taken: &Mutex<Taken>) -> std::sync::MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

fn append_result(answer: StreamAppendResult<TypeConfig>) -> wire::AppendEntriesResponse {
    use wire::append_entries_response::Outcome;
    let mut response = wire::AppendEntriesResponse::default();
    let outcome = match answer {
        Ok(matched) => {
            response.matched = matched.as_ref().map(wire_pos);
            Outcome::Partial
        }
        Err(StreamAppendError::Conflict(_)) => Outcome::Conflict,
        Err(StreamAppendError::HigherVote(vote)) => {
            response.vote = Some(wire_vote(&vote));
            Outcome::HigherVote
        }
    };
    response.set_outcome(outcome);
    response
}

#[cfg(test)]
mod tests;
