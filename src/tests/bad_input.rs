//! What must never hurt: each case sends something bad, expects the right status, and finds the node alive.

use super::*;
use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use prefixd_proto::inferencecache::cache_event::Type;
use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::codegen::http::Request;
use tower::ServiceExt;

/// A gRPC frame around any bytes.
fn frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(message);
    frame.freeze()
}

/// Sends raw bytes as the body of a call and returns the status code that comes back.
async fn raw(server: &Server, method: &str, body: Body) -> Code {
    let uri = format!("http://{}/inferencecache.v1alpha1.InferenceCache/{method}", server.bound.grpc);
    let request = Request::post(uri).header("content-type", "application/grpc").header("te", "trailers");
    let request = request.body(tonic::body::Body::new(body)).unwrap();
    let response = server.channel().await.oneshot(request).await.unwrap();
    let status = response.headers().get("grpc-status").expect("an error comes without a message");
    Code::from_bytes(status.as_bytes())
}

#[tokio::test]
async fn a_message_of_9_mib_is_refused_and_one_of_7_is_not() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let sized = |bytes: usize| wire::LookupRouteRequest { prompt_text: "x".repeat(bytes), ..lookup("p") };
    let refused = client.lookup_route(sized(9 << 20)).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert!(client.lookup_route(sized(7 << 20)).await.is_ok());
    let mut big = update("p", 1);
    big.prefixes = vec![wire::PrefixEntry { prefix_hash: vec![7; 9 << 20].into(), ..Default::default() }];
    let refused = client.report_cache_state(tokio_stream::iter([big])).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    goes_on(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn a_chain_of_100_000_blocks_is_dropped_and_may_be_asked_for() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let hashes: Vec<Bytes> = (0..100_000u64).map(|i| Bytes::copy_from_slice(&i.to_be_bytes())).collect();
    let counts = vec![16; hashes.len()];
    let mut long = update("p", 1);
    long.prefixes.push(wire::PrefixEntry {
        block_hashes: hashes.clone(),
        block_token_counts: counts.clone(),
        ..Default::default()
    });
    assert!(client.report_cache_state(tokio_stream::iter([long])).await.unwrap().into_inner().accepted);
    assert_eq!(server.series("prefixd_ingest_drops_total{reason=\"chain_too_long\"}").await, Some(1.0));
    let ask = wire::LookupRouteRequest { block_hashes: hashes, block_token_counts: counts, ..lookup("") };
    let answer = client.lookup_route(ask).await.unwrap().into_inner();
    assert_eq!(answer.reason_code, "AFFINITY_HINT");
    goes_on(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn bad_values_are_dropped_counted_and_acknowledged() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let nameless = wire::CacheStateUpdate { replica_id: String::new(), ..update("p", 1) };
    let mut odd = update("stats", 1);
    odd.timestamp_us = i64::MIN;
    odd.stats = Some(wire::ReplicaStats { hit_rate: f32::NAN, pressure: f32::INFINITY, ..Default::default() });
    let ack = client.report_cache_state(tokio_stream::iter([update("neg", -1), nameless, update("", 1), odd])).await;
    assert!(ack.unwrap().into_inner().accepted);
    for reason in ["negative_tokens", "empty_replica", "empty_hash"] {
        let series = format!("prefixd_ingest_drops_total{{reason=\"{reason}\"}}");
        assert_eq!(server.series(&series).await, Some(1.0), "{reason}");
    }
    let ask = wire::GetCacheStateRequest { tenant_id: "t".into(), model_id: "m".into() };
    let state = client.get_cache_state(ask).await.unwrap().into_inner();
    assert_eq!(state.summary.map(|s| s.total_prefixes), Some(1));
    let stats = state.replicas.first().unwrap();
    assert_eq!((stats.hit_rate, stats.pressure), (0.0, 0.0));
    for kind in [-1, 99, Type::PrefixEvicted as i32, Type::AllCleared as i32] {
        let event = wire::CacheEvent { r#type: kind, timestamp_us: i64::MAX, ..Default::default() };
        assert!(client.publish_event(event).await.unwrap().into_inner().accepted);
    }
    goes_on(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn odd_lookups_are_answered() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let ask = |request| {
        let mut client = client.clone();
        async move { client.lookup_route(request).await.unwrap().into_inner().reason_code }
    };
    assert_eq!(ask(wire::LookupRouteRequest::default()).await, "NO_HINT");
    let slo = Some(wire::Slo { ttft_ms: i32::MIN, tbt_ms: i32::MIN });
    let odd = wire::LookupRouteRequest { prefix_token_count: i32::MIN, slo, ..lookup("p") };
    assert_eq!(ask(odd).await, "NO_HINT");
    let unequal = wire::LookupRouteRequest { block_token_counts: vec![i32::MAX; 3], ..lookup("p") };
    assert_eq!(ask(unequal).await, "NO_HINT");
    let many = wire::LookupRouteRequest { token_ids: vec![1; (1 << 20) + 1], ..lookup("") };
    assert_eq!(ask(many).await, "NO_HINT");
    let _ = client.lookup_route(lookup("p")).await.unwrap();
    goes_on(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_message_is_refused() {
    let server = Server::start().await;
    let not_utf8 = [0x0a, 2, 0xff, 0xfe];
    for method in ["LookupRoute", "ReportCacheState", "PublishEvent", "GetCacheState"] {
        // Field 1 of each but CacheEvent is a string; its replica_id is field 2.
        let mut message = not_utf8;
        if method == "PublishEvent" {
            message[0] = 0x12;
        }
        assert_eq!(raw(&server, method, Body::from(frame(&message))).await, Code::InvalidArgument, "{method}");
        let garbage = [0xff; 64];
        assert_eq!(raw(&server, method, Body::from(frame(&garbage))).await, Code::InvalidArgument, "{method}");
    }
    let announced = Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff, 1]);
    assert_eq!(raw(&server, "LookupRoute", Body::from(announced)).await, Code::OutOfRange);
    let compressed = Bytes::from_static(&[1, 0, 0, 0, 1, 0]);
    assert_eq!(raw(&server, "LookupRoute", Body::from(compressed)).await, Code::Internal);
    assert_eq!(raw(&server, "NoSuchMethod", Body::empty()).await, Code::Unimplemented);
    goes_on(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn of_a_half_sent_stream_what_arrived_is_kept_and_nothing_is_acknowledged() {
    let server = Server::start().await;
    let whole = frame(&update("whole", 100).encode_to_vec());
    let half = frame(&update("half", 100).encode_to_vec()).slice(..20);
    let body = Bytes::from([whole, half].concat());
    let status = raw(&server, "ReportCacheState", Body::from(body)).await;
    assert_ne!(status, Code::Ok);
    let mut client = server.client().await;
    let answer = client.lookup_route(lookup("whole")).await.unwrap().into_inner();
    assert_eq!(answer.reason_code, "PREFIX_MATCH");
    let answer = client.lookup_route(lookup("half")).await.unwrap().into_inner();
    assert_eq!(answer.reason_code, "AFFINITY_HINT");
    goes_on(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_vanishes_leaves_nothing_behind() {
    let server = Server::start().await;
    let mut client = server.client().await;
    let endless = tokio_stream::iter([update("sent", 100)]).chain(tokio_stream::pending());
    let call = tokio::spawn(async move { client.report_cache_state(endless).await });
    eventually("the stream is open and its update applied", async || {
        let found = server.client().await.lookup_route(lookup("sent")).await.unwrap().into_inner();
        found.reason_code == "PREFIX_MATCH" && server.series("prefixd_ingest_streams").await == Some(1.0)
    })
    .await;
    call.abort();
    eventually("the stream is gone", async || server.series("prefixd_ingest_streams").await == Some(0.0)).await;
    for half_spoken in [&b""[..], b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 100]] {
        let mut connection = tokio::net::TcpStream::connect(server.bound.grpc).await.unwrap();
        connection.write_all(half_spoken).await.unwrap();
    }
    goes_on(&server).await;
    server.stop().await;
}
