//! Figures about a log for monitoring: sizes, syncs, and how long the syncs took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::device::LogFile;

/// Upper bounds of the buckets of [`SyncLatency`], in microseconds.
pub const LATENCY_BOUNDS_US: [u64; 14] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000];

/// How long syncs took, since the log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncLatency {
    /// How many syncs took at most the bound of the same place in [`LATENCY_BOUNDS_US`].
    pub cumulative: [u64; LATENCY_BOUNDS_US.len()],
    /// How many syncs there were.
    pub count: u64,
    /// How long they took together, in microseconds.
    pub sum_us: u64,
}

/// Figures about a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Bytes of the log's files.
    pub disk_bytes: u64,
    /// Records that can be read.
    pub records: u64,
    /// Bytes of bodies that are not durable yet.
    pub pending_bytes: u64,
    /// Bytes of bodies that are kept in memory, pending ones included.
    pub tail_bytes: u64,
    /// How long the writer has been making durable what it has in hand; `None` when it waits for work. Votes and
    /// entries that come in meanwhile wait behind it, so a disk that stands still shows here before any sync ends.
    pub writing_for: Option<Duration>,
    /// Commits since open.
    pub commits: u64,
    /// Syncs of the store since open.
    pub store_syncs: u64,
    /// Syncs of the mark since open.
    pub mark_syncs: u64,
    /// How long the syncs of the store took.
    pub store_sync_latency: SyncLatency,
}

/// Counts syncs; shared by both files.
#[derive(Debug, Default)]
pub(super) struct SyncMeter {
    buckets: [AtomicU64; LATENCY_BOUNDS_US.len()],
    store_syncs: AtomicU64,
    store_sum_us: AtomicU64,
    mark_syncs: AtomicU64,
}

impl SyncMeter {
    pub fn record(&self, file: LogFile, took: Duration) {
        if file == LogFile::Mark {
            self.mark_syncs.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.store_syncs.fetch_add(1, Ordering::Relaxed);
        self.store_sum_us.fetch_add(took_us, Ordering::Relaxed);
        if let Some(at) = LATENCY_BOUNDS_US.iter().position(|bound_us| took_us <= *bound_us) {
            self.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn mark_syncs(&self) -> u64 {
        self.mark_syncs.load(Ordering::Relaxed)
    }

    pub fn store_latency(&self) -> SyncLatency {
        let mut latency = SyncLatency {
            count: self.store_syncs.load(Ordering::Relaxed),
            sum_us: self.store_sum_us.load(Ordering::Relaxed),
            ..SyncLatency::default()
        };
        let mut sum = 0;
        for (cumulative, bucket) in latency.cumulative.iter_mut().zip(&self.buckets) {
            sum += bucket.load(Ordering::Relaxed);
            *cumulative = sum;
        }
        latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let meter = SyncMeter::default();
        for us in [50, 100, 101, 4_000, 9_000_000] {
            meter.record(LogFile::Store, Duration::from_micros(us));
        }
        meter.record(LogFile::Mark, Duration::from_micros(7));
        let latency = meter.store_latency();
        assert_eq!(latency.cumulative[..6], [2, 3, 3, 3, 3, 4]);
        assert_eq!((latency.cumulative[13], latency.count, meter.mark_syncs()), (4, 5, 1));
    }
}
