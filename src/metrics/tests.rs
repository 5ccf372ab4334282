use super::*;
use prefixd_index::command::{Batch, Command, Stamped};
use prefixd_index::delta::{Delta, Exact, PrefixEntry, Update};
use prefixd_index::{Index, LookupRequest, LookupScratch, Prompt, RankConfig, Reason, View};
use prefixd_proto::ingest::{DropReason, Drops};
use prefixd_raft::{Histogram, MemberStatus};
use prometheus_client::encoding::prometheus_text;
use std::collections::BTreeSet;
use std::time::Duration;

/// A page on which every family has a sample.
fn page(metrics: &Arc<Metrics>) -> String {
    let histogram = Histogram { bounds_seconds: vec![0.001, 0.01], counts: vec![3, 5], count: 6, sum_seconds: 0.5 };
    let scrape = move || Scrape {
        status: NodeStatus {
            members: vec![MemberStatus { name: "n0".into(), voter: true, lag: Some(4), ..Default::default() }],
            snapshot_age_seconds: Some(9),
            quorum_margin: Some(-1),
            ..Default::default()
        },
        figures: NodeFigures {
            fsync: histogram.clone(),
            evictions_lfu_cap: 2,
            tenant_evictions: vec![("known".into(), 1), ("gone".into(), 2), ("also gone".into(), 3)],
            ..Default::default()
        },
        published: Published::default(),
        models: vec![("m".into(), 3)],
        known_tenant: Box::new(|tenant| tenant == "known"),
        security: Arc::default(),
        policies_pushed: true,
        resident_bytes: Some(1 << 20),
    };
    let registry = registry_of(Exposition { metrics: metrics.clone(), scrape: Box::new(scrape) });
    let mut page = String::new();
    prometheus_text::encode(&mut page, &registry).unwrap();
    page
}

fn has(page: &str, line: &str) {
    assert!(page.lines().any(|l| l == line), "no line {line:?} in\n{page}");
}

#[test]
fn lookups_are_counted_by_model_reason_and_use() {
    let metrics = Arc::new(Metrics::default());
    let us = Duration::from_micros;
    metrics.lookups.record("m", true, Reason::PrefixMatch, true, us(100));
    metrics.lookups.record("m", true, Reason::PrefixMatch, true, us(101));
    metrics.lookups.record("m", true, Reason::NoHint, false, us(200_000));
    metrics.lookups.record("other", true, Reason::NoHint, false, us(1));
    metrics.lookups.record("made up", false, Reason::UnknownModel, false, us(1));
    let page = page(&metrics);
    let calls = "inferencecache_lookup_route_calls_total";
    has(&page, &format!("{calls}{{model=\"m\",reason_code=\"PREFIX_MATCH\",hint_used=\"true\"}} 2"));
    has(&page, &format!("{calls}{{model=\"other\",reason_code=\"UNKNOWN_MODEL\",hint_used=\"false\"}} 1"));
    let bucket = "inferencecache_lookup_route_latency_seconds_bucket";
    has(&page, &format!("{bucket}{{model=\"m\",le=\"0.0001\"}} 1"));
    has(&page, &format!("{bucket}{{model=\"m\",le=\"0.00025\"}} 2"));
    has(&page, &format!("{bucket}{{model=\"m\",le=\"0.1\"}} 2"));
    has(&page, &format!("{bucket}{{model=\"m\",le=\"+Inf\"}} 3"));
    assert!(!page.contains("made up"));
}

#[test]
fn figures_become_series() {
    let metrics = Arc::new(Metrics::default());
    let mut drops = Drops::default();
    drops.add(DropReason::EmptyHash, 2);
    metrics.ingest.drops(&drops);
    let open = metrics.ingest.open_stream();
    let shown = page(&metrics);
    drop(open);
    for line in [
        "prefixd_ingest_drops_total{reason=\"empty_hash\"} 2",
        "prefixd_ingest_streams 1.0",
        "inferencecache_index_entries{model=\"m\"} 3.0",
        "inferencecache_index_evictions_total{algorithm=\"lfu\",reason=\"cap\"} 2",
        "inferencecache_tenant_evictions_total{tenant_id=\"known\",reason=\"over_entries\"} 1",
        "inferencecache_tenant_evictions_total{tenant_id=\"other\",reason=\"over_entries\"} 5",
        "prefixd_storage_fsync_seconds_bucket{le=\"0.01\"} 5",
        "prefixd_storage_fsync_seconds_bucket{le=\"+Inf\"} 6",
        "prefixd_storage_snapshot_age_seconds 9.0",
        "prefixd_raft_member_lag_entries{member=\"n0\"} 4.0",
        "prefixd_raft_quorum_margin -1.0",
    ] {
        has(&shown, line);
    }
    has(&page(&metrics), "prefixd_ingest_streams 0.0");
}

#[test]
fn models_beyond_the_limit_are_other() {
    let counters = LookupCounters::default();
    for i in 0..MAX_LABEL_VALUES + 5 {
        counters.record(&format!("m{i}"), true, Reason::NoHint, false, Duration::ZERO);
    }
    let metrics = Arc::new(Metrics { lookups: counters, ..Default::default() });
    let first = page(&metrics);
    has(
        &first,
        "inferencecache_lookup_route_calls_total{model=\"other\",reason_code=\"NO_HINT\",hint_used=\"false\"} 5",
    );
    // The scrape lists "m" alone, so that the others have made room for a new one.
    metrics.lookups.record("new", true, Reason::NoHint, false, Duration::ZERO);
    assert!(page(&metrics).contains("model=\"new\""));
}

