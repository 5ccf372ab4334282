//! Lookups by model, reason and latency. Recording takes no lock and, for a model seen before, allocates nothing. A
//! model that the index doesn't hold is counted under `other`, so that requests can't make series at will.

use super::sample::{Buckets, counters, histograms};
use super::{MAX_LABEL_VALUES, OTHER};
use prefixd_index::Reason;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the latency buckets, in seconds.
pub const LATENCY_BOUNDS: [f64; 10] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1];
const LATENCY_BOUNDS_NS: [u64; 10] =
    [100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 25_000_000, 50_000_000, 100_000_000];

/// Counters of all models.
#[derive(Debug, Default)]
pub struct LookupCounters {
    models: papaya::HashMap<Box<str>, Arc<Cells>>,
    other: Cells,
}

/// Counters of one model.
#[derive(Debug, Default)]
struct Cells {
    /// By reason, then without and with scores.
    calls: [[AtomicU64; 2]; Reason::ALL.len()],
    /// By bucket, the last one without bound.
    latency: [AtomicU64; LATENCY_BOUNDS.len() + 1],
    latency_sum_ns: AtomicU64,
}

impl Cells {
    fn record(&self, reason: Reason, hint_used: bool, latency: Duration) {
        if let Some(cell) = self.calls.get(reason as usize).and_then(|pair| pair.get(usize::from(hint_used))) {
            cell.fetch_add(1, Relaxed);
        }
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS_NS.iter().position(|bound| ns <= *bound).unwrap_or(LATENCY_BOUNDS_NS.len());
        if let Some(cell) = self.latency.get(bucket) {
            cell.fetch_add(1, Relaxed);
        }
        self.latency_sum_ns.fetch_add(ns, Relaxed);
    }

    fn buckets(&self) -> Buckets {
        let bounds = LATENCY_BOUNDS.into_iter().chain([f64::INFINITY]);
        let buckets = bounds.zip(&self.latency).map(|(bound, n)| (bound, n.load(Relaxed))).collect();
        Buckets { buckets, sum_seconds: Duration::from_nanos(self.latency_sum_ns.load(Relaxed)).as_secs_f64() }
    }
}

impl LookupCounters {
    /// Counts one call. `known` says that the index holds the model.
    pub fn record(&self, model: &str, known: bool, reason: Reason, hint_used: bool, latency: Duration) {
        let models = self.models.pin();
        let by_name = known && model != OTHER;
        let cells = match models.get(model) {
            Some(cells) if by_name => cells,
            None if by_name && models.len() < MAX_LABEL_VALUES => models.get_or_insert_with(model.into(), Arc::default),
            _ => &self.other,
        };
        cells.record(reason, hint_used, latency);
    }

    /// Forgets the models that aren't listed any more.
    pub(super) fn keep(&self, listed: impl Fn(&str) -> bool) {
        let models = self.models.pin();
        if models.len() >= MAX_LABEL_VALUES {
            models.retain(|model, _| listed(model));
        }
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let pinned = self.models.pin();
        let mut models: Vec<(&str, &Cells)> = pinned.iter().map(|(model, cells)| (&**model, &**cells)).collect();
        models.sort_by_key(|(model, _)| *model);
        models.push((OTHER, &self.other));
        let calls = models.iter().flat_map(|(model, cells)| {
            Reason::ALL.into_iter().zip(&cells.calls).flat_map(move |(reason, pair)| {
                ["false", "true"].into_iter().zip(pair).map(move |(used, n)| {
                    ([("model", *model), ("reason_code", reason.as_str()), ("hint_used", used)], n.load(Relaxed))
                })
            })
        });
        counters(
            encoder,
            "inferencecache_lookup_route_calls",
            "LookupRoute calls by model, reason_code and whether scores were delivered",
            calls.filter(|(_, n)| *n > 0),
        )?;
        histograms(
            encoder,
            "inferencecache_lookup_route_latency_seconds",
            "Time spent in the LookupRoute handler",
            models.iter().map(|(model, cells)| ([("model", *model)], cells.buckets())),
        )
    }
}
