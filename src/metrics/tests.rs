use super::*;
use prefixd_index::Reason;
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
