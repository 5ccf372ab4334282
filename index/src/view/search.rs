//! Answers lookups from the shared tables: matching, ranking, fallbacks, in the order of the contract's steps. It
//! reads without a lock and changes nothing; the pure parts are in the `lookup` module, the walk in the store.

use super::names::{Domain, Member, Roster, Scope};
use super::tables::Tables;
use super::{LookupScratch, Settings};
use crate::command::Credit;
use crate::delta::PackedHashes;
use crate::limits::RESERVED_TENANT;
use crate::lookup::affinity::Seed;
use crate::lookup::config::Rules;
use crate::lookup::resolve::{Input, Resolved, resolve};
use crate::lookup::{LookupAnswer, LookupRequest, RankConfig, Reason, ReplicaScore, gates, rank};
use crate::store::runs::{Match, Sight};
use papaya::Guard;
use std::cmp::Ordering;
use std::sync::Arc;

/// A match with its score.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Ranked {
    score: f32,
    hit_prob: f32,
    found: Match,
}

/// What the index has for a request.
enum Found {
    PrefixMatch(Vec<ReplicaScore>, Vec<Credit>),
    TenantHot(Vec<ReplicaScore>),
    Unknown(Reason),
    None,
}

/// One lookup with everything it reads.
pub(crate) struct Search<'s, 'a, B> {
    pub(crate) tables: &'s Tables,
    pub(crate) settings: &'s Settings,
    pub(crate) config: &'s RankConfig,
    pub(crate) request: &'s LookupRequest<'a, B>,
    pub(crate) now_us: u64,
}

impl<B: AsRef<[u8]>> Search<'_, '_, B> {
    /// The whole lookup but deadlines and tokenizing.
    pub(crate) fn answer(&self, scratch: &mut LookupScratch) -> LookupAnswer {
        if self.request.tenant == RESERVED_TENANT {
            return LookupAnswer::early(Reason::NoHint);
        }
        let rules = Rules::of(self.settings.policies.policies.get(self.request.tenant), self.config);
        let LookupScratch { fingerprints, matches, ranked, tokens, hint } = scratch;
        let resolved = match resolve(self.request, &rules, self.config.block_size, fingerprints) {
            Ok(resolved) => resolved,
            Err(reason) => return LookupAnswer::early(reason),
        };
        // Pinned before the roster is read, so that its seats stay its members'.
        let _pin = self.tables.store.readers.pin(*hint);
        let names = self.tables.names.guard();
        let scope = self.scope(&names);
        let mut buffers = Buffers { matches, ranked, tokens };
        let found = match gates::names_scope(self.request) {
            true => self.find(&resolved, &rules, scope.as_ref(), &mut buffers, &names),
            false => Found::None,
        };
        let (reason, scores, credits) = match found {
            Found::PrefixMatch(scores, credits) => (Reason::PrefixMatch, scores, credits),
            Found::TenantHot(scores) => (Reason::TenantHot, scores, Vec::new()),
            Found::Unknown(reason) => (reason, Vec::new(), Vec::new()),
            Found::None => match self.affinity(&resolved, &rules, scope.map(|names| &**names.scope)) {
                Some(pick) => (Reason::AffinityHint, vec![pick], Vec::new()),
                None => (Reason::NoHint, Vec::new(), Vec::new()),
            },
        };
        LookupAnswer { reason, scores, adapter_echo: true, credits }
    }

    /// True when the exact match of `hash` finds `replica`, without gates and floors.
    pub(crate) fn matches_alone(&self, hash: &[u8], replica: &str) -> bool {
        let _pin = self.tables.store.readers.pin(0);
        let guard = self.tables.names.guard();
        let names = self.scope(&guard);
        let sight = names.as_ref().and_then(|names| Some((names, self.sight(names, &guard)?)));
        let mut matches = Vec::new();
        sight.is_some_and(|(names, sight)| {
            let seated = names.roster.seated.load();
            sight.exact(&self.tables.store, hash, &mut matches);
            matches.iter().any(|found| seated_at(&seated, found).is_some_and(|member| *member.replica == *replica))
        })
    }

