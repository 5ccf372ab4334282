//! The readers' side of the index: lookups and aggregates at any time from any thread, without a lock and without
//! waiting for the writer. It must never change state. Names are in `tables` and `names`, entries in the store; lookups
//! are answered in `search`, over the matches that the store's `runs` finds.

mod answer;
mod holding;
pub(crate) mod names;
mod paths;
pub(crate) mod pressure;
mod ranking;
mod rows;
mod search;
pub(crate) mod settings;
pub(crate) mod tables;

use crate::applied::Totals;
use crate::delta::Stats;
use crate::limits::RESERVED_TENANT;
use crate::lookup::config::Rules;
use crate::lookup::{LookupAnswer, LookupRequest, RankConfig, resolve};
use crate::policy::{PolicySet, PolicySource};
use crate::store::runs::Match;
pub use answer::{AnswerRef, ScoreRef};
use paths::Paths;
use ranking::Ranking;
use search::Search;
pub(crate) use settings::Settings;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tables::Tables;

/// A lock-free reader: cheap to clone, shared between threads, always the newest state. Each entry is seen whole; a
/// batch may be seen half applied.
#[derive(Clone)]
pub struct View {
    tables: Arc<Tables>,
    hash_seed: u64,
}

/// Buffers that a thread keeps between lookups.
pub struct LookupScratch {
    fingerprints: Vec<[u8; 8]>,
    matches: Vec<Match>,
    ranking: Ranking,
    tokens: Vec<i32>,
    paths: Paths,
    /// Where this thread marks that it is reading: threads that look for different places don't get in each other's way.
    hint: usize,
}

/// The scratches made so far, by which each gets a place of its own. It influences no answer.
static SCRATCHES: AtomicUsize = AtomicUsize::new(1);

impl Default for LookupScratch {
    fn default() -> Self {
        Self {
            fingerprints: Vec::new(),
            matches: Vec::new(),
            ranking: Ranking::default(),
            tokens: Vec::new(),
            paths: Paths::default(),
            hint: SCRATCHES.fetch_add(1, Ordering::Relaxed),
        }
    }
}

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
    /// Its stats, if it reported any.
    pub stats: Option<RowStats>,
    /// Entries of the replica in the tenant.
    pub entries: u64,
    /// The newest last-seen among them in microseconds; 0 for none.
    pub last_event_us: u64,
}

/// The stats of a replica's model with the latest liveness; of equal ones those of the smaller model.
#[derive(Clone, Debug, PartialEq)]
pub struct RowStats {
    /// That model.
    pub model: Arc<str>,
    /// The payload.
    pub stats: Stats,
    /// The last sign of life in microseconds.
    pub liveness_us: u64,
}

/// All of GET /snapshot, sorted.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct StateRows {
    /// One row a (tenant, replica), sorted by tenant, then replica.
    pub replicas: Vec<ReplicaRow>,
    /// (tenant, distinct prefixes), sorted.
    pub tenants: Vec<(Arc<str>, u64)>,
    /// Distinct prefixes in all.
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
    pub(crate) fn new(tables: Arc<Tables>, hash_seed: u64) -> Self {
        Self { tables, hash_seed }
    }

    /// Answers a lookup at cluster time `now_us`: the whole contract but deadlines and tokenizing.
    pub fn lookup<B: AsRef<[u8]>>(
        &self,
        request: &LookupRequest<'_, B>,
        now_us: u64,
        config: &RankConfig,
        scratch: &mut LookupScratch,
    ) -> LookupAnswer {
        self.with_answer(request, now_us, config, scratch, |answer| answer.to_owned())
    }

    /// The same, but the answer is lent to `take` and nothing is copied for it: the way for those who turn it into
    /// something else at once.
    pub fn with_answer<B: AsRef<[u8]>, R>(
        &self,
        request: &LookupRequest<'_, B>,
        now_us: u64,
        config: &RankConfig,
        scratch: &mut LookupScratch,
        take: impl FnOnce(&AnswerRef<'_>) -> R,
    ) -> R {
        let settings = self.tables.settings.load();
        Search { tables: &self.tables, settings: &settings, config, request, now_us }.answer(scratch, take)
    }

    /// True when the request's answer depends on the tokens of its prompt text: tokenize it, or leave it
    /// [`crate::Prompt::Untokenized`] and the answer says NO_HINT.
    pub fn wants_prompt_tokens<B: AsRef<[u8]>>(&self, request: &LookupRequest<'_, B>, config: &RankConfig) -> bool {
        let settings = self.tables.settings.load();
        let rules = Rules::of(settings.policies.policies.get(request.tenant), config);
        request.tenant != RESERVED_TENANT && resolve::wants_prompt_tokens(request, &rules)
    }

    /// The tenant's lookup timeout in milliseconds.
    pub fn lookup_timeout_ms(&self, tenant: &str, config: &RankConfig) -> Option<u32> {
        let settings = self.tables.settings.load();
        let policy = settings.policies.policies.get(tenant);
        policy.and_then(|policy| policy.lookup_timeout_ms).or(config.lookup_timeout_ms)
    }

    /// The aggregate of GetCacheState; empty for the reserved tenant.
    pub fn cache_state(&self, tenant: &str, model: &str) -> CacheState {
        rows::cache_state(&self.tables, tenant, model)
    }

    /// True when the index holds anything under this tenant, for labels of metrics.
    pub fn knows_tenant(&self, tenant: &str) -> bool {
        tenant != RESERVED_TENANT && self.tables.tenant(tenant, &self.tables.names.guard()).is_some()
    }

    /// True when the index holds anything under this model, whatever the tenant, for labels of metrics.
    pub fn knows_model(&self, model: &str) -> bool {
        self.tables.model(model, &self.tables.names.guard()).is_some_and(|model| model.domains.get() > 0)
    }

    /// Each model with its distinct prefixes, sorted; the reserved tenant is left out.
    pub fn models(&self) -> Vec<(Arc<str>, u64)> {
        rows::models(&self.tables)
    }

    /// The rows of GET /snapshot, by a scan of the whole index.
    pub fn state_rows(&self) -> StateRows {
        rows::state_rows(&self.tables, self.hash_seed)
    }

    /// True when a lookup of the self-test's block finds its replica, past the reserved tenant and all floors.
    pub fn probe(&self, model: &str, scheme: &str, replica: &str, hash: &[u8], now_us: u64) -> bool {
        let settings = self.tables.settings.load();
        let request = LookupRequest::<&[u8]> {
            tenant: RESERVED_TENANT,
            model,
            scheme,
            adapter: "",
            prefix_hash: hash,
            prefix_token_count: 0,
            block_hashes: &[],
            block_token_counts: &[],
            token_ids: &[],
            prompt: crate::Prompt::Absent,
            ttft_ms: 0,
        };
        let config = RankConfig::default();
        let search = Search { tables: &self.tables, settings: &settings, config: &config, request: &request, now_us };
        search.matches_alone(hash, replica)
    }

    /// The policy set that governs, and where it comes from.
    pub fn policies(&self) -> (PolicySet, PolicySource) {
        let settings = self.tables.settings.load();
        (settings.policies.clone(), settings.policy_source)
    }

    /// Where the policy set comes from. Cheap.
    pub fn policy_source(&self) -> PolicySource {
        self.tables.settings.load().policy_source
    }

    /// What the writer published after its last apply.
    pub fn published(&self) -> Published {
        **self.tables.published.load()
    }
}
