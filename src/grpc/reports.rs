//! ReportCacheState and PublishEvent: messages become deltas, deltas become batches in arrival order, and an Ack means
//! that every batch is committed and applied here. Batches of one stream are pipelined; what is unacknowledged is
//! bounded, so that a fast producer is slowed down by flow control instead of filling memory.

use super::Edge;
use crate::auth::Grant;
use futures::stream::FuturesOrdered;
use futures::{FutureExt, StreamExt};
use prefixd_index::delta::Delta;
use prefixd_proto::inferencecache::{Ack, CacheEvent, CacheStateUpdate};
use prefixd_proto::ingest::{self, Drops};
use prefixd_raft::SubmitError;
use prost::Message;
use tonic::{Status, Streaming};

/// Where a batch is closed: in bytes of messages, and in deltas.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_DELTAS: usize = 1_024;

const ACCEPTED: Ack = Ack { accepted: true, reason_code: String::new() };

/// Deltas that go together, and the bytes of the messages that they came from.
#[derive(Default)]
struct Gathered {
    deltas: Vec<Delta>,
    bytes: usize,
}

impl Edge {
    /// Takes in a whole stream. The first failure ends it; what arrived before may have been applied.
    pub(super) async fn report(&self, mut stream: Streaming<CacheStateUpdate>, grant: Grant) -> Result<Ack, Status> {
        let _open = self.metrics.ingest.open_stream();
        let mut in_flight = FuturesOrdered::new();
        let mut unacked_bytes = 0;
        // How the producer ended its side: None while it may send more.
        let mut ended: Option<Result<(), Status>> = None;
        loop {
            let room = ended.is_none() && unacked_bytes < self.max_unacked_bytes;
            tokio::select! {
                biased;
                Some((bytes, result)) = in_flight.next(), if !in_flight.is_empty() => {
                    let result: Result<u64, SubmitError> = result;
                    result.map_err(|error| self.refused(error))?;
                    unacked_bytes -= bytes;
                }
                () = self.stopping.cancelled(), if ended.is_none() => return Err(self.stopping_status()),
                message = stream.message(), if room => {
                    let mut gathered = Gathered::default();
                    ended = self.gather(message, &mut stream, &grant, &mut gathered);
                    if !gathered.deltas.is_empty() {
                        let bytes = gathered.bytes;
                        unacked_bytes += bytes;
                        in_flight.push_back(self.node.submit(gathered.deltas).map(move |result| (bytes, result)));
                    }
                }
            }
            if let Some(end) = ended.take_if(|_| in_flight.is_empty()) {
                return end.map(|()| ACCEPTED);
            }
        }
    }

    /// Takes in one event.
    pub(super) async fn publish(&self, event: CacheEvent) -> Result<Ack, Status> {
        if self.stopping.is_cancelled() {
            return Err(self.stopping_status());
        }
        self.metrics.ingest.event();
        let mut drops = Drops::default();
        let event = ingest::event(event, &mut drops);
        self.metrics.ingest.drops(&drops);
        if let Some(event) = event {
            let submitted = self.node.submit(vec![Delta::Event(event)]).await;
            submitted.map_err(|error| self.refused(error))?;
        }
        Ok(ACCEPTED)
    }

    /// Takes a first message and all that are there already, up to a batch. Says how the stream ended, if it did.
    fn gather(
        &self,
        first: Result<Option<CacheStateUpdate>, Status>,
        stream: &mut Streaming<CacheStateUpdate>,
        grant: &Grant,
        gathered: &mut Gathered,
    ) -> Option<Result<(), Status>> {
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Ok(Some(update)) => match self.tenants.check(grant, &update.tenant_id) {
                    Ok(()) => self.take(update, gathered),
                    Err(denied) => return Some(Err(denied)),
                },
                Ok(None) => return Some(Ok(())),
                Err(status) => return Some(Err(status)),
            }
            let full = gathered.bytes >= BATCH_BYTES || gathered.deltas.len() >= BATCH_DELTAS;
            next = if full { None } else { stream.message().now_or_never() };
        }
        None
    }

    fn take(&self, update: CacheStateUpdate, gathered: &mut Gathered) {
        self.metrics.ingest.update();
        gathered.bytes += update.encoded_len();
        let mut drops = Drops::default();
        gathered.deltas.extend(ingest::update(update, &mut drops).map(Delta::Update));
        self.metrics.ingest.drops(&drops);
    }

    fn refused(&self, error: SubmitError) -> Status {
        match error {
            SubmitError::QueueFull(_) | SubmitError::NoRoom(_) => {
                self.metrics.ingest.resource_exhausted();
                Status::resource_exhausted(error.to_string())
            }
            SubmitError::Unavailable(_) => {
                self.metrics.ingest.unavailable();
                Status::unavailable(error.to_string())
            }
        }
    }

    fn stopping_status(&self) -> Status {
        self.metrics.ingest.unavailable();
        Status::unavailable("this node is stopping: send what was not acknowledged to another one")
    }
}
