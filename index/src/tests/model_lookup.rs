//! The model's lookups: the contract's steps one after the other over full scans, with ranking in f64 of its own.

use super::model::{Entry, Key, Model, PROBE};
use crate::{LookupRequest, Prompt, RankConfig, Reason};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A score as the model sees it.
#[derive(Clone, Debug)]
pub(super) struct Score {
    pub(super) replica: String,
    pub(super) score: f64,
    pub(super) tokens: i32,
    pub(super) prob: f64,
    pub(super) tier: i32,
    /// The hashes that an LFU tenant credits.
    pub(super) credits: Vec<Vec<u8>>,
}

pub(super) struct Answer {
    pub(super) reason: Reason,
    pub(super) scores: Vec<Score>,
    pub(super) echo: bool,
    /// The top score of a prefix match and the floor it met: where they are close, f32 may decide otherwise.
    pub(super) near_floor: bool,
}

type Request<'a> = LookupRequest<'a, Vec<u8>>;

impl Model {
    fn fresh(&self, now: u64, seen: u64, tenant: &str) -> f64 {
        let ttl = self.ttl(tenant);
        if seen >= now {
            1.0
        } else if now - seen >= ttl {
            0.0
        } else {
            1.0 - (now - seen) as f64 / ttl as f64
        }
    }

    fn in_scope(&self, r: &Request<'_>) -> BTreeSet<String> {
        let here = |key: &Key| key.0 == r.tenant && key.1 == r.model && key.2 == r.scheme;
        self.live.keys().filter(|(key, _)| here(key)).map(|(_, replica)| replica.clone()).collect()
    }

    /// The entry that a replica has for a hash, if it is fresh.
    fn held(&self, r: &Request<'_>, hash: &[u8], replica: &str, now: u64) -> Option<&Entry> {
        let key = (r.tenant.into(), r.model.into(), r.scheme.into(), r.adapter.into(), hash.to_vec());
        self.live.get(&(key, replica.into())).filter(|entry| self.fresh(now, entry.seen, r.tenant) > 0.0)
    }

    fn pressure(&self, r: &Request<'_>, replica: &str, now: u64, c: &RankConfig, any_age: bool) -> f64 {
        let who = (r.tenant.to_owned(), r.model.to_owned(), replica.to_owned());
        match self.stats.get(&who) {
            Some(row) if any_age || now.saturating_sub(row.payload) < self.ttl(r.tenant) => {
                (1.0 - f64::from(c.pressure_weight) * f64::from(row.stats.pressure)).clamp(0.0, 1.0)
            }
            _ => 1.0,
        }
    }

    fn bias(r: &Request<'_>, c: &RankConfig, decay: f64) -> f64 {
        let tight = r.ttft_ms > 0 && r.ttft_ms < c.slo_tight_ttft_ms;
        if tight { 1.0 + decay * f64::from(c.slo_tight_bias) } else { 1.0 }
    }

