//! The controller's port: policies that govern lookups, the snapshot document, the probe, strict methods and bodies.

use super::*;
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
