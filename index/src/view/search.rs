//! Answers lookups from the shared tables: matching, ranking, fallbacks, in the order of the contract's steps. It
//! reads without a lock and changes nothing; the pure parts are in the `lookup` module, the walk in the store.

use super::names::{Member, Scope, Seated};
use super::paths::{Path, look_up};
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
use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::Ordering as AtomicOrdering;

/// A match with its score.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Ranked {
    place: u64,
    /// The match's position among the matches.
    at: u32,
    score: f32,
    hit_prob: f32,
}

/// What the index has for a request.
enum Found {
    /// What is ranked.
    PrefixMatch,
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
    pub(crate) fn answer<R>(&self, scratch: &mut LookupScratch, take: impl FnOnce(&AnswerRef<'_>) -> R) -> R {
        if self.request.tenant == RESERVED_TENANT {
            return take(&AnswerRef::early(Reason::NoHint));
        }
        let rules = Rules::of(self.settings.policies.policies.get(self.request.tenant), self.config);
        let LookupScratch { fingerprints, matches, ranked, tokens, paths, hint } = scratch;
        let resolved = match resolve(self.request, &rules, self.config.block_size, fingerprints) {
            Ok(resolved) => resolved,
            Err(reason) => return take(&AnswerRef::early(reason)),
        };
        // Pinned before the roster is read, so that its seats stay its members'.
        let _pin = self.tables.store.readers.pin(*hint);
        let path = paths.find(self.tables, self.request);
        let seated = path.map(|path| path.roster.seated.load());
        let seated: &[Option<Seated>] = seated.as_ref().map_or(&[], |seated| seated.as_slice());
        let mut buffers = Buffers { matches, ranked, tokens };
        let found = match gates::names_scope(self.request) {
            true => self.find(&resolved, &rules, path.map(|path| (path, seated)), &mut buffers),
            false => Found::None,
        };
        let Buffers { matches, ranked, .. } = buffers;
        let (reason, scores) = match found {
            Found::PrefixMatch => {
                let credits = self.credits(&resolved.input, matches, ranked, seated);
                let scores = Scores::Ranked { ranked, matches, seated };
                return take(&AnswerRef { reason: Reason::PrefixMatch, adapter_echo: true, credits, scores });
            }
            Found::TenantHot(scores) => (Reason::TenantHot, scores),
            Found::Unknown(reason) => (reason, Vec::new()),
            Found::None => match self.affinity(&resolved, &rules, path.map(|path| &*path.scope)) {
                Some(pick) => (Reason::AffinityHint, vec![pick]),
                None => (Reason::NoHint, Vec::new()),
            },
        };
        take(&AnswerRef { reason, adapter_echo: true, credits: Vec::new(), scores: Scores::Listed(&scores) })
    }

    /// True when the exact match of `hash` finds `replica`, without gates and floors.
    pub(crate) fn matches_alone(&self, hash: &[u8], replica: &str) -> bool {
        let _pin = self.tables.store.readers.pin(0);
        let path = look_up(self.tables, self.request);
        let sight = path.as_ref().and_then(|path| Some((path, self.sight(path)?)));
        let mut matches = Vec::new();
        sight.is_some_and(|(path, sight)| {
            let seated = path.roster.seated.load();
            sight.exact(&self.tables.store, hash, &mut matches);
            matches.iter().any(|found| seated_at(&seated, found).is_some_and(|held| *held.member.replica == *replica))
        })
    }

    /// Steps 5 to 8 on a fully named scope.
    fn find(
        &self,
        resolved: &Resolved<'_, B>,
        rules: &Rules,
        path: Option<(&Path, &[Option<Seated>])>,
        buffers: &mut Buffers<'_>,
    ) -> Found {
        if let Some((path, seated)) = path {
            let scope = &path.scope;
            if let Some(sight) = self.sight(path) {
                buffers.walk(self.tables, &sight, &resolved.input);
                let total = scope.serving.load().len();
                self.rank(&sight, seated, total, !matches!(resolved.input, Input::Exact(_)), buffers);
                if !buffers.ranked.is_empty() {
                    return floored(resolved, rules, buffers);
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
        self.classify().map_or(Found::None, Found::Unknown)
    }

    fn sight(&self, path: &Path) -> Option<Sight> {
        let partition = path.partition.as_ref()?;
        let ttl_us = self.settings.ttl_us(self.request.tenant);
        Some(Sight { domain: path.domain.id, partition: partition.id, now_us: self.now_us, ttl_us })
    }

    /// Scores all matches, best first.
    fn rank(&self, sight: &Sight, seated: &[Option<Seated>], total: usize, is_chain: bool, buffers: &mut Buffers<'_>) {
        let Buffers { matches, ranked, tokens } = buffers;
        matches.retain(|found| (found.tokens > 0 || !is_chain) && seated_at(seated, found).is_some());
        let holding = Holding::of(matches, tokens);
        ranked.clear();
        ranked.extend((0u32..).zip(matches.iter()).map(|(at, found)| {
            let (order, pressure) = match seated_at(seated, found) {
                Some(held) => (held.order, self.pressure(&held.member, sight.ttl_us)),
                None => (u32::MAX, 1.0),
            };
            let matching = if is_chain { holding.at_least(found.tokens) } else { matches.len() };
            let fresh = rank::freshness(self.now_us, found.seen_us, sight.ttl_us);
            let score = found.tokens as f32
                * fresh
                * pressure
                * rank::slo_bias(self.config, self.request.ttft_ms, fresh)
                * rank::distinguishing_power(matching, total);
            let score = rank::sortable(score);
            Ranked { place: place(score, order), at, score, hit_prob: fresh }
        }));
        ranked.sort_unstable_by_key(|ranked| ranked.place);
    }

    /// What a replica's pressure leaves of its score; its stats count while their payload is younger than the TTL.
    fn pressure(&self, member: &Member, ttl_us: u64) -> f32 {
        if !member.has_stats.load(AtomicOrdering::Acquire) {
            return 1.0;
        }
        match &*member.stats.load() {
            Some(report) if self.now_us.saturating_sub(report.payload_us) < ttl_us => {
                rank::pressure_factor(self.config.pressure_weight, report.stats.pressure)
            }
            _ => 1.0,
        }
    }

    /// In an LFU tenant, the accesses that the ranked matches come to.
    fn credits(
        &self,
        input: &Input<'_, B>,
        matches: &[Match],
        ranked: &[Ranked],
        seated: &[Option<Seated>],
    ) -> Vec<Credit> {
        if !self.settings.is_lfu(self.request.tenant) {
            return Vec::new();
        }
        let credit = |ranked: &Ranked| {
            let found = matches.get(ranked.at as usize)?;
            self.credit(input, &seated_at(seated, found)?.member.replica, found.depth as usize)
        };
        ranked.iter().filter_map(credit).collect()
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
    fn classify(&self) -> Option<Reason> {
        if self.tables.entries.get() == 0 {
            return None;
        }
        let guard = &self.tables.names.guard();
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

/// Applies the floors to ranked matches.
fn floored<B>(resolved: &Resolved<'_, B>, rules: &Rules, buffers: &mut Buffers<'_>) -> Found {
    let Buffers { matches, ranked, .. } = buffers;
    ranked.retain(|ranked| {
        let tokens = matches.get(ranked.at as usize).map_or(0, |found| found.tokens);
        gates::clears_matched_floor(rules, tokens)
    });
    match ranked.first() {
        Some(top) if gates::clears_routing_floor(rules, top.score) && !resolved.too_short => Found::PrefixMatch,
        _ => Found::None,
    }
}

/// How many matches there are of how many tokens.
enum Holding<'t> {
    /// Few different counts, as replicas mostly share the same few stretches.
    Few([(i32, u32); FEW_COUNTS], usize),
    /// All counts, ascending.
    Sorted(&'t [i32]),
}

const FEW_COUNTS: usize = 8;

impl<'t> Holding<'t> {
    fn of(matches: &[Match], tokens: &'t mut Vec<i32>) -> Self {
        let (mut counts, mut len) = ([(0, 0); FEW_COUNTS], 0);
        for found in matches {
            match counts.iter_mut().take(len).find(|(tokens, _)| *tokens == found.tokens) {
                Some((_, count)) => *count += 1,
                None if len < FEW_COUNTS => {
                    counts[len] = (found.tokens, 1);
                    len += 1;
                }
                None => {
                    tokens.clear();
                    tokens.extend(matches.iter().map(|found| found.tokens));
                    tokens.sort_unstable();
                    return Self::Sorted(tokens);
                }
            }
        }
        Self::Few(counts, len)
    }

    /// Matches of at least so many tokens.
    fn at_least(&self, tokens: i32) -> usize {
        match self {
            Self::Few(counts, len) => {
                let enough = counts.iter().take(*len).filter(|(held, _)| *held >= tokens);
                enough.map(|(_, count)| *count as usize).sum()
            }
            Self::Sorted(all) => all.len() - all.partition_point(|&held| held < tokens),
        }
    }
}

/// The scores of an answer where they lie.
#[derive(Copy, Clone)]
enum Scores<'i> {
    Ranked { ranked: &'i [Ranked], matches: &'i [Match], seated: &'i [Option<Seated>] },
    Listed(&'i [ReplicaScore]),
}

/// An answer to a lookup that borrows from the index: nothing is copied or counted for it. It lasts as long as the call
/// that it is given to, which keeps memory from being reused and should be short.
pub struct AnswerRef<'i> {
    /// The reason_code.
    pub reason: Reason,
    /// True when the answer carries the request's adapter_id.
    pub adapter_echo: bool,
    /// As in [`LookupAnswer::credits`].
    pub credits: Vec<Credit>,
    scores: Scores<'i>,
}

/// One ranked replica of an [`AnswerRef`]; its fields are those of [`ReplicaScore`].
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ScoreRef<'i> {
    /// The replica.
    pub replica: &'i Arc<str>,
    /// Higher is better.
    pub score: f32,
    /// Tokens of the leading run.
    pub matched_tokens: i32,
    /// The estimate that what is promised is still there.
    pub hit_prob: f32,
    /// The coldest tier of the run.
    pub tier: i32,
}

impl AnswerRef<'_> {
    fn early(reason: Reason) -> Self {
        Self { reason, adapter_echo: false, credits: Vec::new(), scores: Scores::Listed(&[]) }
    }

    /// How many replicas are ranked.
    pub fn len(&self) -> usize {
        match self.scores {
            Scores::Ranked { ranked, .. } => ranked.len(),
            Scores::Listed(scores) => scores.len(),
        }
    }

    /// True when no replica is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Best first.
    pub fn scores(&self) -> impl Iterator<Item = ScoreRef<'_>> {
        let scores = self.scores;
        (0..self.len()).filter_map(move |at| match scores {
            Scores::Ranked { ranked, matches, seated } => {
                let Ranked { at, score, hit_prob, .. } = *ranked.get(at)?;
                let found = matches.get(at as usize)?;
                let replica = &seated_at(seated, found)?.member.replica;
                let (matched_tokens, tier) = (found.tokens, rank::reported_tier(found.coldness));
                Some(ScoreRef { replica, score, matched_tokens, hit_prob, tier })
            }
            Scores::Listed(scores) => {
                let ReplicaScore { replica, score, matched_tokens, hit_prob, tier } = scores.get(at)?;
                let (score, hit_prob) = (*score, *hit_prob);
                Some(ScoreRef { replica, score, matched_tokens: *matched_tokens, hit_prob, tier: *tier })
            }
        })
    }

    /// The same answer, owned.
    pub(crate) fn to_owned(&self) -> LookupAnswer {
        let mut scores = Vec::with_capacity(self.len());
        for ScoreRef { replica, score, matched_tokens, hit_prob, tier } in self.scores() {
            scores.push(ReplicaScore { replica: Arc::clone(replica), score, matched_tokens, hit_prob, tier });
        }
        LookupAnswer { reason: self.reason, scores, adapter_echo: self.adapter_echo, credits: self.credits.clone() }
    }
}

/// The member behind a match, unless it is retired or newer than the roster.
fn seated_at<'r>(seated: &'r [Option<Seated>], found: &Match) -> Option<&'r Seated> {
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
                self.sum_up(counts);
            }
            Input::Blocks { hashes, block_tokens } => {
                let hash = |at: usize| hashes.get(at).map_or(&[][..], <[u8; 8]>::as_slice);
                sight.chain(store, hashes.len(), hash, matches);
                self.sum_up_steady(block_tokens);
            }
            Input::Exact(hash) => sight.exact(store, hash, matches),
        }
    }

    /// Gives each run the tokens of its blocks: sums saturate.
    fn sum_up(&mut self, counts: &[i32]) {
        let longest = self.matches.iter().map(|found| found.depth).max().unwrap_or(0);
        let counts = counts.get(..longest as usize).unwrap_or(counts);
        let first = counts.first().copied().unwrap_or(0);
        // Mostly all blocks have as many tokens, which is seen much faster than they are added up.
        if counts.iter().fold(0, |odd, count| odd | (count ^ first)) == 0 {
            self.sum_up_steady(first);
            return;
        }
        self.tokens.clear();
        let mut sum = 0i32;
        self.tokens.extend(counts.iter().map(|&count| {
            sum = sum.saturating_add(count);
            sum
        }));
        for found in self.matches.iter_mut() {
            let last = (found.depth as usize).checked_sub(1);
            found.tokens = last.and_then(|last| self.tokens.get(last)).copied().unwrap_or(0);
        }
    }

    /// The same where all blocks have as many tokens.
    fn sum_up_steady(&mut self, tokens: i32) {
        for found in self.matches.iter_mut() {
            // A chain is far shorter than 2^31 blocks.
            found.tokens = tokens.saturating_mul(i32::try_from(found.depth).unwrap_or(i32::MAX));
        }
    }
}

/// Where a score stands: descending by score, then ascending by the order of replicas. The scores are sortable ones.
fn place(score: f32, order: u32) -> u64 {
    let bits = score.to_bits();
    // As unsigned numbers these are in the order of `f32::total_cmp`.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    (u64::from(!ascending) << 32) | u64::from(order)
}

/// Descending by score; the scores are sortable ones.
fn best_first(a: f32, b: f32) -> Ordering {
    b.total_cmp(&a)
}