    /// The request's domain and scope, if they exist.
    fn scope<'g>(&self, guard: &'g impl Guard) -> Option<Named<'g>> {
        let (domain, roster) = self.tables.roster(self.request.tenant, self.request.model, guard)?;
        Some(Named { domain, roster, scope: self.tables.scope(domain.id, self.request.scheme, guard)? })
    }

    /// Steps 5 to 8 on a fully named scope.
    fn find(
        &self,
        resolved: &Resolved<'_, B>,
        rules: &Rules,
        names: Option<&Named<'_>>,
        buffers: &mut Buffers<'_>,
        guard: &impl Guard,
    ) -> Found {
        if let Some(named) = names {
            let scope = named.scope;
            if let Some(sight) = self.sight(named, guard) {
                let seated = named.roster.seated.load();
                buffers.walk(self.tables, &sight, &resolved.input);
                let total = scope.serving.load().len();
                self.rank(&sight, &seated, total, !matches!(resolved.input, Input::Exact(_)), buffers);
                if !buffers.ranked.is_empty() {
                    return self.floored(resolved, rules, &seated, buffers.ranked);
                }
            }
            if let Input::Exact(_) = resolved.input
                && let scores = self.tenant_hot(&scope.serving.load())
                && !scores.is_empty()
            {
                let offered = rules.strategy.enable_tenant_hot && !resolved.too_short;
                return if offered { Found::TenantHot(scores) } else { Found::None };
            }
        }
        self.classify(guard).map_or(Found::None, Found::Unknown)
    }

    fn sight(&self, named: &Named<'_>, guard: &impl Guard) -> Option<Sight> {
        let partition = self.tables.partition(named.scope.id, self.request.adapter, guard)?;
        let ttl_us = self.settings.ttl_us(self.request.tenant);
        Some(Sight { domain: named.domain.id, partition: partition.id, now_us: self.now_us, ttl_us })
    }

    /// Scores all matches, best first.
    fn rank(
        &self,
        sight: &Sight,
        seated: &[Option<Arc<Member>>],
        total: usize,
        is_chain: bool,
        buffers: &mut Buffers<'_>,
    ) {
        let Buffers { matches, ranked, tokens } = buffers;
        matches.retain(|found| seated_at(seated, found).is_some());
        if is_chain {
            matches.retain(|found| found.tokens > 0);
        }
        tokens.clear();
        tokens.extend(matches.iter().map(|found| found.tokens));
        tokens.sort_unstable();
        ranked.clear();
        ranked.extend(matches.iter().map(|&found| {
            let matching = match is_chain {
                true => matches.len() - tokens.partition_point(|&tokens| tokens < found.tokens),
                false => matches.len(),
            };
            let fresh = rank::freshness(self.now_us, found.seen_us, sight.ttl_us);
            let pressure = seated_at(seated, &found).map_or(1.0, |member| self.pressure(member, sight.ttl_us));
            let score = found.tokens as f32
                * fresh
                * pressure
                * rank::slo_bias(self.config, self.request.ttft_ms, fresh)
                * rank::distinguishing_power(matching, total);
            Ranked { score: rank::sortable(score), hit_prob: fresh, found }
        }));
        let replica = |ranked: &Ranked| seated_at(seated, &ranked.found).map(|member| &*member.replica);
        ranked.sort_unstable_by(|a, b| best_first(a.score, b.score).then_with(|| replica(a).cmp(&replica(b))));
    }

    /// What a replica's pressure leaves of its score; its stats count while their payload is younger than the TTL.
    fn pressure(&self, member: &Member, ttl_us: u64) -> f32 {
        match &*member.stats.load() {
            Some(report) if self.now_us.saturating_sub(report.payload_us) < ttl_us => {
                rank::pressure_factor(self.config.pressure_weight, report.stats.pressure)
            }
            _ => 1.0,
        }
    }

    /// Applies the floors to ranked matches and builds what is left of them.
    fn floored(
        &self,
        resolved: &Resolved<'_, B>,
        rules: &Rules,
        seated: &[Option<Arc<Member>>],
        ranked: &mut Vec<Ranked>,
    ) -> Found {
        ranked.retain(|ranked| gates::clears_matched_floor(rules, ranked.found.tokens));
        match ranked.first() {
            Some(top) if gates::clears_routing_floor(rules, top.score) && !resolved.too_short => {}
            _ => return Found::None,
        }
        let mut scores = Vec::with_capacity(ranked.len());
        let mut credits = Vec::new();
        let is_lfu = self.settings.is_lfu(self.request.tenant);
        for Ranked { score, hit_prob, found } in ranked.iter().copied() {
            let Some(member) = seated_at(seated, &found) else { continue };
            let replica = Arc::clone(&member.replica);
            if is_lfu {
                credits.extend(self.credit(&resolved.input, &replica, found.depth as usize));
            }
            let tier = rank::reported_tier(found.coldness);
            scores.push(ReplicaScore { replica, score, matched_tokens: found.tokens, hit_prob, tier });
        }
        Found::PrefixMatch(scores, credits)
    }

    /// One access for each of the first `depth` blocks.
    fn credit(&self, input: &Input<'_, B>, replica: &str, depth: usize) -> Option<Credit> {
        let hashes = match *input {
            Input::Chain { hashes, .. } => PackedHashes::pack(hashes.get(..depth)?),
            Input::Blocks { hashes, .. } => PackedHashes::pack(hashes.get(..depth)?),
            Input::Exact(hash) => PackedHashes::pack(&[hash]),
        }?;
        Some(Credit {
            tenant: self.request.tenant.to_owned(),
            model: self.request.model.to_owned(),
            scheme: self.request.scheme.to_owned(),
            adapter: self.request.adapter.to_owned(),
            replica: replica.to_owned(),
            counts: vec![1; hashes.len()],
            hashes,
        })
    }

    /// The replicas of the scope that are warm, best first.
    fn tenant_hot(&self, serving: &[Arc<Member>]) -> Vec<ReplicaScore> {
        let (config, max_age_us) = (self.config, self.config.tenant_hot_max_age_us);
        let mut scores: Vec<ReplicaScore> = serving
            .iter()
            .filter_map(|member| {
                let report = **member.stats.load().as_ref()?;
                let recency = rank::recency(self.now_us, report.payload_us, max_age_us);
                let (hit_rate, pressure) = (report.stats.hit_rate, report.stats.pressure);
                if recency <= 0.0 || hit_rate < config.tenant_hot_min_hit_rate || member.is_retired() {
                    return None;
                }
                let score = hit_rate
                    * recency
                    * rank::pressure_factor(config.pressure_weight, pressure)
                    * rank::slo_bias(config, self.request.ttft_ms, recency);
                let replica = Arc::clone(&member.replica);
                Some(ReplicaScore {
                    replica,
                    score: rank::sortable(score),
                    matched_tokens: 0,
                    hit_prob: hit_rate,
                    tier: 0,
                })
            })
            .collect();
        scores.sort_unstable_by(|a, b| best_first(a.score, b.score).then_with(|| a.replica.cmp(&b.replica)));
        scores
    }

    /// The outermost key under which there is no entry, unless the index is empty.
    fn classify(&self, guard: &impl Guard) -> Option<Reason> {
        if self.tables.entries.get() == 0 {
            return None;
        }
        let LookupRequest { tenant, model, scheme, .. } = *self.request;
        if self.tables.tenant(tenant, guard).is_none_or(|tenant| tenant.entries.get() == 0) {
            return Some(Reason::UnknownTenant);
        }
        let domain = self.tables.domain(tenant, model, guard).filter(|domain| domain.entries.get() > 0);
        let Some(domain) = domain else { return Some(Reason::UnknownModel) };
        let scope = self.tables.scope(domain.id, scheme, guard).filter(|scope| scope.entries.get() > 0);
        scope.is_none().then_some(Reason::UnknownHashScheme)
    }

    /// The affinity pick for a request that has nothing better.
    fn affinity(&self, resolved: &Resolved<'_, B>, rules: &Rules, scope: Option<&Scope>) -> Option<ReplicaScore> {
        if !gates::allows_affinity(rules, self.request) {
            return None;
        }
        let serving = scope?.serving.load();
        if serving.is_empty() {
            return None;
        }
        let seed = match resolved.input {
            Input::Chain { hashes, .. } => Seed::of_chain(hashes.iter().map(AsRef::as_ref)),
            Input::Blocks { hashes, .. } => Seed::of_chain(hashes.iter().map(AsRef::as_ref)),
            Input::Exact(hash) => Seed::of_hash(hash),
        }?;
        let replica = Arc::clone(&serving.get(seed.pick(serving.len())?)?.replica);
        Some(ReplicaScore { replica, score: 0.0, matched_tokens: 0, hit_prob: 0.0, tier: 0 })
    }
}

