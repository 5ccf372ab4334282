//! The surfaces around lookups and ingest: stubs, deadlines, headers, health, reflection, metrics, an orderly stop.

use super::*;
use prefixd_index::limits::RESERVED_TENANT;
use tokio_stream::StreamExt;
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::test]
async fn stubs_answer_as_the_contract_says() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let rendered = client.render_template(wire::RenderTemplateRequest::default()).await.unwrap().into_inner();
    assert_eq!(rendered, wire::RenderTemplateResponse { reason_code: "OK".into(), ..Default::default() });
    let routed = client.lookup_pd_route(wire::LookupPdRouteRequest::default()).await.unwrap().into_inner();
    assert_eq!(routed, wire::LookupPdRouteResponse { reason_code: "NO_HINT".into(), ..Default::default() });
    let mut events = client.stream_cache_events(wire::StreamEventsRequest::default()).await.unwrap().into_inner();
    assert!(events.message().await.unwrap().is_none());
    let mut metrics = client.stream_metrics(wire::StreamMetricsRequest::default()).await.unwrap().into_inner();
    assert!(metrics.message().await.unwrap().is_none());
    let ack = client.report_cache_state(tokio_stream::empty()).await.unwrap().into_inner();
    assert_eq!(ack, wire::Ack { accepted: true, reason_code: String::new() });
    server.stop().await;
}

#[tokio::test]
async fn a_lookup_says_which_state_answered() {
    let server = Server::start().await;
    let mut client = server.client().await;
    goes_on(&server).await;
    let mut ask = lookup("alive");
    ask.adapter_id = "sql".into();
    let answer = client.lookup_route(ask).await.unwrap();
    let header = |name: &str| answer.metadata().get(name).unwrap().to_str().unwrap().to_owned();
    assert_eq!(header("x-prefixd-cluster").len(), 32);
    assert!(header("x-prefixd-applied-index").parse::<u64>().unwrap() > 0);
    assert_eq!(header("x-prefixd-stale-ms"), "0");
    let answer = answer.into_inner();
    assert_eq!((answer.reason_code.as_str(), answer.adapter_id.as_str()), ("AFFINITY_HINT", "sql"));
    assert!(answer.lookup_latency_us >= 0);
    server.stop().await;
}

/// The answer to a call whose deadline is past when it arrives. Either end's transport may cut such a call short before
/// the answer is through, so it is asked again until it is.
async fn late_answer(server: &Server, message: &wire::LookupRouteRequest) -> wire::LookupRouteResponse {
    let mut client = server.client().await;
    let end = Instant::now() + PATIENCE;
    loop {
        let mut late = Request::new(message.clone());
        late.metadata_mut().insert("grpc-timeout", "0n".parse().unwrap());
        match client.lookup_route(late).await {
            Ok(answer) => return answer.into_inner(),
            Err(status) => assert!(status.code() == Code::Cancelled && Instant::now() < end, "{status}"),
        }
    }
}

#[tokio::test]
async fn a_lookup_past_its_deadline_is_timeout_and_claims_nothing() {
    let server = Server::start().await;
    goes_on(&server).await;
    let mut client = server.client().await;
    let late = wire::LookupRouteRequest { adapter_id: "sql".into(), ..lookup("alive") };
    let answer = late_answer(&server, &late).await;
    assert_eq!(answer.reason_code, "TIMEOUT");
    assert!(answer.replica_scores.is_empty() && answer.adapter_id.is_empty());
    let reserved = wire::LookupRouteRequest { tenant_id: RESERVED_TENANT.into(), ..late };
    assert_eq!(late_answer(&server, &reserved).await.reason_code, "NO_HINT");
    let mut patient = Request::new(lookup("alive"));
    patient.set_timeout(PATIENCE);
    assert_eq!(client.lookup_route(patient).await.unwrap().into_inner().reason_code, "PREFIX_MATCH");
    server.stop().await;
}

