//! The engine and the model side by side through random commands: after each, the digest, the sizes, the report and
//! all aggregates agree, and so do lookups. Now and then the state goes through a snapshot that is taken while
//! commands are applied, and the walk goes on with what was loaded.
//!
//! `PREFIXD_INDEX_SEED` runs one seed, `PREFIXD_INDEX_ROUNDS` more of them, `PREFIXD_INDEX_STEPS` longer ones.

use super::commands::{ADAPTERS, MODELS, REPLICAS, SCHEMES, TENANTS, World};
use super::model::{Model, PROBE};
use super::setting;
use crate::command::{ClusterMeta, Command, Stamped};
use crate::lookup::config::RankConfig;
use crate::policy::{PolicySet, PolicySource};
use crate::snapshot::SnapshotSlice;
use crate::{Index, Loader, LookupRequest, LookupScratch, Prompt, Reason, RecordDigest, SnapshotOverflow, Totals};
use std::collections::BTreeMap;

/// (seed, steps) that once failed under today's commands. What failed under earlier ones lives on in testdata/cases
/// ("under a TTL of 0 no payload weighs in").
const CASES: [(u64, u64); 0] = [];

#[test]
fn engine_and_model_agree() {
    let rounds = setting("PREFIXD_INDEX_ROUNDS", 60);
    let steps = setting("PREFIXD_INDEX_STEPS", 250);
    let only = setting("PREFIXD_INDEX_SEED", u64::MAX);
    let seeds: Vec<(u64, u64)> = match only {
        u64::MAX => CASES.into_iter().chain((0..rounds).map(|seed| (seed, steps))).collect(),
        seed => vec![(seed, steps)],
    };
    for (seed, steps) in seeds {
        Walk::new(seed).run(steps);
    }
}

struct Walk {
    seed: u64,
    step: u64,
    world: World,
    index: Index,
    model: Model,
    config: RankConfig,
    scratch: LookupScratch,
    snapshot: Option<Snapshot>,
    reasons: BTreeMap<Reason, u64>,
}

/// A snapshot in the making and what was applied since it began.
struct Snapshot {
    digest: u128,
    at: u64,
    records: Vec<crate::SnapshotRecord>,
    since: Vec<(u64, Stamped)>,
}

