//! The words of the cases' language as core types; the files' first lines describe it.

use crate::RankConfig;
use crate::command::ClusterMeta;
use crate::delta::{Chain, Exact, PrefixEntry, Stats, Update};
use crate::policy::{Eviction, Strategy, TenantPolicy};

/// The words of a line: bare ones in order, and `name=value` in any.
pub(super) struct Words<'a> {
    bare: std::collections::VecDeque<&'a str>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    pub(super) fn of(line: &'a str) -> Self {
        let (mut bare, mut named) = (std::collections::VecDeque::new(), Vec::new());
        for word in line.split_whitespace() {
            match word.split_once('=') {
                // A score's row has its fields behind a colon.
                Some((name, value)) if !name.contains(':') => named.push((name, value)),
                _ => bare.push_back(word),
            }
        }
        Self { bare, named }
    }

    pub(super) fn next(&mut self) -> &'a str {
        self.bare.pop_front().unwrap_or_default()
    }

    pub(super) fn rest(&mut self) -> impl Iterator<Item = &'a str> {
        std::mem::take(&mut self.bare).into_iter()
    }

    /// Takes a named word.
    pub(super) fn get(&mut self, name: &str) -> Option<&'a str> {
        let at = self.named.iter().position(|(held, _)| *held == name)?;
        Some(self.named.remove(at).1)
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str) -> Option<T> {
        self.get(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
    }

    fn flag(&mut self, name: &str) -> Option<bool> {
        self.get(name).map(|value| value == "on")
    }

    /// Every word must have meant something.
    pub(super) fn end(self) -> Result<(), String> {
        if self.bare.is_empty() && self.named.is_empty() {
            return Ok(());
        }
        Err(format!("left over: {:?} {:?}", self.bare, self.named))
    }
}

/// A hash by name: its letters, `!` for an empty one, `x*N` for N letters.
pub(super) fn hash(word: &str) -> Vec<u8> {
    id(word).into_bytes()
}

/// A name, where `x*N` stands for N letters and `!` for none.
pub(super) fn id(word: &str) -> String {
    match word.split_once('*') {
        Some((letter, count)) => letter.repeat(count.parse().unwrap()),
        None if word == "!" => String::new(),
        None => word.to_owned(),
    }
}

/// `a,b,c` of 64 tokens each, or `a,b,c/16` of 16, or `a,b/16,20`; a lone `/16` is counts without hashes.
pub(super) fn chain(word: &str) -> (Vec<Vec<u8>>, Vec<i32>) {
    let (names, counts) = word.split_once('/').unwrap_or((word, "64"));
    let hashes: Vec<Vec<u8>> = match names.split_once("..") {
        Some((stem, count)) => (0..count.parse().unwrap()).map(|i: u32| format!("{stem}{i}").into_bytes()).collect(),
        None => names.split(',').filter(|name| !name.is_empty()).map(hash).collect(),
    };
    let counts: Vec<i32> = match counts.split_once(',') {
        None if names.is_empty() => vec![counts.parse().unwrap()],
        None => match counts.strip_suffix('!') {
            // Just the one count, however many hashes there are.
            Some(count) => vec![count.parse().unwrap()],
            None => vec![counts.parse().unwrap(); hashes.len()],
        },
        Some(_) => counts.split(',').map(|count| count.parse().unwrap()).collect(),
    };
    (hashes, counts)
}

/// `a..b`, b excluded.
pub(super) fn tokens(word: &str) -> Vec<u32> {
    let (from, to) = word.split_once("..").unwrap();
    (from.parse().unwrap()..to.parse().unwrap()).collect()
}

/// The timestamp of `ago=SECONDS` (negative is the future), or 0 for none.
pub(super) fn ago(words: &mut Words<'_>, now_us: u64) -> u64 {
    words.number::<i64>("ago").map_or(0, |seconds| now_us.saturating_add_signed(-seconds * 1_000_000))
}

