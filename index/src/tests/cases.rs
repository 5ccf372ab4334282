//! The contract's rules as cases that people can read: testdata/cases/*.txt, whose first lines explain the language.
//! Each case runs on an index of its own.

use super::script::{self, Words};
use crate::command::{Batch, ClusterMeta, Command, Stamped};
use crate::delta::{Delta, Event, EventKind};
use crate::policy::PolicySet;
use crate::{Index, LookupRequest, LookupScratch, Prompt, RankConfig, ReplicaScore};

#[test]
fn every_case_holds() {
    let files = [
        include_str!("../../testdata/cases/matching.txt"),
        include_str!("../../testdata/cases/fallbacks.txt"),
        include_str!("../../testdata/cases/ingest.txt"),
        include_str!("../../testdata/cases/policies.txt"),
        include_str!("../../testdata/cases/limits.txt"),
    ];
    let mut cases = 0;
    let mut failures = Vec::new();
    for file in files {
        for case in file.split("\n== ").skip(1) {
            let (name, body) = case.split_once('\n').unwrap();
            let mut run = Case::new();
            for line in body.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
                if let Err(what) = run.line(line) {
                    failures.push(format!("{name}\n  {line}\n  {what}"));
                    break;
                }
            }
            cases += 1;
        }
    }
    assert!(failures.is_empty(), "{} of {cases} cases fail\n\n{}", failures.len(), failures.join("\n\n"));
    assert!(cases > 80, "{cases} cases");
}

/// Seconds since the epoch at which a case begins.
const BEGIN_S: u64 = 1_000_000;

struct Case {
    index: Index,
    at: u64,
    now_us: u64,
    policies: PolicySet,
    meta: ClusterMeta,
    config: RankConfig,
    last: crate::Applied,
}

impl Case {
    fn new() -> Self {
        Self {
            index: Index::new(1),
            at: 0,
            now_us: BEGIN_S * 1_000_000,
            policies: PolicySet::default(),
            meta: ClusterMeta::default(),
            config: RankConfig::default(),
            last: crate::Applied::default(),
        }
    }

    fn apply(&mut self, command: Command) {
        self.at += 1;
        self.last = self.index.apply(self.at, &Stamped { stamp_us: self.now_us, command });
    }

    fn delta(&mut self, delta: Delta) {
        let batch = Batch { session: 1, sequence: self.at + 1, producer: None, deltas: vec![delta] };
        self.apply(Command::Deltas(vec![batch]));
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let (said, expected) = line.split_once("=>").map_or((line, None), |(said, expected)| (said, Some(expected)));
        let mut words = Words::of(said);
        match words.next() {
            "report" => self.delta(Delta::Update(script::update(&mut words, self.now_us))),
            "event" => {
                let event = self.event(&mut words);
                self.delta(Delta::Event(event));
            }
            "policy" => {
                let (tenant, policy) = script::policy(&mut words);
                self.policies.policies.insert(tenant, policy);
                self.apply(Command::SetPolicy(self.policies.clone()));
            }
            "quota" => {
                let quota = words.next().parse().unwrap();
                self.policies.quotas.insert(words.get("tenant").unwrap_or("t").into(), quota);
                self.apply(Command::SetPolicy(self.policies.clone()));
            }
            "offer" => {
                let (tenant, policy) = script::policy(&mut words);
                let policies = [(tenant, policy)].into();
                self.apply(Command::OfferPolicy(PolicySet { policies, ..PolicySet::default() }));
            }
            "meta" => {
                script::meta(&mut words, &mut self.meta);
                self.apply(Command::ClusterMeta(self.meta.clone()));
            }
            "config" => script::config(&mut words, &mut self.config),
            "sweep" => self.apply(Command::Sweep),
            "wait" => self.now_us += words.next().parse::<u64>().unwrap() * 1_000_000,
            "lookup" => self.lookup(&mut words, expected.unwrap_or_default())?,
            "credit" => self.credit(&mut words),
            "state" => same(&self.state(&mut words), expected.unwrap_or_default().trim())?,
            "applied" => same(&self.applied(), expected.unwrap_or_default().trim())?,
            other => return Err(format!("what is {other}?")),
        }
        words.end()
    }

    fn event(&self, words: &mut Words<'_>) -> Event {
        let what = words.next();
        let replica = words.next().to_owned();
        let kind = match what {
            "evicted" => EventKind::PrefixEvicted {
                hash: script::hash(words.next()),
                adapter: words.get("adapter").unwrap_or_default().to_owned(),
            },
            "cleared" => EventKind::AllCleared,
            _ => EventKind::ReplicaUpdated { timestamp_us: script::ago(words, self.now_us) },
        };
        let tenant = words.get("tenant").unwrap_or("t").to_owned();
        Event { kind, replica, tenant, model: words.get("model").unwrap_or("m").to_owned() }
    }