impl Walk {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            step: 0,
            world: World::new(seed),
            index: Index::new(seed ^ 0xabcd),
            model: Model::default(),
            config: RankConfig::default(),
            scratch: LookupScratch::default(),
            snapshot: None,
            reasons: BTreeMap::new(),
        }
    }

    fn run(&mut self, steps: u64) {
        for step in 1..=steps {
            self.step = step;
            let command = self.world.command();
            // Stamps mostly rise, and now and then a late leader's is behind.
            let behind = if self.world.dice.one_in(15) { self.world.dice.roll(50) } else { 0 };
            self.apply(Stamped { stamp_us: self.world.now - behind, command });
            self.compare();
            for _ in 0..4 {
                self.lookup();
            }
            self.snapshot();
        }
        self.drain();
    }

    /// Lets everything expire: nothing is left behind, least of all names.
    fn drain(&mut self) {
        self.snapshot = None;
        let meta = ClusterMeta { slice_entries: 7, session_ttl_us: 1, ..ClusterMeta::default() };
        self.world.now += 1 << 40;
        for command in [Command::ClusterMeta(meta), Command::SetPolicy(PolicySet::default()), Command::Sweep] {
            self.step += 1;
            self.apply(Stamped { stamp_us: self.world.now, command });
        }
        while self.index.wants_sweep() {
            self.step += 1;
            self.apply(Stamped { stamp_us: self.world.now, command: Command::Sweep });
        }
        let pushed = crate::digest::policies(&PolicySet::default(), PolicySource::Pushed);
        assert_eq!((self.index.totals(), self.index.digest()), (Totals::default(), pushed), "seed {}", self.seed);
        let (tables, members) = (&self.index.tables, &self.index.members);
        let store = &self.index.store;
        assert_eq!((tables.names.len(), store.keys(), members.iter().count()), (0, 0, 0), "seed {}", self.seed);
        assert!((0..store.slabs()).all(|slab| store.partition_of(slab).is_none()));
        assert_eq!(self.index.partitions.iter().count(), 0, "seed {}", self.seed);
    }

    fn apply(&mut self, stamped: Stamped) {
        let at = || format!("seed {} step {}: {:?}", self.seed, self.step, stamped);
        let ours = self.index.apply(self.step, &stamped);
        let theirs = self.model.apply(self.step, &stamped);
        // The engine's ring survives no reload.
        let mut theirs = theirs;
        if let (Some(ours), Some(theirs)) = (&ours.audit, &mut theirs.audit)
            && ours.ours.is_none()
        {
            theirs.ours = None;
        }
        assert_eq!(ours, theirs, "{}", at());
        assert_eq!(self.index.time_us(), self.model.time, "{}", at());
        assert_eq!(self.index.totals(), self.model.totals(), "{}", at());
        assert_eq!(self.index.digest(), self.model.digest(), "{}", at());
        assert_eq!(self.index.wants_sweep(), self.model.wants_sweep(), "{}", at());
        let lie = u128::from(self.world.dice.one_in(3));
        self.world.audits.push((self.step, self.index.digest() + lie));
        let published = self.index.view().published();
        assert_eq!((published.digest, published.totals), (self.index.digest(), self.index.totals()));
        assert_eq!((published.applied_index, published.time_us), (self.step, self.index.time_us()));
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.since.push((self.step, stamped));
        }
    }

    /// The aggregates.
    fn compare(&self) {
        let at = format!("seed {} step {}", self.seed, self.step);
        let view = self.index.view();
        for tenant in TENANTS.iter().chain(&[PROBE, "nobody"]) {
            for model in MODELS {
                let state = view.cache_state(tenant, model);
                let ours = |name: &str| name != PROBE;
                let prefixes = self.model.prefixes();
                let count = prefixes.iter().filter(|key| ours(tenant) && key.0 == *tenant && key.1 == model).count();
                assert_eq!(state.total_prefixes, count as u64, "{at}");
                let rows: Vec<(&str, crate::delta::Stats)> =
                    state.replicas.iter().map(|(replica, stats)| (&**replica, *stats)).collect();
                let expected: Vec<(&str, crate::delta::Stats)> = self
                    .model
                    .stats
                    .iter()
                    .filter(|((t, m, _), _)| t == tenant && m == model)
                    .map(|((_, _, replica), row)| (replica.as_str(), row.stats))
                    .collect();
                assert_eq!(rows, expected, "{at}");
            }
        }
        let mut models: BTreeMap<&str, u64> = BTreeMap::new();
        let prefixes = self.model.prefixes();
        for key in prefixes.iter().filter(|key| key.0 != PROBE) {
            *models.entry(&key.1).or_default() += 1;
        }
        for (_, model, _) in self.model.stats.keys() {
            models.entry(model).or_default();
        }
        let ours: Vec<(String, u64)> = view.models().iter().map(|(model, n)| (model.to_string(), *n)).collect();
        let theirs: Vec<(String, u64)> = models.iter().map(|(model, n)| (model.to_string(), *n)).collect();
        assert_eq!(ours, theirs, "{at}");
        for model in MODELS {
            assert_eq!(view.knows_model(model), models.contains_key(model), "{at}");
        }
        self.compare_rows(&at);
    }

    fn compare_rows(&self, at: &str) {
        let rows = self.index.view().state_rows();
        let mut expected: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
        for ((key, replica), entry) in self.model.live.iter().filter(|((key, _), _)| key.0 != PROBE) {
            let row = expected.entry((&key.0, replica)).or_default();
            *row = (row.0 + 1, row.1.max(entry.seen));
        }
        let mut stats: BTreeMap<(&str, &str), (u64, std::cmp::Reverse<&str>)> = BTreeMap::new();
        for ((tenant, model, replica), row) in &self.model.stats {
            expected.entry((tenant, replica)).or_default();
            let latest = stats.entry((tenant, replica)).or_insert((row.liveness, std::cmp::Reverse(model)));
            *latest = (*latest).max((row.liveness, std::cmp::Reverse(model)));
        }
        let ours: Vec<_> =
            rows.replicas.iter().map(|row| (&*row.tenant, &*row.replica, row.entries, row.last_event_us)).collect();
        let theirs: Vec<_> = expected.iter().map(|((t, r), (n, newest))| (*t, *r, *n, *newest)).collect();
        assert_eq!(ours, theirs, "{at}");
        for row in &rows.replicas {
            let ours = row.stats.as_ref().map(|stats| (stats.liveness_us, &*stats.model));
            let theirs = stats.get(&(&*row.tenant, &*row.replica)).map(|(liveness, model)| (*liveness, model.0));
            assert_eq!(ours, theirs, "{at}");
        }
        let tenants: std::collections::BTreeSet<&str> = expected.keys().map(|(tenant, _)| *tenant).collect();
        assert!(rows.tenants.iter().map(|(tenant, _)| &**tenant).eq(tenants), "{at}");
    }

    fn lookup(&mut self) {
        let world = &mut self.world;
        let names = |world: &mut World, from: &[&'static str], odd: u64| match world.dice.roll(odd) {
            0 => "",
            1 => "nobody",
            _ => world.name(from),
        };
        let tenant = if world.dice.one_in(25) { PROBE } else { names(world, &TENANTS, 30) };
        let (model, scheme) = (names(world, &MODELS, 30), names(world, &SCHEMES, 20));
        let adapter = world.name(&ADAPTERS);
        let kind = world.dice.roll(10);
        let prefix_hash = if kind < 4 { world.hash() } else { vec![] };
        let mut block_hashes = if (3..9).contains(&kind) { world.chain() } else { vec![] };
        let dice = &mut world.dice;
        let mut block_token_counts: Vec<i32> = block_hashes.iter().map(|_| 16).collect();
        match dice.roll(25) {
            0 => drop(block_token_counts.pop()),
            1 => block_token_counts.fill(i32::MAX),
            2 => block_token_counts.iter_mut().for_each(|count| *count = *dice.pick(&[-16, 16, 0, 40])),
            3 => block_hashes.iter_mut().rev().take(1).for_each(Vec::clear),
            4 => block_token_counts.push(1),
            _ => {}
        }
        let tokens: Vec<u32> = (0..dice.roll(40) as u32).collect();
        let token_ids: &[u32] = if kind == 9 || dice.one_in(20) { &tokens } else { &[] };
        let prompt = *dice.pick(&[Prompt::Absent, Prompt::Absent, Prompt::Untokenized, Prompt::Tokens(&tokens)]);
        let request = LookupRequest {
            tenant,
            model,
            scheme,
            adapter,
            prefix_hash: &prefix_hash,
            prefix_token_count: *dice.pick(&[0, 40, 120]),
            block_hashes: &block_hashes,
            block_token_counts: &block_token_counts,
            token_ids,
            prompt,
            ttft_ms: *dice.pick(&[0, 50, 200]),
        };
        let config = RankConfig {
            tenant_hot_max_age_us: *dice.pick(&[0, 40, 300]),
            minimum_matched_tokens: *dice.pick(&[0, 16, 64]),
            block_size: *dice.pick(&[16, 7]),
            ..self.config.clone()
        };
        let now = self.index.time_us() + dice.roll(60) - dice.roll(2).min(self.index.time_us());
        self.check_lookup(&request, now, &config);
    }

    fn check_lookup(&mut self, request: &LookupRequest<'_, Vec<u8>>, now: u64, config: &RankConfig) {
        let ours = self.index.view().lookup(request, now, config, &mut self.scratch);
        let theirs = self.model.lookup(request, now, config);
        let at =
            format!("seed {} step {}: {request:?} at {now}: {ours:?}, not {:?}", self.seed, self.step, theirs.scores);
        if theirs.near_floor {
            return;
        }
        *self.reasons.entry(ours.reason).or_default() += 1;
        assert_eq!(ours.reason, theirs.reason, "{at}");
        assert_eq!(ours.adapter_echo, theirs.echo, "{at}");
        assert_eq!(ours.scores.len(), theirs.scores.len(), "{at}");
        let ordered = ours.scores.windows(2).all(|w| {
            w[0].score > w[1].score || (w[0].score == w[1].score && w[0].replica.as_bytes() < w[1].replica.as_bytes())
        });
        assert!(ordered, "{at}");
        let by_name: BTreeMap<&str, &super::model_lookup::Score> =
            theirs.scores.iter().map(|score| (score.replica.as_str(), score)).collect();
        for score in &ours.scores {
            let expected = by_name.get(&*score.replica).unwrap_or_else(|| panic!("{at}"));
            let close = |a: f32, b: f64| (f64::from(a) - b).abs() <= 1e-5 * b.abs().max(1e-6);
            assert!(close(score.score, expected.score) && close(score.hit_prob, expected.prob), "{at}");
            assert_eq!((score.matched_tokens, score.tier), (expected.tokens, expected.tier), "{at}");
        }
        let is_credited = ours.reason == Reason::PrefixMatch && self.model.is_lfu(request.tenant);
        assert_eq!(ours.credits.len(), if is_credited { ours.scores.len() } else { 0 }, "{at}");
        for credit in &ours.credits {
            let hashes: Vec<&[u8]> = credit.hashes.iter().collect();
            assert_eq!(hashes, by_name[credit.replica.as_str()].credits, "{at}");
            assert!(credit.counts.iter().all(|&n| n == 1) && credit.counts.len() == hashes.len(), "{at}");
            assert_eq!((credit.tenant.as_str(), credit.adapter.as_str()), (request.tenant, request.adapter), "{at}");
        }
    }

    /// Begins, goes on with or ends a snapshot, and sometimes takes its state over.
    fn snapshot(&mut self) {
        let Some(snapshot) = &mut self.snapshot else {
            if self.world.dice.one_in(20) {
                let info = self.index.begin_snapshot(1_000);
                let at = self.step;
                self.snapshot = Some(Snapshot { digest: info.digest, at, records: vec![], since: vec![] });
            }
            return;
        };
        let SnapshotSlice { records, done } = self.index.snapshot_slice(1 + self.world.dice.roll(8) as usize).unwrap();
        snapshot.records.extend(records);
        if !done {
            return;
        }
        let Some(snapshot) = self.snapshot.take() else { return };
        assert_eq!(self.index.snapshot_slice(1), Err(SnapshotOverflow::NotBegun));
        let at = format!("seed {} step {}, snapshot of step {}", self.seed, self.step, snapshot.at);
        let mut check = RecordDigest::default();
        let mut loader = Loader::new(self.world.dice.next());
        for record in snapshot.records {
            check.push(&record).unwrap();
            let bytes = bincode::serialize(&record).unwrap();
            assert!(bytes.len() <= crate::snapshot::MAX_RECORD_BYTES);
            loader.push(bincode::deserialize(&bytes).unwrap()).unwrap();
        }
        assert_eq!(check.finish(), snapshot.digest, "{at}");
        let mut loaded = loader.finish(snapshot.at, snapshot.digest).unwrap_or_else(|e| panic!("{at}: {e}"));
        assert_eq!((loaded.applied_index(), loaded.digest_at(snapshot.at)), (snapshot.at, Some(snapshot.digest)));
        for (index, stamped) in &snapshot.since {
            loaded.apply(*index, stamped);
            assert_eq!(Some(loaded.digest()), self.index.digest_at(*index), "{at}, replayed to {index}");
        }
        assert_eq!(loaded.totals(), self.index.totals(), "{at}");
        assert_eq!(loaded.wants_sweep(), self.index.wants_sweep(), "{at}");
        assert_eq!((loaded.meta(), loaded.policies()), (self.index.meta(), self.index.policies()), "{at}");
        assert_eq!(loaded.policy_source(), self.index.policy_source(), "{at}");
        self.index = loaded;
        self.compare();
    }
}

/// The walk is only worth something if it gets everywhere.
#[test]
fn the_walk_meets_every_reason() {
    let mut reasons: BTreeMap<Reason, u64> = BTreeMap::new();
    for seed in 1_000..1_012 {
        let mut walk = Walk::new(seed);
        walk.run(150);
        for (reason, count) in walk.reasons {
            *reasons.entry(reason).or_default() += count;
        }
    }
    for reason in Reason::ALL.into_iter().filter(|reason| *reason != Reason::Timeout) {
        assert!(reasons.get(&reason).is_some_and(|count| *count > 5), "{reason:?} in {reasons:?}");
    }
    assert!(REPLICAS.len() > 2);
}
