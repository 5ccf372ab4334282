//! The ports under load, and peers that dawdle or die: what is too much is turned away at once, lookups are answered
//! in time or with TIMEOUT, and no connection is kept for nobody.

use super::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A lookup whose message never comes: an HTTP/2 request without its body.
struct Unfinished {
    _sender: h2::client::SendRequest<bytes::Bytes>,
    stream: h2::SendStream<bytes::Bytes>,
    response: h2::client::ResponseFuture,
}

async fn unfinished(server: &Server, method: &str) -> Unfinished {
    let tcp = tokio::net::TcpStream::connect(server.bound.grpc).await.unwrap();
    let (sender, connection) = h2::client::handshake(tcp).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let mut sender = sender.ready().await.unwrap();
    let request = tonic::codegen::http::Request::post(format!(
        "http://{}/inferencecache.v1alpha1.InferenceCache/{method}",
        server.bound.grpc
    ))
    .header("content-type", "application/grpc")
    .header("te", "trailers")
    .body(())
    .unwrap();
    let (response, stream) = sender.send_request(request, false).unwrap();
    Unfinished { _sender: sender, stream, response }
}

async fn open_calls(server: &Server, kind: &str) -> Option<f64> {
    server.series(&format!("prefixd_grpc_calls{{kind=\"{kind}\"}}")).await
}

