//! Answers lookups from the shared tables: matching, ranking, fallbacks, in the order of the contract's steps. It
//! reads without a lock and changes nothing; the pure parts are in the `lookup` module, the walk in the store.

use super::names::{Member, Scope, Seated, Seats};
use super::paths::{Path, look_up};
use super::ranking::Ranking;
use super::tables::Tables;
use super::{LookupScratch, Settings};
use crate::command::Credit;
use crate::delta::PackedHashes;
use crate::limits::RESERVED_TENANT;
use crate::lookup::affinity::Seed;
use crate::lookup::config::Rules;
use crate::lookup::resolve::{Input, Resolved, resolve};
use crate::lookup::{LookupAnswer, LookupRequest, RankConfig, Reason, ReplicaScore, gates, rank};
use crate::store::runs::{self, Match, Sight};
use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::Ordering as AtomicOrdering;

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
        runs::prefetch_hashes(self.request.block_hashes);
        let rules = Rules::of(self.settings.policies.policies.get(self.request.tenant), self.config);
        let LookupScratch { fingerprints, matches, ranking, tokens, paths, hint } = scratch;
        let resolved = match resolve(self.request, &rules, self.config.block_size, fingerprints) {
            Ok(resolved) => resolved,
            Err(reason) => return take(&AnswerRef::early(reason)),
        };
        let path = paths.find(self.tables, self.request);
        let sight = path.and_then(|path| self.sight(path));
        if let (Some(sight), Some(first)) = (&sight, resolved.input.first()) {
            sight.prefetch(&self.tables.store, first);
        }
        // Pinned before the roster is read, so that its seats stay its members'.
        let _pin = self.tables.store.readers.pin(*hint);
        let held = path.map(|path| path.roster.seats.load());
        let none = Seats::default();
        let seats: &Seats = held.as_ref().map_or(&none, |held| held);
        let mut buffers = Buffers { matches, ranking, tokens };
        let found = match gates::names_scope(self.request) {
            true => self.find(&resolved, &rules, path.map(|path| (path, sight.as_ref())), seats, &mut buffers),
            false => Found::None,
        };
        let Buffers { matches, ranking, .. } = buffers;
        let (reason, scores) = match found {
            Found::PrefixMatch => {
                let credits = self.credits(&resolved.input, matches, ranking, seats);
                let (now_us, ttl_us) = (self.now_us, sight.as_ref().map_or(0, |sight| sight.ttl_us));
                let scores = Scores::Ranked { ranking, matches, seats, now_us, ttl_us };
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
            let seats = path.roster.seats.load();
            sight.exact(&self.tables.store, hash, &mut matches);
            matches.iter().any(|found| seats.in_seat(found.seat).is_some_and(|held| *held.replica == *replica))
        })
    }

    /// Steps 5 to 8 on a fully named scope.
    fn find(
        &self,
        resolved: &Resolved<'_, B>,
        rules: &Rules,
        path: Option<(&Path, Option<&Sight>)>,
        seats: &Seats,
        buffers: &mut Buffers<'_>,
    ) -> Found {
        if let Some((path, sight)) = path {
            let scope = &path.scope;
            if let Some(sight) = sight {
                let is_chain = !matches!(resolved.input, Input::Exact(_));
                let holding = buffers.walk(self.tables, sight, &resolved.input, seats);
                if holding.total > 0 {
                    self.rank(sight, path, rules, seats, (is_chain, holding), buffers);
                    return match buffers.ranking.best() {
                        Some(best) if gates::clears_routing_floor(rules, best) && !resolved.too_short => {
                            Found::PrefixMatch
                        }
                        _ => Found::None,
                    };
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

    /// Ranks the matches that clear the floor of matched tokens; the others count as matching too.
    fn rank(
        &self,
        sight: &Sight,
        path: &Path,
        rules: &Rules,
        seats: &Seats,
        (is_chain, holding): (bool, Holding),
        buffers: &mut Buffers<'_>,
    ) {
        let Buffers { matches, ranking, tokens } = buffers;
        if !holding.is_whole() {
            tokens.clear();
            tokens.extend(ranking.admitted(seats).filter_map(|at| matches.get(at as usize)).map(|found| found.tokens));
            tokens.sort_unstable();
        }
        let total = path.scope.servers.get() as usize;
        let have_stats = path.roster.reporters.get() > 0;
        let power_of = |least: i32| {
            let matching = if is_chain { holding.at_least(least, tokens) } else { holding.total as usize };
            rank::distinguishing_power(matching, total)
        };
        // The power of the last match, as the next one mostly has as many tokens.
        let mut last: Option<(i32, f32)> = None;
        ranking.rank(matches, seats, |found, seated| {
            if !gates::clears_matched_floor(rules, found.tokens) {
                return None;
            }
            let power = match last {
                Some((tokens, power)) if tokens == found.tokens => power,
                _ => power_of(found.tokens),
            };
            last = Some((found.tokens, power));
            if power == 0.0 {
                // Whatever the other factors are: what isn't a number sorts as 0.
                return Some(0.0);
            }
            let fresh = rank::freshness(self.now_us, found.seen_us, sight.ttl_us);
            let pressure = if have_stats { self.pressure(&seated.member, sight.ttl_us) } else { 1.0 };
            let score = found.tokens as f32
                * fresh
                * pressure
                * rank::slo_bias(self.config, self.request.ttft_ms, fresh)
                * power;
            Some(rank::sortable(score))
        });
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
    fn credits(&self, input: &Input<'_, B>, matches: &[Match], ranking: &Ranking, seats: &Seats) -> Vec<Credit> {
        if !self.settings.is_lfu(self.request.tenant) {
            return Vec::new();
        }
        let ranked = ranking.iter(matches, seats).flatten();
        ranked.filter_map(|(found, seated, _)| self.credit(input, &seated.replica, found.depth as usize)).collect()
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

/// How many matches there are of how many tokens. There are few different counts, as replicas mostly share the same few
/// stretches.
#[derive(Default)]
struct Holding {
    counts: [(i32, u32); FEW_COUNTS],
    len: usize,
    /// The one of `counts` that was found last.
    last: usize,
    /// All matches.
    total: u32,
}

const FEW_COUNTS: usize = 8;

impl Holding {
    #[inline]
    fn note(&mut self, tokens: i32) {
        self.total += 1;
        let is_last = |(held, count): &&mut (i32, u32)| *held == tokens && *count > 0;
        if let Some((_, count)) = self.counts.get_mut(self.last).filter(is_last) {
            *count += 1;
            return;
        }
        let known = self.counts.iter().take(self.len).position(|(held, _)| *held == tokens);
        self.last = known.unwrap_or_else(|| {
            self.len += 1;
            self.len - 1
        });
        if let Some(of) = self.counts.get_mut(self.last) {
            *of = (tokens, of.1 + 1);
        }
    }

    /// False when there are too many different counts.
    fn is_whole(&self) -> bool {
        self.len <= FEW_COUNTS
    }

    /// Matches of at least so many tokens; `all` has the tokens of all, ascending, if there are too many different ones.
    fn at_least(&self, least: i32, all: &[i32]) -> usize {
        if self.is_whole() {
            let enough = self.counts.iter().filter(|(held, _)| *held >= least);
            enough.map(|(_, count)| *count as usize).sum()
        } else {
            all.len() - all.partition_point(|&held| held < least)
        }
    }
}

/// The scores of an answer where they lie.
#[derive(Copy, Clone)]
enum Scores<'i> {
    Ranked { ranking: &'i Ranking, matches: &'i [Match], seats: &'i Seats, now_us: u64, ttl_us: u64 },
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
            Scores::Ranked { ranking, .. } => ranking.len(),
            Scores::Listed(scores) => scores.len(),
        }
    }

    /// True when no replica is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives each score to `each`, best first.
    pub fn for_each_score(&self, mut each: impl FnMut(ScoreRef<'_>)) {
        match self.scores {
            Scores::Ranked { ranking, matches, seats, now_us, ttl_us } => {
                for (found, seated, score) in ranking.iter(matches, seats).flatten() {
                    each(score_ref(found, &seated.replica, score, (now_us, ttl_us)));
                }
            }
            Scores::Listed(scores) => scores.iter().for_each(|score| each(score.into())),
        }
    }

    /// Best first.
    pub fn scores<'a>(&'a self) -> impl Iterator<Item = ScoreRef<'a>> {
        let (ranked, listed) = match self.scores {
            Scores::Ranked { ranking, matches, seats, now_us, ttl_us } => {
                (Some((ranking.iter(matches, seats), (now_us, ttl_us))), &[][..])
            }
            Scores::Listed(scores) => (None, scores),
        };
        let ranked = ranked.into_iter().flat_map(|(ranked, times)| {
            let refer = move |(found, seated, score): (&'a Match, &'a Seated, f32)| {
                score_ref(found, &seated.replica, score, times)
            };
            ranked.flatten().map(refer)
        });
        ranked.chain(listed.iter().map(ScoreRef::from))
    }

    /// The same answer, owned.
    pub(crate) fn to_owned(&self) -> LookupAnswer {
        let mut scores = Vec::with_capacity(self.len());
        self.for_each_score(|ScoreRef { replica, score, matched_tokens, hit_prob, tier }| {
            scores.push(ReplicaScore { replica: Arc::clone(replica), score, matched_tokens, hit_prob, tier });
        });
        LookupAnswer { reason: self.reason, scores, adapter_echo: self.adapter_echo, credits: self.credits.clone() }
    }
}

impl<'i> From<&'i ReplicaScore> for ScoreRef<'i> {
    fn from(of: &'i ReplicaScore) -> Self {
        let ReplicaScore { replica, score, matched_tokens, hit_prob, tier } = of;
        Self { replica, score: *score, matched_tokens: *matched_tokens, hit_prob: *hit_prob, tier: *tier }
    }
}

/// A ranked match as a score, at a time and under a TTL.
#[inline]
fn score_ref<'i>(found: &Match, replica: &'i Arc<str>, score: f32, (now_us, ttl_us): (u64, u64)) -> ScoreRef<'i> {
    let hit_prob = rank::freshness(now_us, found.seen_us, ttl_us);
    ScoreRef { replica, score, matched_tokens: found.tokens, hit_prob, tier: rank::reported_tier(found.coldness) }
}