    pub(super) fn lookup(&self, r: &Request<'_>, now: u64, c: &RankConfig) -> Answer {
        let early = |reason| Answer { reason, scores: vec![], echo: false, near_floor: false };
        if r.tenant == PROBE {
            return early(Reason::NoHint);
        }
        let p = self.policies.policies.get(r.tenant).cloned().unwrap_or_default();
        let gates = p.strategy.unwrap_or(c.strategy);
        let affinity = p.affinity_routing.unwrap_or(c.affinity_routing);
        let equal = r.block_hashes.len() == r.block_token_counts.len();
        let valid_chain = !r.block_hashes.is_empty() && equal;
        if gates.require_chain && !valid_chain {
            return early(Reason::PolicyRequiresChain);
        }
        // Resolve.
        let some_chain = !r.block_hashes.is_empty() || !r.block_token_counts.is_empty();
        let mut chain: Vec<(Vec<u8>, i32)> = vec![];
        let mut exact: Vec<u8> = r.prefix_hash.to_vec();
        let mut covered = r.prefix_token_count;
        let wire_chain = gates.enable_chain_matching && some_chain;
        if wire_chain {
            if !equal {
                return early(Reason::NoHint);
            }
            chain = r.block_hashes.iter().cloned().zip(r.block_token_counts.iter().copied()).collect();
            covered = chain.iter().fold(0, |sum, (_, n)| sum.saturating_add(*n));
        } else if exact.is_empty() {
            let tokens = match (r.token_ids, r.prompt) {
                ([], Prompt::Untokenized) => return early(Reason::NoHint),
                ([], Prompt::Tokens(tokens)) => Some(tokens),
                ([], Prompt::Absent) => None,
                (tokens, _) => Some(tokens),
            };
            if let Some(tokens) = tokens {
                let hashes = fingerprints(tokens, c.block_size as usize);
                if hashes.is_empty() || tokens.len() > 1 << 20 {
                    return early(Reason::NoHint);
                }
                covered = (hashes.len() * c.block_size as usize) as i32;
                if gates.enable_chain_matching {
                    chain = hashes.into_iter().map(|hash| (hash, c.block_size as i32)).collect();
                } else {
                    exact = hashes.last().unwrap().clone();
                }
            } else if some_chain {
                return early(Reason::NoHint);
            }
        }
        let short = p.minimum_prefix_tokens.or(c.minimum_prefix_tokens).is_some_and(|least| covered < least);
        if short && !affinity {
            return early(Reason::NoHint);
        }
        // Look up.
        let keys_set = !r.tenant.is_empty() && !r.model.is_empty() && !r.scheme.is_empty();
        let mut near_floor = false;
        let mut found = None;
        if keys_set {
            let matches = if chain.is_empty() { self.exact(r, &exact, now, c) } else { self.chain(r, &chain, now, c) };
            if !matches.is_empty() {
                found = Some((Reason::PrefixMatch, matches));
            } else if chain.is_empty() {
                let hot = self.hot(r, now, c);
                if !hot.is_empty() {
                    found = Some((Reason::TenantHot, hot));
                }
            }
            if found.is_none()
                && let Some(reason) = self.unknown(r)
            {
                return Answer { reason, scores: vec![], echo: true, near_floor };
            }
        }
        // Gates.
        if let Some((Reason::TenantHot, _)) = &found
            && !gates.enable_tenant_hot
        {
            found = None;
        }
        if short {
            found = None;
        }
        if let Some((Reason::PrefixMatch, scores)) = &mut found {
            let least = p.minimum_matched_tokens.unwrap_or(c.minimum_matched_tokens);
            scores.retain(|score| least <= 0 || score.tokens >= least);
            let floor = f64::from(p.routing_floor_score.unwrap_or(c.routing_floor_score)).max(0.0);
            let top = scores.first().map_or(-1.0, |score| score.score);
            near_floor = floor > 0.0 && (top - floor).abs() < 1e-5 * floor;
            if top < floor {
                found = None;
            }
        }
        if let Some((reason, scores)) = found {
            return Answer { reason, scores, echo: true, near_floor };
        }
        let serving: Vec<String> = self.in_scope(r).into_iter().collect();
        let seed: Vec<u8> = match chain.is_empty() {
            true => exact,
            false => chain.iter().flat_map(|(h, _)| [&(h.len() as u32).to_be_bytes()[..], h].concat()).collect(),
        };
        if !affinity || !keys_set || !equal || seed.is_empty() || serving.is_empty() {
            return Answer { reason: Reason::NoHint, scores: vec![], echo: true, near_floor };
        }
        let head = Sha256::digest(&seed)[..8].iter().fold(0u64, |n, byte| n * 256 + u64::from(*byte));
        let replica = serving[(head % serving.len() as u64) as usize].clone();
        let pick = Score { replica, score: 0.0, tokens: 0, prob: 0.0, tier: 0, credits: vec![] };
        Answer { reason: Reason::AffinityHint, scores: vec![pick], echo: true, near_floor }
    }

    fn exact(&self, r: &Request<'_>, hash: &[u8], now: u64, c: &RankConfig) -> Vec<Score> {
        let scope = self.in_scope(r);
        let held: Vec<(String, Entry)> =
            scope.iter().filter_map(|id| Some((id.clone(), self.held(r, hash, id, now)?.clone()))).collect();
        let power = power(held.len(), scope.len());
        let score = |(replica, entry): &(String, Entry)| {
            let fresh = self.fresh(now, entry.seen, r.tenant);
            let factor = self.pressure(r, replica, now, c, false) * Self::bias(r, c, fresh) * power;
            let credits = vec![hash.to_vec()];
            let tier = shown(entry.tier);
            let score = f64::from(entry.tokens) * fresh * factor;
            Score { replica: replica.clone(), score, tokens: entry.tokens, prob: fresh, tier, credits }
        };
        ranked(held.iter().map(score).collect())
    }