/// The distinct values of a label on a page.
fn values<'p>(page: &'p str, label: &str) -> BTreeSet<&'p str> {
    let start = format!("{label}=\"");
    page.lines().filter_map(|line| line.split_once(&start)?.1.split('"').next()).collect()
}

#[test]
fn a_hundred_thousand_made_up_models_and_tenants_make_no_series() {
    const MADE_UP: u64 = 100_000;
    let mut index = Index::new(1);
    let metrics = Arc::new(Metrics::default());
    let (mut scratch, rank) = (LookupScratch::default(), RankConfig::default());
    let ask = |view: &View, scratch: &mut LookupScratch, name: &str| {
        let request = LookupRequest::<&[u8]> {
            tenant: name,
            model: name,
            scheme: "s",
            adapter: "",
            prefix_hash: b"h",
            prefix_token_count: 0,
            block_hashes: &[],
            block_token_counts: &[],
            token_ids: &[],
            prompt: Prompt::Absent,
            ttft_ms: 0,
        };
        let answer = view.lookup(&request, 1, &rank, scratch);
        let hint_used = !answer.scores.is_empty();
        metrics.lookups.record(name, view.knows_model(name), answer.reason, hint_used, Duration::ZERO);
    };
    let names: Vec<String> = (0..MADE_UP).map(|n| format!("made-up-{n}")).collect();

    // Asked for, and held by nobody: one series.
    let view = index.view();
    names.iter().for_each(|name| ask(&view, &mut scratch, name));
    let shown = page(&metrics);
    assert_eq!(values(&shown, "model"), BTreeSet::from(["m", OTHER]));
    let calls = "inferencecache_lookup_route_calls_total{model=\"other\",reason_code=\"NO_HINT\",hint_used=\"false\"}";
    has(&shown, &format!("{calls} {MADE_UP}"));

    // Reported by somebody, each under its own tenant, then asked for: as many series as the limit allows.
    let batches = names.chunks(1_000).enumerate().map(|(n, names)| {
        let exact = || Exact { hash: b"h".to_vec(), token_count: 1 };
        let entry = || PrefixEntry { exact: Some(exact()), chain: None, tier: 1, adapter: String::new() };
        let update = |name: &String| Update {
            replica: "r".into(),
            tenant: name.clone(),
            model: name.clone(),
            scheme: "s".into(),
            timestamp_us: 0,
            entries: vec![entry()],
            stats: None,
        };
        let deltas = names.iter().map(|name| Delta::Update(update(name))).collect();
        Batch { session: 1, sequence: n as u64 + 1, producer: None, deltas }
    });
    for (n, batch) in batches.enumerate() {
        index.apply(n as u64 + 1, &Stamped { stamp_us: 1, command: Command::Deltas(vec![batch]) });
    }
    assert_eq!(index.totals().prefixes, MADE_UP);
    names.iter().for_each(|name| ask(&view, &mut scratch, name));
    let evicted: Vec<(String, u64)> = names.iter().map(|name| (name.clone(), 1)).collect();
    let (models, known) = (view.models(), view);
    let scrape = move || Scrape {
        status: NodeStatus::default(),
        figures: NodeFigures { tenant_evictions: evicted.clone(), ..Default::default() },
        published: known.published(),
        models: models.clone(),
        known_tenant: Box::new({
            let known = known.clone();
            move |tenant| known.knows_tenant(tenant)
        }),
        policies_pushed: false,
        resident_bytes: None,
        security: Arc::default(),
    };
    let registry = registry_of(Exposition { metrics, scrape: Box::new(scrape) });
    for _ in 0..2 {
        let mut shown = String::new();
        prometheus_text::encode(&mut shown, &registry).unwrap();
        // What is listed, what was recorded, and "other".
        assert!(values(&shown, "model").len() <= 2 * MAX_LABEL_VALUES + 1);
        assert_eq!(values(&shown, "tenant_id").len(), MAX_LABEL_VALUES + 1);
        let of_index = shown.lines().filter(|line| line.starts_with("inferencecache_index_entries{")).count();
        assert_eq!(of_index, MAX_LABEL_VALUES);
        assert!(shown.lines().count() < 25 * MAX_LABEL_VALUES, "{} lines", shown.lines().count());
    }
}

#[test]
fn the_page_of_metrics_and_the_code_agree() {
    let text = include_str!("../../docs/METRICS.md");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
        Some(format!("{} {}", cells.next()?, cells.next()?))
    };
    let documented: BTreeSet<String> = text.lines().filter_map(row).collect();
    let page = page(&Arc::new(Metrics::default()));
    let exposed: BTreeSet<String> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).map(str::to_owned).collect();
    let missing: Vec<_> = exposed.difference(&documented).collect();
    let gone: Vec<_> = documented.difference(&exposed).collect();
    assert!(missing.is_empty() && gone.is_empty(), "not in docs/METRICS.md: {missing:#?}\nnot in the code: {gone:#?}");
}
