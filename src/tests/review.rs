//! Tokens that a Kubernetes API server judges: against a small real HTTP server that speaks TokenReview.

use super::certs::{Authority, Files};
use super::*;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the reviewer was asked, and whether it is broken.
#[derive(Default)]
struct Reviewer {
    asked: AtomicU64,
    broken: AtomicBool,
}

/// Tokens are "USER/AUDIENCE"; anything else is not authenticated.
async fn review(
    State(reviewer): State<Arc<Reviewer>>,
    headers: HeaderMap,
    body: axum::body::Bytes,
) -> (StatusCode, String) {
    reviewer.asked.fetch_add(1, Ordering::Relaxed);
    if reviewer.broken.load(Ordering::Relaxed) {
        return (StatusCode::INTERNAL_SERVER_ERROR, "{}".into());
    }
    if headers.get("authorization").is_none_or(|token| token != "Bearer own") {
        return (StatusCode::UNAUTHORIZED, r#"{"kind":"Status"}"#.into());
    }
    let asked: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&asked["apiVersion"], &asked["kind"]), (&json!("authentication.k8s.io/v1"), &json!("TokenReview")));
    let token = asked["spec"]["token"].as_str().unwrap();
    let status = match token.split_once('/') {
        Some((user, audience)) if asked["spec"]["audiences"] == json!([audience]) => {
            json!({"authenticated": true, "user": {"username": user, "groups": ["g"]}, "audiences": [audience]})
        }
        _ => json!({"authenticated": false, "error": "no such token"}),
    };
    let answer = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status});
    (StatusCode::CREATED, answer.to_string())
}

fn routes(reviewer: Arc<Reviewer>) -> axum::Router {
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    axum::Router::new().route(path, axum::routing::post(review)).with_state(reviewer)
}

async fn start(reviewer: Arc<Reviewer>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes(reviewer)).await.unwrap() });
    url
}

#[tokio::test]
async fn the_reviewer_decides_and_listed_users_are_let_in() {
    let (files, reviewer) = (Files::new(), Arc::new(Reviewer::default()));
    let (url, own) = (start(reviewer.clone()).await, files.write("own", "own\n"));
    let server = Server::with(&[
        ("token_review_url", &*url),
        ("token_review_token_file", &own),
        ("token_review_users", "ctl,operator"),
    ])
    .await;
    for (token, snapshot, policy) in [
        ("", 401, 401),
        ("nonsense", 401, 401),
        ("ctl/prefixd-controller", 200, 401),
        ("ctl/prefixd-policy", 401, 204),
        ("guest/prefixd-controller", 403, 401),
        ("guest/prefixd-policy", 401, 403),
        ("ctl/elsewhere", 401, 401),
    ] {
        assert_eq!(server.authorized("GET", "/snapshot", token, "").await, snapshot, "{token}");
        assert_eq!(server.authorized("POST", "/policy", token, r#"{"version":7}"#).await, policy, "{token}");
    }
    let asked = reviewer.asked.load(Ordering::Relaxed);
    assert_eq!(server.authorized("GET", "/snapshot", "ctl/prefixd-controller", "").await, 200);
    assert_eq!(reviewer.asked.load(Ordering::Relaxed), asked, "an allowed token is remembered");
    reviewer.broken.store(true, Ordering::Relaxed);
    assert_eq!(server.authorized("GET", "/snapshot", "ctl/prefixd-controller", "").await, 200);
    assert_eq!(server.authorized("GET", "/snapshot", "guest/prefixd-controller", "").await, 503);
    assert_eq!(server.authorized("DELETE", "/policy", "operator/prefixd-policy", "").await, 503, "before any 405");
    assert_eq!(server.series("inferencecache_snapshot_auth_total{result=\"error\"}").await, Some(1.0));
    server.stop().await;
}

#[tokio::test]
async fn a_reviewer_that_is_away_or_silent_is_503_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = [&silent, &away].map(|listener| format!("http://{}", listener.local_addr().unwrap()));
    drop(away);
    for url in &urls {
        let server = Server::with(&[
            ("token_review_url", url),
            ("token_review_token_file", ""),
            ("token_review_users", "ctl"),
            ("token_review_timeout", "100ms"),
        ])
        .await;
        assert_eq!(server.authorized("GET", "/snapshot", "ctl/prefixd-controller", "").await, 503, "{url}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_reviewer_is_trusted_by_its_ca_alone() {
    let (files, ca, other) = (Files::new(), Authority::new(), Authority::new());
    let (cert, key) = files.pair("api", &ca.issue(&["127.0.0.1"]));
    let port = crate::tls::Port::grpc(cert.into(), key.into(), None).unwrap();
    let mut tls = rustls::ServerConfig::clone(&(port.accepting().server)());
    tls.alpn_protocols = Vec::new();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let inner = start(Arc::default()).await.replace("http://", "");
    // A TLS face before the small server.
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, inner) = (acceptor.clone(), inner.clone());
            tokio::spawn(async move {
                let Ok(mut outer) = acceptor.accept(tcp).await else { return };
                let mut inner = tokio::net::TcpStream::connect(inner).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut outer, &mut inner).await;
            });
        }
    });
    let (good, bad) = (files.write("ca", &ca.pem()), files.write("other", &other.pem()));
    let own = files.write("own", "own");
    for (ca, status) in [(good, 200), (bad, 503)] {
        let server = Server::with(&[
            ("token_review_url", &*url),
            ("token_review_ca_file", &ca),
            ("token_review_token_file", &own),
            ("token_review_users", "ctl"),
        ])
        .await;
        assert_eq!(server.authorized("GET", "/snapshot", "ctl/prefixd-controller", "").await, status);
        server.stop().await;
    }
}
