//! What this node counts and what /metrics shows. The edges write atomics and never wait; everything else is read
//! from the node when somebody asks. Label values that come from requests are bounded here. docs/METRICS.md lists
//! every series, and a test holds it to that.

pub mod auth;
pub mod contract;
pub mod ingest;
pub mod load;
pub mod lookups;
pub mod own;
pub mod policies;
pub mod process;
pub mod roster;
mod sample;
mod secure;

use crate::security::Security;
use auth::AuthCounters;
use ingest::IngestCounters;
use load::LoadCounters;
use lookups::LookupCounters;
use policies::PolicyCounters;
use prefixd_index::policy::PolicySource;
use prefixd_index::view::Published;
use prefixd_raft::{Node, NodeFigures, NodeStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use roster::Roster;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Most values of one label that comes from outside.
pub const MAX_LABEL_VALUES: usize = 1_000;
/// The label value of what isn't listed by its own name.
pub const OTHER: &str = "other";

/// Everything that this node's edges count.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Lookups.
    pub lookups: LookupCounters,
    /// Updates and events.
    pub ingest: IngestCounters,
    /// Calls of the controller's port that were judged.
    pub auth: AuthCounters,
    /// Calls under way and turned away.
    pub load: LoadCounters,
    /// The policy file.
    pub policies: PolicyCounters,
    roster: Mutex<Roster>,
}

/// What one scrape shows.
struct Scrape {
    status: NodeStatus,
    figures: NodeFigures,
    published: Published,
    models: Vec<(Arc<str>, u64)>,
    known_tenant: Box<dyn Fn(&str) -> bool>,
    security: Arc<Security>,
    policies_pushed: bool,
    resident_bytes: Option<u64>,
}

struct Exposition {
    metrics: Arc<Metrics>,
    scrape: Box<dyn Fn() -> Scrape + Send + Sync>,
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exposition")
    }
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let scrape = (self.scrape)();
        let listed = {
            let mut roster = self.metrics.roster.lock().unwrap_or_else(PoisonError::into_inner);
            roster.update(&scrape.models);
            roster.listed()
        };
        self.metrics.lookups.keep(|model| listed.iter().any(|(name, _)| name.as_ref() == model));
        contract::encode(&mut encoder, &listed, &scrape.figures, &*scrape.known_tenant)?;
        self.metrics.auth.encode(&mut encoder)?;
        secure::encode(&mut encoder, &scrape.security)?;
        self.metrics.lookups.encode(&mut encoder)?;
        self.metrics.ingest.encode(&mut encoder)?;
        self.metrics.load.encode(&mut encoder)?;
        self.metrics.policies.encode(&mut encoder, scrape.policies_pushed)?;
        process::encode(&mut encoder, scrape.resident_bytes, scrape.published.totals.entries)?;
        own::encode(&mut encoder, &scrape.status, &scrape.figures, &scrape.published)
    }
}

/// The registry behind /metrics.
pub fn registry(metrics: Arc<Metrics>, node: Node, security: Arc<Security>) -> Registry {
    let scrape = move || {
        let view = node.view();
        Scrape {
            status: node.status(),
            figures: node.figures(),
            published: view.published(),
            models: view.models(),
            policies_pushed: view.policy_source() == PolicySource::Pushed,
            resident_bytes: process::resident_bytes(),
            known_tenant: Box::new(move |tenant| view.knows_tenant(tenant)),
            security: security.clone(),
        }
    };
    registry_of(Exposition { metrics, scrape: Box::new(scrape) })
}

fn registry_of(exposition: Exposition) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(exposition));
    registry
}

#[cfg(test)]
mod tests;