    /// Runs `act` on the request that the words say.
    fn request<T>(&self, words: &mut Words<'_>, act: impl FnOnce(LookupRequest<'_, Vec<u8>>) -> T) -> T {
        let (hashes, counts) = words.get("chain").map(script::chain).unwrap_or_default();
        let prefix_hash = words.get("hash").map(script::hash).unwrap_or_default();
        let tokens: Vec<u32> = words.get("tokens").map(script::tokens).unwrap_or_default();
        let prompt_tokens: Vec<u32> = words.get("prompt_tokens").map(script::tokens).unwrap_or_default();
        let prompt = match (words.get("prompt"), prompt_tokens.as_slice()) {
            (Some(_), _) => Prompt::Untokenized,
            (None, []) => Prompt::Absent,
            (None, tokens) => Prompt::Tokens(tokens),
        };
        act(LookupRequest {
            tenant: words.get("tenant").unwrap_or("t"),
            model: words.get("model").unwrap_or("m"),
            scheme: words.get("scheme").unwrap_or("vllm"),
            adapter: words.get("adapter").unwrap_or(""),
            prefix_hash: &prefix_hash,
            prefix_token_count: words.get("count").map_or(0, |count| count.parse().unwrap()),
            block_hashes: &hashes,
            block_token_counts: &counts,
            token_ids: &tokens,
            prompt,
            ttft_ms: words.get("ttft").map_or(0, |ttft| ttft.parse().unwrap()),
        })
    }

    fn lookup(&self, words: &mut Words<'_>, expected: &str) -> Result<(), String> {
        let (view, mut scratch) = (self.index.view(), LookupScratch::default());
        let answer = self.request(words, |request| view.lookup(&request, self.now_us, &self.config, &mut scratch));
        let mut expected = Words::of(expected);
        let said = format!("{answer:?}");
        if answer.reason.as_str() != expected.next() {
            return Err(said);
        }
        if let Some(echo) = expected.get("echo")
            && answer.adapter_echo != (echo == "yes")
        {
            return Err(said);
        }
        let mut scores = answer.scores.iter();
        let rows: Vec<&str> = expected.rest().collect();
        for row in &rows {
            let score = scores.next().ok_or(&said)?;
            matches(row, score).map_err(|what| format!("{what} in {said}"))?;
        }
        if scores.next().is_some() && rows != ["..."] { Err(said) } else { Ok(()) }
    }

    fn credit(&mut self, words: &mut Words<'_>) {
        let (view, mut scratch) = (self.index.view(), LookupScratch::default());
        let answer = self.request(words, |request| view.lookup(&request, self.now_us, &self.config, &mut scratch));
        self.apply(Command::AccessCredits(answer.credits));
    }

    fn state(&self, words: &mut Words<'_>) -> String {
        let (tenant, model) = (words.get("tenant").unwrap_or("t"), words.get("model").unwrap_or("m"));
        let state = self.index.view().cache_state(tenant, model);
        let row = |(replica, s): &(std::sync::Arc<str>, crate::delta::Stats)| {
            let Stats { hit_rate, pressure, cache_memory_bytes, t2_hit_tokens, t2_query_tokens } = *s;
            format!(" {replica}({hit_rate},{pressure},{cache_memory_bytes},{t2_hit_tokens}/{t2_query_tokens})")
        };
        use crate::delta::Stats;
        let rows: String = state.replicas.iter().map(row).collect();
        format!("prefixes={} entries={}{rows}", state.total_prefixes, self.index.totals().entries)
    }

    fn applied(&self) -> String {
        let crate::Applied { refused, evictions: e, purged, expired_stats, .. } = &self.last;
        let quota: u64 = e.over_quota.values().sum();
        format!(
            "refused={refused} cap={}+{} ttl={}+{} quota={quota} purged={purged} stats={expired_stats}",
            e.lru_cap, e.lfu_cap, e.lru_ttl, e.lfu_ttl
        )
    }
}

fn same(found: &str, expected: &str) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found}, not {expected}")) }
}

/// `replica` or `replica:score=1,tokens=2,prob=3,tier=4`, any of them.
fn matches(row: &str, score: &ReplicaScore) -> Result<(), String> {
    let (replica, fields) = row.split_once(':').unwrap_or((row, ""));
    if replica != "..." && *score.replica != *replica {
        return Err(format!("{} is not {replica}", score.replica));
    }
    for (name, value) in fields.split(',').filter_map(|field| field.split_once('=')) {
        let found = match name {
            "score" => score.score,
            "tokens" => score.matched_tokens as f32,
            "prob" => score.hit_prob,
            "tier" => score.tier as f32,
            other => return Err(format!("what is {other}?")),
        };
        let value: f32 = value.parse().unwrap();
        if (found - value).abs() > 1e-3 * value.abs().max(1e-6) {
            return Err(format!("{replica}: {name} {found}, not {value}"));
        }
    }
    Ok(())
}
