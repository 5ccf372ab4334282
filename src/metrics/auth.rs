//! Counts of who was let in on the controller's port.

use super::sample::counters;
use crate::auth::Denial;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

const RESULTS: [&str; 4] = ["ok", "unauth", "forbidden", "error"];

/// A path of the controller's port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Surface {
    /// /snapshot.
    Snapshot,
    /// /policy.
    Policy,
    /// /probe.
    Probe,
}

/// Judged calls by path and result.
#[derive(Debug, Default)]
pub struct AuthCounters {
    snapshot: [AtomicU64; RESULTS.len()],
    policy: [AtomicU64; RESULTS.len()],
    probe: [AtomicU64; RESULTS.len()],
}

impl AuthCounters {
    /// Counts one call.
    pub fn count(&self, surface: Surface, judged: &Result<(), Denial>) {
        let [ok, unauth, forbidden, error] = match surface {
            Surface::Snapshot => &self.snapshot,
            Surface::Policy => &self.policy,
            Surface::Probe => &self.probe,
        };
        let count = match judged {
            Ok(()) => ok,
            Err(Denial::Unauthenticated) => unauth,
            Err(Denial::Forbidden) => forbidden,
            Err(Denial::Unavailable(_)) => error,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, counts) in [
            ("inferencecache_snapshot_auth", "Judged calls of /snapshot", &self.snapshot),
            ("inferencecache_policy_auth", "Judged calls of /policy", &self.policy),
            ("inferencecache_probe_auth", "Judged calls of /probe", &self.probe),
        ] {
            let samples = RESULTS.iter().zip(counts);
            let samples = samples.map(|(result, n)| ([("result", *result)], n.load(Ordering::Relaxed)));
            counters(encoder, name, help, samples)?;
        }
        Ok(())
    }
}
