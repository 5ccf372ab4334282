//! Bearer tokens on the controller's port and tenants' tokens on the gRPC port, from files that change.

use super::certs::Files;
use super::*;
use tonic::{Code, Request};

fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    request
}

#[tokio::test]
async fn each_audience_has_its_own_tokens_and_they_are_judged_first() {
    let files = Files::new();
    let policy = files.write("policy", "old-p\nnew-p\n");
    let controller = files.write("controller", "ctl\n");
    let flags = [("policy_token_file", &*policy), ("controller_token_file", &controller), ("reload_interval", "20ms")];
    let server = Server::with(&flags).await;
    for (token, snapshot, set, probe) in [
        ("", 401, 401, 401),
        ("wrong", 401, 401, 401),
        ("ctl", 200, 403, 400),
        ("old-p", 403, 204, 403),
        ("new-p", 403, 204, 403),
    ] {
        assert_eq!(server.authorized("GET", "/snapshot", token, "").await, snapshot, "{token}");
        assert_eq!(server.authorized("POST", "/policy", token, r#"{"version":7}"#).await, set, "{token}");
        assert_eq!(server.authorized("POST", "/probe", token, "").await, probe, "{token}");
    }
    assert_eq!(server.authorized("DELETE", "/policy", "", "").await, 401, "before any 405");
    assert_eq!(server.authorized("DELETE", "/policy", "ctl", "").await, 403, "before any 405");
    assert_eq!(server.authorized("DELETE", "/policy", "new-p", "").await, 405);
    assert_eq!(server.authorized("GET", "/nope", "", "").await, 404);
    for (series, count) in [
        ("inferencecache_snapshot_auth_total{result=\"ok\"}", 1.0),
        ("inferencecache_snapshot_auth_total{result=\"unauth\"}", 2.0),
        ("inferencecache_snapshot_auth_total{result=\"forbidden\"}", 2.0),
        ("inferencecache_policy_auth_total{result=\"ok\"}", 3.0),
        ("inferencecache_policy_auth_total{result=\"unauth\"}", 3.0),
        ("inferencecache_probe_auth_total{result=\"forbidden\"}", 2.0),
        ("inferencecache_probe_auth_total{result=\"error\"}", 0.0),
    ] {
        assert_eq!(server.series(series).await, Some(count), "{series}");
    }
    files.write("policy", "new-p\n");
    eventually("the old token is out", async || server.authorized("DELETE", "/policy", "old-p", "").await == 401).await;
    files.write("policy", "");
    let refused = "prefixd_file_reloads_total{file=\"policy-token-file\",result=\"error\"}";
    eventually("an empty file is refused", async || server.series(refused).await == Some(1.0)).await;
    assert_eq!(server.authorized("DELETE", "/policy", "new-p", "").await, 405, "the old content is in force");
    server.stop().await;
}

#[tokio::test]
async fn a_tenants_token_opens_its_tenant_alone() {
    let files = Files::new();
    let tokens = files.write("tenants", "one t\ntwo u,v\nall *\n");
    let server = Server::with(&[("tenant_token_file", &*tokens), ("reload_interval", "20ms")]).await;
    let mut client = server.client().await;
    let ack = client.report_cache_state(with_token(tokio_stream::iter([update("p", 100)]), "one")).await.unwrap();
    assert!(ack.into_inner().accepted);
    for (token, code) in [
        ("", Code::Unauthenticated),
        ("nobody", Code::Unauthenticated),
        ("two", Code::PermissionDenied),
        ("one", Code::Ok),
        ("all", Code::Ok),
    ] {
        let state = wire::GetCacheStateRequest { tenant_id: "t".into(), model_id: "m".into() };
        let event = wire::CacheEvent { tenant_id: "t".into(), ..Default::default() };
        let events = wire::StreamEventsRequest { tenant_id: "t".into(), ..Default::default() };
        let pd = wire::LookupPdRouteRequest { tenant_id: "t".into(), ..Default::default() };
        let template = wire::RenderTemplateRequest { tenant_id: "t".into(), ..Default::default() };
        let codes = [
            client.lookup_route(with_token(lookup("p"), token)).await.err().map_or(Code::Ok, |s| s.code()),
            client.get_cache_state(with_token(state, token)).await.err().map_or(Code::Ok, |s| s.code()),
            client.publish_event(with_token(event, token)).await.err().map_or(Code::Ok, |s| s.code()),
            client.stream_cache_events(with_token(events, token)).await.err().map_or(Code::Ok, |s| s.code()),
            client.lookup_pd_route(with_token(pd, token)).await.err().map_or(Code::Ok, |s| s.code()),
            client.render_template(with_token(template, token)).await.err().map_or(Code::Ok, |s| s.code()),
        ];
        assert_eq!(codes, [code; 6], "{token}");
    }
    let metrics = |token| with_token(wire::StreamMetricsRequest::default(), token);
    assert_eq!(client.stream_metrics(metrics("")).await.unwrap_err().code(), Code::Unauthenticated);
    assert!(client.stream_metrics(metrics("two")).await.is_ok(), "it says nothing of tenants");
    server.stop().await;
}

#[tokio::test]
async fn every_update_of_a_stream_is_judged_and_a_withdrawn_token_ends_it() {
    let files = Files::new();
    let tokens = files.write("tenants", "one t\ntwo u\n");
    let server = Server::with(&[("tenant_token_file", &*tokens), ("reload_interval", "20ms")]).await;
    let mut client = server.client().await;
    let foreign = wire::CacheStateUpdate { tenant_id: "u".into(), ..update("q", 100) };
    let mixed = tokio_stream::iter([update("p", 100), foreign]);
    let denied = client.report_cache_state(with_token(mixed, "one")).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    let asked = wire::LookupRouteRequest { tenant_id: "u".into(), ..lookup("q") };
    let answer = client.lookup_route(with_token(asked, "two")).await.unwrap().into_inner();
    assert_eq!(answer.reason_code, "UNKNOWN_TENANT", "the other tenant's update was not taken");

    let (send, receive) = tokio::sync::mpsc::channel(4);
    let stream = tokio_stream::wrappers::ReceiverStream::new(receive);
    let mut producer = client.clone();
    let call = tokio::spawn(async move { producer.report_cache_state(with_token(stream, "one")).await });
    send.send(update("before", 100)).await.unwrap();
    let sees = async || {
        let answer = server.client().await.lookup_route(with_token(lookup("before"), "one")).await;
        answer.is_ok_and(|answer| answer.into_inner().reason_code == "PREFIX_MATCH")
    };
    eventually("the first update is in", sees).await;
    files.write("tenants", "two u\n");
    let withdrawn = async || {
        let answer = server.client().await.lookup_route(with_token(lookup("before"), "one")).await;
        answer.is_err_and(|status| status.code() == Code::Unauthenticated)
    };
    eventually("the token is withdrawn", withdrawn).await;
    send.send(update("after", 100)).await.unwrap();
    let ended = call.await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Unauthenticated);
    server.stop().await;
}