/// `hash:count`, `~chain`, or `hash:count~chain`, then `@adapter` and `#tier` if wanted.
fn entry(word: &str, default_adapter: &str) -> PrefixEntry {
    let (word, tier) = word.split_once('#').map_or((word, 1), |(word, tier)| (word, tier.parse().unwrap()));
    let (word, adapter) = word.split_once('@').unwrap_or((word, default_adapter));
    let (exact, blocks) = word.split_once('~').map_or((word, None), |(exact, blocks)| (exact, Some(blocks)));
    let exact =
        exact.split_once(':').map(|(name, count)| Exact { hash: hash(name), token_count: count.parse().unwrap() });
    let chain = blocks.map(chain).and_then(|(hashes, counts)| Chain::pack(&hashes, &counts));
    PrefixEntry { adapter: id(adapter), tier, chain, exact }
}

pub(super) fn update(words: &mut Words<'_>, now_us: u64) -> Update {
    let replica = id(words.next());
    let adapter = words.get("adapter").unwrap_or_default();
    let stats = Stats {
        cache_memory_bytes: words.number("memory").unwrap_or(0),
        hit_rate: words.number("hit_rate").unwrap_or(f32::MIN),
        pressure: words.number("pressure").unwrap_or(0.0),
        t2_hit_tokens: words.number("t2_hits").unwrap_or(0),
        t2_query_tokens: words.number("t2_queries").unwrap_or(0),
    };
    Update {
        replica,
        tenant: id(words.get("tenant").unwrap_or("t")),
        model: id(words.get("model").unwrap_or("m")),
        scheme: id(words.get("scheme").unwrap_or("vllm")),
        timestamp_us: ago(words, now_us),
        entries: words.rest().map(|word| entry(word, adapter)).collect(),
        // A payload always says its hit rate here.
        stats: (stats.hit_rate != f32::MIN).then_some(stats),
    }
}

pub(super) fn policy(words: &mut Words<'_>) -> (String, TenantPolicy) {
    let defaults = Strategy::default();
    let gates = (words.flag("chains"), words.flag("require_chain"), words.flag("hot"));
    let policy = TenantPolicy {
        ttl_us: words.number::<u64>("ttl").map(|seconds| seconds * 1_000_000),
        minimum_prefix_tokens: words.number("minimum_prefix"),
        minimum_matched_tokens: words.number("minimum_matched"),
        routing_floor_score: words.number("floor"),
        lookup_timeout_ms: words.number("timeout_ms"),
        eviction: if words.get("eviction") == Some("lfu") { Eviction::Lfu } else { Eviction::Lru },
        affinity_routing: words.flag("affinity"),
        strategy: (gates != (None, None, None)).then(|| Strategy {
            enable_chain_matching: gates.0.unwrap_or(defaults.enable_chain_matching),
            require_chain: gates.1.unwrap_or(defaults.require_chain),
            enable_tenant_hot: gates.2.unwrap_or(defaults.enable_tenant_hot),
        }),
    };
    (words.get("tenant").unwrap_or("t").to_owned(), policy)
}

pub(super) fn meta(words: &mut Words<'_>, meta: &mut ClusterMeta) {
    meta.max_entries = words.number("cap").unwrap_or(meta.max_entries);
    meta.max_bytes = words.number("bytes").unwrap_or(meta.max_bytes);
    meta.slice_entries = words.number("slice").unwrap_or(meta.slice_entries);
    meta.default_ttl_us = words.number::<u64>("ttl").map_or(meta.default_ttl_us, |seconds| seconds * 1_000_000);
}

pub(super) fn config(words: &mut Words<'_>, config: &mut RankConfig) {
    config.tenant_hot_max_age_us =
        words.number::<u64>("hot_max_age").map_or(config.tenant_hot_max_age_us, |seconds| seconds * 1_000_000);
    config.pressure_weight = words.number("pressure_weight").unwrap_or(config.pressure_weight);
    config.slo_tight_bias = words.number("tight_bias").unwrap_or(config.slo_tight_bias);
    config.block_size = words.number("block_size").unwrap_or(config.block_size);
    config.minimum_prefix_tokens = words.number("minimum_prefix").or(config.minimum_prefix_tokens);
}
