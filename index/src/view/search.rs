//! Answers lookups from the shared tables: matching, ranking, fallbacks, in the order of the contract's steps. It
//! reads without a lock and changes nothing; the pure parts are in the `lookup` module, the walk in the store.

use super::answer::{AnswerRef, Ranked, Scores};
use super::holding::Holding;
use super::names::{Member, Scope, Seated, Seats};
use super::paths::{Path, look_up};
use super::pressure::Seen;
use super::ranking::{self, Ranking, Row, Worth};
use super::tables::Tables;
use super::{LookupScratch, Settings};
use crate::command::Credit;
use crate::delta::PackedHashes;
use crate::limits::RESERVED_TENANT;
use crate::lookup::affinity::Seed;
use crate::lookup::config::Rules;
use crate::lookup::rank::Aging;
use crate::lookup::resolve::{Input, Resolved, resolve};
use crate::lookup::{LookupRequest, RankConfig, Reason, ReplicaScore, gates, rank};
use crate::store::runs::{self, Match, Sight};
use std::cmp::Ordering;
use std::sync::Arc;

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
        runs::prefetch_hashes(self.request.block_hashes, true);
        let rules = Rules::of(self.settings.policies.policies.get(self.request.tenant), self.config);
        let LookupScratch { fingerprints, matches, ranking, tokens, paths, hint } = scratch;
        let resolved = match resolve(self.request, &rules, self.config.block_size, fingerprints) {
            Ok(resolved) => resolved,
            Err(reason) => return take(&AnswerRef::early(reason)),
        };
        let path = paths.find(self.tables, self.request);
        let sight = path.and_then(|path| self.sight(path));
        if let (Some((sight, _)), Some(first)) = (&sight, resolved.input.first()) {
            sight.prefetch(&self.tables.store, first);
        }
        // Pinned before the roster is read, so that its seats stay its members'.
        let _pin = self.tables.store.readers.pin(*hint);
        runs::prefetch_hashes(self.request.block_hashes, false);
        let held = path.map(|path| path.roster.seats.load());
        let none = Seats::default();
        let seats: &Seats = held.as_ref().map_or(&none, |held| held);
        let mut buffers = Buffers { matches, ranking, tokens };
        let found = match gates::names_scope(self.request) {
            true => self.find(&resolved, &rules, path.map(|path| (path, sight.as_ref())), seats, &mut buffers),
            false => Found::None,
        };
        let (reason, scores) = match found {
            Found::PrefixMatch => {
                let ranked = Ranked { ranking: buffers.ranking, seats };
                let (credits, scores) = (self.credits(&resolved.input, ranked), Scores::Ranked(ranked));
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
        sight.is_some_and(|(path, (sight, _))| {
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
        path: Option<(&Path, Option<&(Sight, Aging)>)>,
        seats: &Seats,
        buffers: &mut Buffers<'_>,
    ) -> Found {
        if let Some((path, sight)) = path {
            let scope = &path.scope;
            if let Some((sight, aging)) = sight {
                let is_chain = !matches!(resolved.input, Input::Exact(_));
                let holding = buffers.walk(self.tables, (sight, aging), &resolved.input, seats);
                if holding.total() > 0 {
                    self.rank(aging, path, rules, seats, (is_chain, holding), buffers);
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

    /// Where and when to look, and how what is found ages.
    fn sight(&self, path: &Path) -> Option<(Sight, Aging)> {
        let partition = path.partition.as_ref()?;
        let ttl_us = self.settings.ttl_us(self.request.tenant);
        let aging = Aging::new(self.now_us, ttl_us);
        Some((Sight { domain: path.domain.id, partition: partition.id, oldest_us: aging.oldest_us() }, aging))
    }

    /// Ranks the matches that clear the floor of matched tokens; the others count as matching too.
    fn rank(
        &self,
        aging: &Aging,
        path: &Path,
        rules: &Rules,
        seats: &Seats,
        (is_chain, holding): (bool, Holding),
        buffers: &mut Buffers<'_>,
    ) {
        let Buffers { ranking, tokens, .. } = buffers;
        if !holding.is_whole() {
            tokens.clear();
            tokens.extend(ranking.admitted().map(Row::tokens));
            tokens.sort_unstable();
        }
        let total = path.scope.servers.get() as usize;
        let telling = Telling { rules, holding: &holding, all_tokens: tokens, is_chain, total };
        let (have_stats, ttl_us) = (path.roster.reporters.get() > 0, aging.ttl_us());
        let bias = rank::slo_weight(self.config, self.request.ttft_ms);
        ranking.rank(
            |tokens| telling.worth(tokens),
            move |row, order, power| {
                let pressure = match have_stats {
                    true => seats.at(order).map_or(1.0, |seated| self.pressure(seated, ttl_us)),
                    false => 1.0,
                };
                let score = row.tokens() as f32 * row.fresh * pressure * rank::biased(bias, row.fresh) * power;
                ranking::height(rank::sortable(score))
            },
        );
    }

    /// What a replica's pressure leaves of its score; its stats count while their payload is younger than the TTL.
    fn pressure(&self, seated: &Seated, ttl_us: u64) -> f32 {
        let member = &seated.member;
        let (pressure, payload_us) = match member.pressure.read() {
            Seen::Nothing => return 1.0,
            Seen::Reported(pressure, payload_us) => (pressure, payload_us),
            Seen::Changing => match &*member.stats.load() {
                Some(report) => (report.stats.pressure, report.payload_us),
                None => return 1.0,
            },
        };
        match self.now_us.saturating_sub(payload_us) < ttl_us {
            true => rank::pressure_factor(self.config.pressure_weight, pressure),
            false => 1.0,
        }
    }

    /// In an LFU tenant, the accesses that the ranked matches come to.
    fn credits(&self, input: &Input<'_, B>, ranked: Ranked<'_>) -> Vec<Credit> {
        if !self.settings.is_lfu(self.request.tenant) {
            return Vec::new();
        }
        let ranked = ranked.iter();
        ranked.filter_map(|(row, seated, _)| self.credit(input, &seated.replica, row.depth() as usize)).collect()
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

/// What says how much a match tells.
struct Telling<'t> {
    rules: &'t Rules,
    holding: &'t Holding,
    /// The tokens of all matches, ascending, if `holding` needs them.
    all_tokens: &'t [i32],
    is_chain: bool,
    /// The replicas that serve the scope.
    total: usize,
}

impl Telling<'_> {
    /// What a match of so many tokens is worth. Asked seldom, and kept out of the loops that ask.
    #[inline(never)]
    fn worth(&self, tokens: i32) -> Worth {
        if !gates::clears_matched_floor(self.rules, tokens) {
            return Worth::Nothing;
        }
        let holding = self.holding;
        let matching = if self.is_chain { holding.at_least(tokens, self.all_tokens) } else { holding.total() as usize };
        match rank::distinguishing_power(matching, self.total) {
            // Whatever the other factors are: what isn't a number sorts as 0.
            0.0 => Worth::Same(ranking::height(0.0)),
            power => Worth::Each(power),
        }
    }
}

/// The buffers of one lookup.
struct Buffers<'b> {
    matches: &'b mut Vec<Match>,
    ranking: &'b mut Ranking,
    tokens: &'b mut Vec<i32>,
}

impl Buffers<'_> {
    /// Finds all matches and admits those to the ranking that are worth a score.
    fn walk<B: AsRef<[u8]>>(
        &mut self,
        tables: &Tables,
        (sight, aging): (&Sight, &Aging),
        input: &Input<'_, B>,
        seats: &Seats,
    ) -> Holding {
        let (store, matches) = (&tables.store, &mut *self.matches);
        match *input {
            Input::Chain { hashes, counts } => {
                let reached = sight.chain(store, hashes, matches);
                self.sum_up(counts.get(..reached as usize).unwrap_or(counts), aging, seats)
            }
            Input::Blocks { hashes, block_tokens } => {
                sight.chain(store, hashes, matches);
                self.sum_up_steady(block_tokens, aging, seats)
            }
            Input::Exact(hash) => {
                sight.exact(store, hash, matches);
                self.admit_each(aging, seats)
            }
        }
    }

    /// Gives each run the tokens of its blocks: sums saturate.
    fn sum_up(&mut self, counts: &[i32], aging: &Aging, seats: &Seats) -> Holding {
        let first = counts.first().copied().unwrap_or(0);
        // Mostly all blocks have as many tokens, which is seen much faster than they are added up.
        if counts.iter().fold(0, |odd, count| odd | (count ^ first)) == 0 {
            return self.sum_up_steady(first, aging, seats);
        }
        let mut sums = std::mem::take(self.tokens);
        sums.clear();
        let mut sum = 0i32;
        sums.extend(counts.iter().map(|&count| {
            sum = sum.saturating_add(count);
            sum
        }));
        let holding = self.admit(aging, seats, |depth| {
            let last = (depth as usize).checked_sub(1);
            last.and_then(|last| sums.get(last)).copied().unwrap_or(0)
        });
        *self.tokens = sums;
        holding
    }

    /// The same where all blocks have as many tokens.
    fn sum_up_steady(&mut self, tokens: i32, aging: &Aging, seats: &Seats) -> Holding {
        // A chain is far shorter than 2^31 blocks.
        self.admit(aging, seats, |depth| tokens.saturating_mul(i32::try_from(depth).unwrap_or(i32::MAX)))
    }

    /// Admits the matches of a chain to the ranking that have any tokens: `tokens_of` says how many a run of so many
    /// blocks has.
    #[inline]
    fn admit(&mut self, aging: &Aging, seats: &Seats, tokens_of: impl Fn(u32) -> i32) -> Holding {
        let Self { matches, ranking, .. } = self;
        let mut holding = Holding::default();
        ranking.begin(seats.len());
        // Neighbours mostly have as many blocks.
        let mut rest = &matches[..];
        while let Some(Match { depth, .. }) = rest.first() {
            let tokens = tokens_of(*depth);
            let (alike, admitted) = match tokens > 0 {
                true => ranking.admit(rest, tokens, aging, seats.orders()),
                false => (1, 0),
            };
            holding.note(tokens, admitted);
            rest = rest.get(alike..).unwrap_or(&[]);
        }
        holding
    }

    /// Admits all matches, with the tokens that they have.
    fn admit_each(&mut self, aging: &Aging, seats: &Seats) -> Holding {
        let Self { matches, ranking, .. } = self;
        let mut holding = Holding::default();
        ranking.begin(seats.len());
        for found in &**matches {
            let (_, admitted) = ranking.admit(std::slice::from_ref(found), found.tokens, aging, seats.orders());
            holding.note(found.tokens, admitted);
        }
        holding
    }
}

/// Descending by score; the scores are sortable ones.
fn best_first(a: f32, b: f32) -> Ordering {
    b.total_cmp(&a)
}