/// The names of a request that lead to entries.
struct Named<'g> {
    domain: &'g Arc<Domain>,
    roster: &'g Arc<Roster>,
    scope: &'g Arc<Scope>,
}

/// The member behind a match, unless it is retired or newer than the roster.
fn seated_at<'r>(seated: &'r [Option<Arc<Member>>], found: &Match) -> Option<&'r Arc<Member>> {
    seated.get(found.seat as usize)?.as_ref()
}

/// The buffers of one lookup.
struct Buffers<'b> {
    matches: &'b mut Vec<Match>,
    ranked: &'b mut Vec<Ranked>,
    tokens: &'b mut Vec<i32>,
}

impl Buffers<'_> {
    /// Finds all matches.
    fn walk<B: AsRef<[u8]>>(&mut self, tables: &Tables, sight: &Sight, input: &Input<'_, B>) {
        let (store, matches) = (&tables.store, &mut *self.matches);
        match *input {
            Input::Chain { hashes, counts } => {
                let hash = |at: usize| hashes.get(at).map_or(&[][..], AsRef::as_ref);
                sight.chain(store, hashes.len(), hash, matches);
                self.sum_up(counts.iter().copied());
            }
            Input::Blocks { hashes, block_tokens } => {
                let hash = |at: usize| hashes.get(at).map_or(&[][..], <[u8; 8]>::as_slice);
                sight.chain(store, hashes.len(), hash, matches);
                self.sum_up(std::iter::repeat_n(block_tokens, hashes.len()));
            }
            Input::Exact(hash) => sight.exact(store, hash, matches),
        }
    }

    /// Gives each run the tokens of its blocks: sums saturate.
    fn sum_up(&mut self, counts: impl Iterator<Item = i32>) {
        let longest = self.matches.iter().map(|found| found.depth).max().unwrap_or(0);
        self.tokens.clear();
        self.tokens.extend(counts.take(longest as usize).scan(0i32, |sum, count| {
            *sum = sum.saturating_add(count);
            Some(*sum)
        }));
        for found in self.matches.iter_mut() {
            let last = (found.depth as usize).checked_sub(1);
            found.tokens = last.and_then(|last| self.tokens.get(last)).copied().unwrap_or(0);
        }
    }
}

/// Descending by score; the scores are sortable ones.
fn best_first(a: f32, b: f32) -> Ordering {
    b.total_cmp(&a)
}