#[tokio::test]
async fn calls_are_counted_by_their_model_or_as_other() {
    let server = Server::start().await;
    goes_on(&server).await;
    let mut client = server.client().await;
    let stray = wire::LookupRouteRequest { model_id: "made-up".into(), ..lookup("p") };
    client.lookup_route(stray).await.unwrap();
    let calls = "inferencecache_lookup_route_calls_total";
    let matched = format!("{calls}{{model=\"m\",reason_code=\"PREFIX_MATCH\",hint_used=\"true\"}}");
    assert_eq!(server.series(&matched).await, Some(1.0));
    let other = format!("{calls}{{model=\"other\",reason_code=\"UNKNOWN_MODEL\",hint_used=\"false\"}}");
    assert_eq!(server.series(&other).await, Some(1.0));
    assert_eq!(server.series("inferencecache_index_entries{model=\"m\"}").await, Some(1.0));
    assert_eq!(server.series("inferencecache_server_up").await, Some(1.0));
    server.stop().await;
}

#[tokio::test]
async fn health_follows_readiness_and_reflection_knows_the_service() {
    let server = Server::start().await;
    let mut health = HealthClient::new(server.channel().await);
    for service in ["", "inferencecache.v1alpha1.InferenceCache"] {
        let answer = health.check(HealthCheckRequest { service: service.into() }).await.unwrap().into_inner();
        assert_eq!(answer.status, 1, "{service} must be SERVING");
    }
    assert_eq!(server.get("/healthz").await.0, 200);
    assert_eq!(server.get("/snapshot").await.0, 404);
    use tonic_reflection::pb::v1 as reflection;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    let ask = reflection::ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..Default::default()
    };
    let mut client = reflection::server_reflection_client::ServerReflectionClient::new(server.channel().await);
    let mut answers = client.server_reflection_info(tokio_stream::iter([ask])).await.unwrap().into_inner();
    let listed = format!("{:?}", answers.next().await.unwrap().unwrap());
    assert!(listed.contains("inferencecache.v1alpha1.InferenceCache") && listed.contains("grpc.health.v1"), "{listed}");
    server.stop().await;
}

#[tokio::test]
async fn a_stopping_node_ends_streams_with_unavailable() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let endless = tokio_stream::iter([update("sent", 100)]).chain(tokio_stream::pending());
    let call = tokio::spawn(async move { client.report_cache_state(endless).await });
    eventually("the stream is open", async || server.series("prefixd_ingest_streams").await == Some(1.0)).await;
    server.stop().await;
    let refused = call.await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
}

#[tokio::test]
async fn more_than_the_unacknowledged_limit_still_arrives_whole_and_in_order() {
    let server = Server::with(&[("max_unacked_bytes", "64KiB")]).await;
    let mut client = server.client().await;
    let updates: Vec<_> = (0..3_000).map(|i| update(&format!("{:0>200}", i % 1_500), i + 1)).collect();
    let ack = client.report_cache_state(tokio_stream::iter(updates)).await.unwrap().into_inner();
    assert!(ack.accepted);
    for i in [0, 749, 1_499] {
        let last = client.lookup_route(lookup(&format!("{i:0>200}"))).await.unwrap().into_inner();
        assert_eq!(last.reason_code, "NO_HINT", "hashes over 128 bytes are dropped");
    }
    let updates: Vec<_> = (0..3_000).map(|i| update(&format!("{:0>100}", i % 1_500), i + 1_000)).collect();
    client.report_cache_state(tokio_stream::iter(updates)).await.unwrap();
    for i in [0, 749, 1_499] {
        let answer = client.lookup_route(lookup(&format!("{i:0>100}"))).await.unwrap().into_inner();
        let matched = answer.replica_scores.first().map(|score| score.matched_tokens);
        assert_eq!(matched, Some(i + 2_500), "the later update of {i} must win");
    }
    server.stop().await;
}
