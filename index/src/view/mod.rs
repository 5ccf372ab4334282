//! The readers' side of the index.

use crate::applied::Totals;
use crate::delta::Stats;
use crate::lookup::{LookupAnswer, LookupRequest, RankConfig, Reason};
use std::sync::Arc;

/// A lock-free reader: cheap to clone, shared between threads, always the newest state.
#[derive(Clone)]
pub struct View;

/// Buffers that a thread keeps between lookups.
#[derive(Default)]
pub struct LookupScratch;

/// GetCacheState's aggregate of one (tenant, model).
#[derive(Clone, Debug, PartialEq, Default)]
pub struct CacheState {
    /// Stats rows, sorted by replica id bytes.
    pub replicas: Vec<(Arc<str>, Stats)>,
    /// Distinct prefixes.
    pub total_prefixes: u64,
}

/// One (tenant, replica) of GET /snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaRow {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The replica.
    pub replica: Arc<str>,
    /// The stats of the model with the latest liveness, and that liveness in microseconds.
    pub stats: Option<(Stats, u64)>,
    /// Entries of the replica in the tenant.
    pub entries: u64,
    /// The newest last-seen among them in microseconds; 0 for none.
    pub last_event_us: u64,
}

/// All of GET /snapshot, sorted.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct StateRows {
    /// One row a (tenant, replica), sorted by tenant, then replica.
    pub replicas: Vec<ReplicaRow>,
    /// (tenant, distinct prefixes), sorted.
    pub tenants: Vec<(Arc<str>, u64)>,
    /// Distinct prefixes in all, the reserved tenant left out.
    pub total_prefixes: u64,
}

/// What the writer published after the last apply.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Published {
    /// The log index applied last.
    pub applied_index: u64,
    /// The state's time in microseconds.
    pub time_us: u64,
    /// The digest of the state.
    pub digest: u128,
    /// Sizes of the state.
    pub totals: Totals,
}

impl View {
    /// Answers a lookup at cluster time `now_us`: the whole contract but deadlines and tokenizing.
    pub fn lookup<B: AsRef<[u8]>>(
        &self,
        _request: &LookupRequest<'_, B>,
        _now_us: u64,
        _config: &RankConfig,
        _scratch: &mut LookupScratch,
    ) -> LookupAnswer {
        LookupAnswer::early(Reason::NoHint)
    }

    /// True when the request's answer depends on the tokens of its prompt text.
    pub fn wants_prompt_tokens<B: AsRef<[u8]>>(&self, _request: &LookupRequest<'_, B>, _config: &RankConfig) -> bool {
        false
    }

    /// The tenant's lookup timeout in milliseconds.
    pub fn lookup_timeout_ms(&self, _tenant: &str, config: &RankConfig) -> Option<u32> {
        config.lookup_timeout_ms
    }

    /// The aggregate of GetCacheState.
    pub fn cache_state(&self, _tenant: &str, _model: &str) -> CacheState {
        CacheState::default()
    }

    /// True when the index holds anything under this tenant.
    pub fn knows_tenant(&self, _tenant: &str) -> bool {
        false
    }

    /// True when the index holds anything under this model, whatever the tenant.
    pub fn knows_model(&self, _model: &str) -> bool {
        false
    }

    /// Each model with its distinct prefixes, sorted; the reserved tenant is left out.
    pub fn models(&self) -> Vec<(Arc<str>, u64)> {
        Vec::new()
    }

    /// The rows of GET /snapshot, by a scan of the whole index.
    pub fn state_rows(&self) -> StateRows {
        StateRows::default()
    }

    /// True when a lookup of the self-test's block finds its replica, past the reserved tenant and all floors.
    pub fn probe(&self, _model: &str, _scheme: &str, _replica: &str, _hash: &[u8], _now_us: u64) -> bool {
        false
    }

    /// What the writer published after its last apply.
    pub fn published(&self) -> Published {
        Published::default()
    }
}
