//! The controller's port: policies that govern lookups, the snapshot document, the probe, strict methods and bodies.

use super::*;
use prefixd_index::command::{Command, Probe};
use serde_json::{Value, json};

async fn policy(server: &Server, document: &Value) {
    let (status, _, body) = server.internal("POST", "/policy", &document.to_string()).await;
    assert_eq!(status, 204, "{body}");
}

#[tokio::test]
async fn a_policy_governs_its_tenant_and_a_refused_one_nothing() {
    let server = Server::start().await;
    goes_on(&server).await;
    let mut client = server.client().await;
    policy(&server, &json!({"version": 7, "policies": [{"namespace": "t", "minimumMatchedTokens": 1_000}]})).await;
    let answer = client.lookup_route(lookup("alive")).await.unwrap().into_inner();
    assert_eq!(answer.reason_code, "AFFINITY_HINT");
    let (status, _, body) = server.internal("PUT", "/policy", r#"{"version":7,"policies":[],"extra":1}"#).await;
    assert!(status == 400 && body.contains("extra"), "{status} {body}");
    let answer = client.lookup_route(lookup("alive")).await.unwrap().into_inner();
    assert_eq!(answer.reason_code, "AFFINITY_HINT", "the old set stays");
    let (status, ..) = server.internal("PUT", "/policy", r#"{"version":7}"#).await;
    assert_eq!(status, 204);
    let answer = client.lookup_route(lookup("alive")).await.unwrap().into_inner();
    assert_eq!(answer.reason_code, "PREFIX_MATCH");
    server.stop().await;
}

#[tokio::test]
async fn the_snapshot_shows_what_was_reported() {
    let server = Server::start().await;
    let mut sent = update("p", 64);
    sent.stats = Some(wire::ReplicaStats { hit_rate: 0.5, ..Default::default() });
    server.client().await.report_cache_state(tokio_stream::iter([sent])).await.unwrap();
    let (status, _, body) = server.internal("GET", "/snapshot", "").await;
    assert_eq!(status, 200);
    let document: Value = serde_json::from_str(&body).unwrap();
    let row = &document["replicas"][0];
    assert_eq!(
        (&row["replicaId"], &row["prefixCount"], &row["statsReported"]),
        (&json!("r1"), &json!(1), &json!(true))
    );
    assert_eq!(document["tenants"][0]["indexEntries"], json!(1));
    assert_eq!(document["totalPrefixes"], json!(1));
    server.stop().await;
}

#[tokio::test]
async fn a_probe_takes_the_real_path_and_leaves_nothing() {
    let server = Server::start().await;
    policy(&server, &json!({"version": 7, "tenants": [{"tenantID": "inferencecache.io/probe", "maxIndexEntries": 0}]}))
        .await;
    let ask = r#"{"backend":"ns/be","model":"m","hashScheme":"vllm"}"#;
    let (status, _, body) = server.internal("POST", "/probe", ask).await;
    assert_eq!((status, body.as_str()), (200, r#"{"backend":"ns/be","ingest":"ok","routing":"ok","t2":"skipped"}"#));
    assert_eq!(server.series("prefixd_index_entries").await, Some(0.0));
    for (body, expected) in [(r#"{"backend":"b","model":"m"}"#, 400), (&*"x".repeat(5_000), 400)] {
        assert_eq!(server.internal("POST", "/probe", body).await.0, expected);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_failed_stage_skips_the_later_ones_and_is_named() {
    let far = ("peers", "prefixd=127.0.0.1:1,other=127.0.0.1:2");
    let server = Server::unready(&[far, ("node_name", "prefixd"), ("propose_timeout", "200ms")]).await;
    let ask = r#"{"backend":"ns/be","model":"m","hashScheme":"vllm"}"#;
    let (status, _, body) = server.internal("POST", "/probe", ask).await;
    assert_eq!(status, 200, "{body}");
    let report: Value = serde_json::from_str(&body).unwrap();
    let stages = (&report["ingest"], &report["routing"], &report["t2"]);
    assert_eq!(stages, (&json!("failed"), &json!("skipped"), &json!("skipped")));
    assert_eq!((report["errors"].as_array().map(Vec::len), &report["errors"][0]["stage"]), (Some(1), &json!("ingest")));
    let (status, _, body) = server.internal("POST", "/policy", r#"{"version":7}"#).await;
    assert!(status == 503 && body.contains("not committed in time"), "{status} {body}");
    let (status, ..) = server.internal("POST", "/policy", "{").await;
    assert_eq!(status, 400, "what is wrong with a body doesn't depend on a quorum");
    server.stop().await;
}

#[tokio::test]
async fn the_reserved_tenant_appears_nowhere() {
    let server = Server::start().await;
    let reserved = "inferencecache.io/probe";
    let probe = Probe {
        replica: "__probe-b".into(),
        model: "m".into(),
        scheme: "vllm".into(),
        hash: b"alive".to_vec(),
        present: true,
    };
    server.running.node.propose(Command::Probe(probe)).await.unwrap();
    let (_, _, snapshot) = server.internal("GET", "/snapshot", "").await;
    let empty = json!({"replicas": [], "tenants": [], "totalPrefixes": 0, "hotPrefixes": 0});
    assert_eq!(serde_json::from_str::<Value>(&snapshot).unwrap(), empty);
    let (_, page) = server.get("/metrics").await;
    assert!(!page.contains(reserved) && !page.contains("__probe") && !page.contains("index_entries{model"), "{page}");
    let mut client = server.client().await;
    let ask = wire::GetCacheStateRequest { tenant_id: reserved.into(), model_id: "m".into() };
    let state = client.get_cache_state(ask).await.unwrap().into_inner();
    assert_eq!(state, wire::GetCacheStateResponse { summary: state.summary, ..Default::default() });
    assert!(state.summary.is_none_or(|summary| summary.total_prefixes == 0));
    let asked = wire::LookupRouteRequest { tenant_id: reserved.into(), ..lookup("alive") };
    let answer = client.lookup_route(asked).await.unwrap().into_inner();
    assert_eq!((answer.reason_code.as_str(), answer.replica_scores.len()), ("NO_HINT", 0));
    let answer = client.lookup_route(lookup("alive")).await.unwrap().into_inner();
    assert_eq!(answer.reason_code, "NO_HINT", "an index with nothing but the probe's block is empty");
    server.stop().await;
}

#[tokio::test]
async fn bodies_are_judged_whole() {
    let server = Server::start().await;
    let padded = |bytes: usize| format!("{{\"version\":7}}{}", " ".repeat(bytes - 13));
    let probe = r#"{"backend":"b","model":"m","hashScheme":"v"}"#;
    for (path, body, expected) in [
        ("/policy", String::new(), 400),
        ("/policy", "[7,null,null]".into(), 400),
        ("/policy", r#"{"version":7} {}"#.into(), 400),
        ("/policy", r#"{"version":2}"#.into(), 400),
        ("/policy", padded(1 << 20), 204),
        ("/policy", padded((1 << 20) + 1), 413),
        ("/probe", String::new(), 400),
        ("/probe", r#"["b","m","v",null]"#.into(), 400),
        ("/probe", format!("{probe} 1"), 400),
        ("/probe", format!("{probe}{}", " ".repeat(4_096 - probe.len())), 200),
        ("/probe", format!("{probe}{}", " ".repeat(4_097 - probe.len())), 400),
    ] {
        let (status, _, said) = server.internal("POST", path, &body).await;
        assert_eq!(status, expected, "{path} {:.40} {said}", body);
    }
    server.stop().await;
}

#[tokio::test]
async fn methods_and_paths_are_exact() {
    let server = Server::start().await;
    for (method, path, status, allow) in [
        ("POST", "/snapshot", 405, "GET"),
        ("HEAD", "/snapshot", 405, "GET"),
        ("GET", "/policy", 405, "POST, PUT"),
        ("DELETE", "/policy", 405, "POST, PUT"),
        ("GET", "/probe", 405, "POST"),
        ("GET", "/nope", 404, ""),
        ("GET", "/metrics", 404, ""),
    ] {
        let (seen, listed, _) = server.internal(method, path, "").await;
        assert_eq!((seen, listed.as_str()), (status, allow), "{method} {path}");
    }
    for path in ["/snapshot", "/policy", "/probe"] {
        assert_eq!(server.get(path).await.0, 404, "{path} is not public");
    }
    let oversized = " ".repeat(2 << 20);
    assert_eq!(server.internal("POST", "/policy", &oversized).await.0, 413);
    server.stop().await;
}

#[tokio::test]
async fn what_an_lfu_tenant_delivers_outlives_the_cap() {
    let server = Server::with(&[("max_index_entries", "3")]).await;
    policy(&server, &json!({"version": 7, "policies": [{"namespace": "t", "eviction": "lfu"}]})).await;
    let mut client = server.client().await;
    for hash in ["p1", "p2", "p3"] {
        client.report_cache_state(tokio_stream::iter([update(hash, 100)])).await.unwrap();
    }
    let before = server.running.node.applied_index();
    assert_eq!(client.lookup_route(lookup("p1")).await.unwrap().into_inner().reason_code, "PREFIX_MATCH");
    eventually("the access is logged", async || server.running.node.applied_index() > before).await;
    client.report_cache_state(tokio_stream::iter([update("p4", 100)])).await.unwrap();
    assert_eq!(client.lookup_route(lookup("p1")).await.unwrap().into_inner().reason_code, "PREFIX_MATCH");
    assert_eq!(client.lookup_route(lookup("p2")).await.unwrap().into_inner().reason_code, "AFFINITY_HINT");
    let evicted = "inferencecache_index_evictions_total{algorithm=\"lfu\",reason=\"cap\"}";
    assert_eq!(server.series(evicted).await, Some(1.0));
    server.stop().await;
}
