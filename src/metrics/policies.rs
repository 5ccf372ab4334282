//! Where policies come from, and how the policy file fares.

use super::sample::{counters, gauge};
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of the policy file.
#[derive(Debug, Default)]
pub struct PolicyCounters {
    good: AtomicU64,
    bad: AtomicU64,
}

impl PolicyCounters {
    /// Counts a content of the file, good or bad.
    pub fn file(&self, is_good: bool) {
        let counter = if is_good { &self.good } else { &self.bad };
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>, was_pushed: bool) -> fmt::Result {
        let pushed = f64::from(u8::from(was_pushed));
        gauge(
            encoder,
            "prefixd_policy_pushed",
            "1 when a policy set was pushed, so that no policy file counts",
            pushed,
        )?;
        counters(
            encoder,
            "prefixd_policy_file_contents",
            "Contents of the policy file that were read, each once",
            [("good", &self.good), ("bad", &self.bad)].map(|(result, n)| ([("result", result)], n.load(Relaxed))),
        )
    }
}