/// The buffers of one lookup.
struct Buffers<'b> {
    matches: &'b mut Vec<Match>,
    ranking: &'b mut Ranking,
    tokens: &'b mut Vec<i32>,
}

impl Buffers<'_> {
    /// Finds all matches and admits those to the ranking that are worth a score.
    fn walk<B: AsRef<[u8]>>(&mut self, tables: &Tables, sight: &Sight, input: &Input<'_, B>, seats: &Seats) -> Holding {
        let (store, matches) = (&tables.store, &mut *self.matches);
        match *input {
            Input::Chain { hashes, counts } => {
                let reached = sight.chain(store, hashes, matches);
                self.sum_up(counts.get(..reached as usize).unwrap_or(counts), seats)
            }
            Input::Blocks { hashes, block_tokens } => {
                sight.chain(store, hashes, matches);
                self.sum_up_steady(block_tokens, seats)
            }
            Input::Exact(hash) => {
                sight.exact(store, hash, matches);
                self.admit(seats, |found| (true, found.tokens))
            }
        }
    }

    /// Gives each run the tokens of its blocks: sums saturate.
    fn sum_up(&mut self, counts: &[i32], seats: &Seats) -> Holding {
        let first = counts.first().copied().unwrap_or(0);
        // Mostly all blocks have as many tokens, which is seen much faster than they are added up.
        if counts.iter().fold(0, |odd, count| odd | (count ^ first)) == 0 {
            return self.sum_up_steady(first, seats);
        }
        let mut sums = std::mem::take(self.tokens);
        sums.clear();
        let mut sum = 0i32;
        sums.extend(counts.iter().map(|&count| {
            sum = sum.saturating_add(count);
            sum
        }));
        let holding = self.admit(seats, |found| {
            let last = (found.depth as usize).checked_sub(1);
            let tokens = last.and_then(|last| sums.get(last)).copied().unwrap_or(0);
            (tokens > 0, tokens)
        });
        *self.tokens = sums;
        holding
    }

    /// The same where all blocks have as many tokens.
    fn sum_up_steady(&mut self, tokens: i32, seats: &Seats) -> Holding {
        self.admit(seats, |found| {
            // A chain is far shorter than 2^31 blocks.
            let tokens = tokens.saturating_mul(i32::try_from(found.depth).unwrap_or(i32::MAX));
            (tokens > 0, tokens)
        })
    }

    /// Admits matches to the ranking: `weigh` says of each whether it is worth a score, and how many tokens it has.
    #[inline]
    fn admit(&mut self, seats: &Seats, weigh: impl Fn(&Match) -> (bool, i32)) -> Holding {
        let Self { matches, ranking, .. } = self;
        let mut holding = Holding::default();
        ranking.begin(matches.len(), seats);
        for (at, found) in (0u32..).zip(matches.iter_mut()) {
            let (is_worth, tokens) = weigh(found);
            // A seat is empty when its member is retired or newer than the roster.
            if let Some(order) = seats.order(found.seat).filter(|_| is_worth) {
                found.tokens = tokens;
                holding.note(tokens);
                ranking.admit(at, order);
            }
        }
        holding
    }
}

/// Descending by score; the scores are sortable ones.
fn best_first(a: f32, b: f32) -> Ordering {
    b.total_cmp(&a)
}