    fn chain(&self, r: &Request<'_>, chain: &[(Vec<u8>, i32)], now: u64, c: &RankConfig) -> Vec<Score> {
        let scope = self.in_scope(r);
        let mut runs: BTreeMap<String, (i32, Vec<Entry>)> = BTreeMap::new();
        for id in &scope {
            let mut run: (i32, Vec<Entry>) = (0, vec![]);
            for (hash, tokens) in chain {
                let Some(entry) = self.held(r, hash, id, now) else { break };
                run.0 = run.0.saturating_add(*tokens);
                run.1.push(entry.clone());
            }
            if !run.1.is_empty() && run.0 > 0 {
                runs.insert(id.clone(), run);
            }
        }
        let score = |(replica, (tokens, run)): (&String, &(i32, Vec<Entry>))| {
            let oldest = run.iter().map(|entry| entry.seen).min().unwrap();
            let fresh = self.fresh(now, oldest, r.tenant);
            let matching = runs.values().filter(|(other, _)| other >= tokens).count();
            let factor = self.pressure(r, replica, now, c, false) * Self::bias(r, c, fresh);
            let negative = run.iter().any(|entry| entry.tier < 0);
            let tier = if negative { 0 } else { shown(run.iter().map(|entry| entry.tier).max().unwrap()) };
            Score {
                replica: replica.clone(),
                score: f64::from(*tokens) * fresh * factor * power(matching, scope.len()),
                tokens: *tokens,
                prob: fresh,
                tier,
                credits: chain[..run.len()].iter().map(|(hash, _)| hash.clone()).collect(),
            }
        };
        ranked(runs.iter().map(score).collect())
    }

    fn hot(&self, r: &Request<'_>, now: u64, c: &RankConfig) -> Vec<Score> {
        let mut scores = vec![];
        for replica in self.in_scope(r) {
            let who = (r.tenant.to_owned(), r.model.to_owned(), replica.clone());
            let Some(row) = self.stats.get(&who) else { continue };
            let age = now.saturating_sub(row.payload);
            if age >= c.tenant_hot_max_age_us || row.stats.hit_rate < c.tenant_hot_min_hit_rate {
                continue;
            }
            let recency = (1.0 - age as f64 / c.tenant_hot_max_age_us as f64).clamp(0.0, 1.0);
            let rate = f64::from(row.stats.hit_rate);
            let score = rate * recency * self.pressure(r, &replica, now, c, true) * Self::bias(r, c, recency);
            scores.push(Score { replica, score, tokens: 0, prob: rate, tier: 0, credits: vec![] });
        }
        ranked(scores)
    }

    fn unknown(&self, r: &Request<'_>) -> Option<Reason> {
        let any = |test: &dyn Fn(&Key) -> bool| self.live.keys().any(|(key, _)| key.0 != PROBE && test(key));
        if !any(&|_| true) {
            None
        } else if !any(&|k| k.0 == r.tenant) {
            Some(Reason::UnknownTenant)
        } else if !any(&|k| k.0 == r.tenant && k.1 == r.model) {
            Some(Reason::UnknownModel)
        } else if !any(&|k| k.0 == r.tenant && k.1 == r.model && k.2 == r.scheme) {
            Some(Reason::UnknownHashScheme)
        } else {
            None
        }
    }
}

fn power(matching: usize, total: usize) -> f64 {
    match total {
        0 | 1 => 1.0,
        _ if matching >= total => 0.0,
        _ => 1.0 - matching as f64 / total as f64,
    }
}

fn shown(tier: i32) -> i32 {
    if (1..=3).contains(&tier) { tier } else { 0 }
}

fn ranked(mut scores: Vec<Score>) -> Vec<Score> {
    scores.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.replica.as_bytes().cmp(b.replica.as_bytes())));
    scores
}

fn fingerprints(tokens: &[u32], size: usize) -> Vec<Vec<u8>> {
    let mut hashes: Vec<u64> = vec![];
    for block in 0..tokens.len() / size {
        let bytes: Vec<u8> = tokens[block * size..(block + 1) * size].iter().flat_map(|t| t.to_le_bytes()).collect();
        let content = xxh3_64_with_seed(&bytes, 1337);
        hashes.push(match hashes.last() {
            None => content,
            Some(parent) => xxh3_64_with_seed(&[parent.to_le_bytes(), content.to_le_bytes()].concat(), 1337),
        });
    }
    hashes.iter().map(|hash| hash.to_be_bytes().to_vec()).collect()
}
