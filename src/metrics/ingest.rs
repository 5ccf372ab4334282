//! What producers sent: counts of messages, drops by reason, and calls that ended without an Ack.

use super::sample::{counter, counters, gauge};
use prefixd_proto::ingest::{DropReason, Drops};
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of the ingest calls.
#[derive(Debug, Default)]
pub struct IngestCounters {
    updates: AtomicU64,
    events: AtomicU64,
    drops: [AtomicU64; DropReason::ALL.len()],
    open_streams: AtomicU64,
    resource_exhausted: AtomicU64,
    unavailable: AtomicU64,
}

/// Counts a stream as open for as long as it lives.
#[derive(Debug)]
pub struct OpenStream<'a>(&'a IngestCounters);

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        self.0.open_streams.fetch_sub(1, Relaxed);
    }
}

impl IngestCounters {
    /// Counts a stream.
    pub fn open_stream(&self) -> OpenStream<'_> {
        self.open_streams.fetch_add(1, Relaxed);
        OpenStream(self)
    }

    /// Counts one update as received.
    pub fn update(&self) {
        self.updates.fetch_add(1, Relaxed);
    }

    /// Counts one event as received.
    pub fn event(&self) {
        self.events.fetch_add(1, Relaxed);
    }

    /// Counts what was dropped of a message.
    pub fn drops(&self, drops: &Drops) {
        for (reason, n) in drops.iter() {
            if let Some(cell) = self.drops.get(reason as usize) {
                cell.fetch_add(n, Relaxed);
            }
        }
    }

    /// Counts a call that ended because a queue was full, or a disk short of room.
    pub fn resource_exhausted(&self) {
        self.resource_exhausted.fetch_add(1, Relaxed);
    }

    /// Counts a call that ended because nothing could be committed in time.
    pub fn unavailable(&self) {
        self.unavailable.fetch_add(1, Relaxed);
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let updates = self.updates.load(Relaxed);
        counter(encoder, "prefixd_ingest_updates", "Updates received by ReportCacheState", updates)?;
        let events = self.events.load(Relaxed);
        counter(encoder, "prefixd_ingest_events", "Events received by PublishEvent", events)?;
        let drops = DropReason::ALL.into_iter().zip(&self.drops);
        counters(
            encoder,
            "prefixd_ingest_drops",
            "Updates, entries and events that were dropped as bad, by reason",
            drops.map(|(reason, n)| ([("reason", reason.as_str())], n.load(Relaxed))),
        )?;
        let open = self.open_streams.load(Relaxed) as f64;
        gauge(encoder, "prefixd_ingest_streams", "ReportCacheState streams open now", open)?;
        counters(
            encoder,
            "prefixd_ingest_failures",
            "Ingest calls that ended without an Ack, by status code",
            [
                ([("code", "resource_exhausted")], self.resource_exhausted.load(Relaxed)),
                ([("code", "unavailable")], self.unavailable.load(Relaxed)),
            ],
        )
    }
}