#[tokio::test]
async fn too_many_calls_are_turned_away_and_lookups_stay_open() {
    let server = Server::with(&[("max_concurrent_calls", "2"), ("max_ingest_streams", "1")]).await;
    goes_on(&server).await;
    let held = [unfinished(&server, "LookupRoute").await, unfinished(&server, "PublishEvent").await];
    eventually("both are under way", async || {
        (open_calls(&server, "lookup").await, open_calls(&server, "other").await) == (Some(1.0), Some(1.0))
    })
    .await;
    let mut client = server.client().await;
    let answer = client.lookup_route(lookup("alive")).await.unwrap();
    assert!(answer.metadata().contains_key("x-prefixd-applied-index"));
    let answer = answer.into_inner();
    assert_eq!((answer.reason_code.as_str(), answer.replica_scores.len()), ("TIMEOUT", 0));
    let refused = client.get_cache_state(wire::GetCacheStateRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let health = HealthClient::new(server.channel().await).check(HealthCheckRequest::default()).await;
    assert!(health.is_ok(), "health is no load");
    let stream = unfinished(&server, "ReportCacheState").await;
    eventually("the stream is open", async || open_calls(&server, "stream").await == Some(1.0)).await;
    let refused = client.report_cache_state(tokio_stream::iter([update("p", 1)])).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    for (kind, shed) in [("lookup", 1.0), ("other", 1.0), ("stream", 1.0)] {
        let series = format!("prefixd_grpc_calls_shed_total{{kind=\"{kind}\"}}");
        assert_eq!(server.series(&series).await, Some(shed), "{kind}");
    }
    let counted =
        "inferencecache_lookup_route_calls_total{model=\"other\",reason_code=\"TIMEOUT\",hint_used=\"false\"}";
    assert_eq!(server.series(counted).await, Some(1.0), "a lookup that was turned away is a lookup");
    drop((held, stream));
    eventually("nothing is under way", async || {
        let mut open = 0.0;
        for kind in ["lookup", "other", "stream"] {
            open += open_calls(&server, kind).await.unwrap();
        }
        open == 0.0
    })
    .await;
    goes_on(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn a_call_that_never_comes_to_its_end_is_ended() {
    let server = Server::with(&[("call_timeout", "300ms"), ("propose_timeout", "200ms")]).await;
    let Unfinished { response, stream: _kept, _sender } = unfinished(&server, "LookupRoute").await;
    let (head, mut body) = tokio::time::timeout(PATIENCE, response).await.unwrap().unwrap().into_parts();
    assert_eq!(head.status, 200);
    let frame = body.data().await.unwrap().unwrap();
    let answer: wire::LookupRouteResponse = prost::Message::decode(frame.get(5..).unwrap()).unwrap();
    assert_eq!(answer.reason_code, "TIMEOUT");
    let trailers = body.trailers().await.unwrap().unwrap();
    assert_eq!(trailers.get("grpc-status").unwrap(), "0");
    let Unfinished { response, stream: _kept, _sender } = unfinished(&server, "PublishEvent").await;
    let (head, _) = tokio::time::timeout(PATIENCE, response).await.unwrap().unwrap().into_parts();
    assert_eq!(head.headers.get("grpc-status").unwrap(), "4");
    assert_eq!(server.series("prefixd_grpc_calls_late_total{kind=\"lookup\"}").await, Some(1.0));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_lookups_is_answered_whole_in_time_or_with_timeout() {
    let server = Server::with(&[("max_concurrent_calls", "8")]).await;
    goes_on(&server).await;
    let client = server.client().await;
    let flood = (0..400).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move { client.lookup_route(lookup("alive")).await.unwrap().into_inner().reason_code })
    });
    let flood: Vec<_> = flood.collect();
    for answer in flood {
        let reason = tokio::time::timeout(PATIENCE, answer).await.unwrap().unwrap();
        assert!(reason == "PREFIX_MATCH" || reason == "TIMEOUT", "{reason}");
    }
    goes_on(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn a_deadline_ends_a_report_that_no_quorum_takes() {
    let far = ("peers", "prefixd=127.0.0.1:1,other=127.0.0.1:2");
    let server = Server::unready(&[far, ("node_name", "prefixd"), ("propose_timeout", "20s")]).await;
    let mut client = server.client().await;
    let begun = Instant::now();
    let mut report = tonic::Request::new(tokio_stream::iter([update("p", 100)]));
    report.set_timeout(Duration::from_millis(300));
    assert!(client.report_cache_state(report).await.is_err());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let mut asked = tonic::Request::new(lookup("p"));
    asked.set_timeout(Duration::from_secs(5));
    let answer = client.lookup_route(asked).await.unwrap().into_inner();
    assert_eq!(answer.reason_code, "NO_HINT", "a node without a cluster still answers");
    eventually("the stream is not kept", async || open_calls(&server, "stream").await == Some(0.0)).await;
    server.stop().await;
}

/// Sends bytes and waits for the server to close the connection.
async fn closed_after(addr: SocketAddr, sent: &'static [u8]) {
    let wait = move || {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(sent).unwrap();
        let mut room = [0; 4_096];
        loop {
            match stream.read(&mut room) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                Err(error) => panic!("not closed: {error}"),
            }
        }
    };
    tokio::task::spawn_blocking(wait).await.unwrap();
}

#[tokio::test]
async fn dead_and_dawdling_peers_lose_their_connections() {
    let flags = [("grpc_keepalive_interval", "200ms"), ("grpc_keepalive_timeout", "200ms"), ("http_timeout", "300ms")];
    let server = Server::with(&flags).await;
    // A preface and empty settings, and never an answer to a ping.
    closed_after(server.bound.grpc, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    for port in [server.bound.http, server.bound.internal] {
        closed_after(port, b"").await;
        closed_after(port, b"GET /healthz HT").await;
        closed_after(port, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    }
    closed_after(server.bound.internal, b"POST /policy HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{").await;
    goes_on(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn a_grpc_connection_over_the_limit_is_closed_and_the_next_finds_room() {
    let server = Server::with(&[("max_grpc_connections", "2")]).await;
    let held = [server.channel().await, server.channel().await];
    let open = async || server.series("prefixd_grpc_connections").await;
    eventually("two are open", async || open().await == Some(2.0)).await;
    closed_after(server.bound.grpc, b"").await;
    assert_eq!(server.series("prefixd_grpc_connections_turned_away_total").await, Some(1.0));
    for channel in &held {
        assert!(InferenceCacheClient::new(channel.clone()).lookup_route(lookup("p")).await.is_ok());
    }
    drop(held);
    eventually("none is open", async || open().await == Some(0.0)).await;
    goes_on(&server).await;
    server.stop().await;
}

/// Sends this on a connection of its own and reads nothing.
fn deaf(addr: SocketAddr, sent: &str) -> TcpStream {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(sent.as_bytes()).unwrap();
    stream
}

#[tokio::test]
async fn a_probe_is_answered_whoever_keeps_the_connections() {
    let server = Server::with(&[("max_http_connections", "8"), ("http_timeout", "1h")]).await;
    let bound = server.bound;
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    // It keeps its connection. That may have been closed for a newcomer, which it finds when it asks; it connects anew once.
    let kept_alive = async || {
        let agent = agent.clone();
        let ask = move || {
            let url = format!("http://{}/healthz", bound.http);
            let mut answer = agent.get(&url).call().or_else(|_| agent.get(&url).call()).unwrap();
            (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
        };
        tokio::task::spawn_blocking(ask).await.unwrap()
    };
    let pages = "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n".repeat(200);
    let mut held = Vec::new();
    for _ in 0..4 {
        for addr in [bound.http, bound.internal] {
            held.extend((0..8).map(|_| deaf(addr, "")));
            held.extend((0..8).map(|_| deaf(addr, "GET /healthz HT")));
            held.extend((0..8).map(|_| deaf(addr, &pages)));
        }
        for path in ["/healthz", "/readyz", "/metrics"] {
            assert_eq!(server.get(path).await.0, 200, "{path}");
            assert_eq!(kept_alive().await, (200, "ok\n".into()));
        }
        assert_eq!(server.internal("GET", "/snapshot", "").await.0, 200);
    }
    let page = server.get("/metrics").await.1;
    for port in ["http", "internal"] {
        let series = |name: &str| value(&page, &format!("{name}{{port=\"{port}\"}}"));
        // Of the internal port's the last client has left.
        let open = series("prefixd_http_connections").unwrap();
        assert!((7.0..=8.0).contains(&open), "{port}: {open}");
        assert!(series("prefixd_http_connections_displaced_total") >= Some(80.0), "{port}");
    }
    drop(held);
    server.stop().await;
}
