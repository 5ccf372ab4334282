//! A whole node in this process on ports of the system's choice, asked over the wire as anybody would.

mod bad_input;
mod certs;
mod internal;
mod load;
mod node_tls;
mod operators;
mod policy_file;
mod review;
mod surfaces;
mod tls;
mod tokens;
mod wrong_ports;

use crate::config::{Config, ServeArgs};
use crate::ports::{Bound, Ports};
use crate::serve::Running;
use prefixd_proto::inferencecache as wire;
use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};

/// Longest wait for a condition that should come true soon.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running node with an empty disk of its own.
struct Server {
    running: Running,
    bound: Bound,
    _dir: tempfile::TempDir,
}

impl Server {
    async fn start() -> Self {
        Self::with(&[]).await
    }

    async fn with(flags: &[(&str, &str)]) -> Self {
        Self::unready(flags).await.once_ready().await
    }

    async fn once_ready(self) -> Self {
        eventually("the node is ready", async || self.get("/readyz").await.0 == 200).await;
        self
    }

    /// A server that may never be ready.
    async fn unready(flags: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut args = ServeArgs::default();
        let mut set = |key: &str, text: &str| drop(args.said.flags.insert(key.into(), text.into()));
        set("data_dir", dir.path().to_str().unwrap());
        for key in ["grpc_addr", "http_addr", "internal_addr", "node_addr"] {
            set(key, "127.0.0.1:0");
        }
        for (key, text) in flags {
            set(key, text);
        }
        let config = Config::resolve(&args, None).unwrap();
        let ports = Ports::bind(&config).unwrap();
        let bound = ports.bound;
        Self { running: Running::start(&config, ports).await.unwrap(), bound, _dir: dir }
    }

    async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.bound.grpc)).unwrap().connect().await.unwrap()
    }

    async fn client(&self) -> InferenceCacheClient<Channel> {
        InferenceCacheClient::new(self.channel().await).max_decoding_message_size(64 << 20)
    }

    /// (status, body) of a path on the public HTTP port.
    async fn get(&self, path: &str) -> (u16, String) {
        get(self.bound.http, path).await
    }

    /// (status, Allow, body) of a request to the internal port.
    async fn internal(&self, method: &'static str, path: &str, body: &str) -> (u16, String, String) {
        let url = format!("http://{}{path}", self.bound.internal);
        let body = body.to_owned();
        let ask = move || {
            let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
            let request = ureq::http::Request::builder().method(method).uri(url).body(body).unwrap();
            let mut answer = agent.run(request).unwrap();
            let allow = answer.headers().get("allow").map_or("", |list| list.to_str().unwrap()).to_owned();
            (answer.status().as_u16(), allow, answer.body_mut().read_to_string().unwrap())
        };
        tokio::task::spawn_blocking(ask).await.unwrap()
    }

    /// The status of a request to the internal port with a bearer token, or with none if it is empty.
    async fn authorized(&self, method: &'static str, path: &str, token: &str, body: &str) -> u16 {
        let url = format!("http://{}{path}", self.bound.internal);
        let (token, body) = (token.to_owned(), body.to_owned());
        let ask = move || {
            let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
            let mut request = ureq::http::Request::builder().method(method).uri(url);
            if !token.is_empty() {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            agent.run(request.body(body).unwrap()).unwrap().status().as_u16()
        };
        tokio::task::spawn_blocking(ask).await.unwrap()
    }

    /// The value of one series on /metrics.
    async fn series(&self, series: &str) -> Option<f64> {
        value(&self.get("/metrics").await.1, series)
    }

    async fn stop(self) {
        self.running.stop(PATIENCE).await.unwrap();
    }
}

/// (status, body) of a path on a public HTTP port.
async fn get(http: SocketAddr, path: &str) -> (u16, String) {
    let url = format!("http://{http}{path}");
    let ask = move || {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let mut answer = agent.get(&url).call().unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// The value of one series on a page of metrics.
fn value(page: &str, series: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Waits until the condition holds.
async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// One update of replica `r1` in (t, m, vllm) with one exact entry.
fn update(hash: &str, token_count: i32) -> wire::CacheStateUpdate {
    let entry = wire::PrefixEntry { prefix_hash: hash.to_owned().into(), token_count, ..Default::default() };
    wire::CacheStateUpdate {
        replica_id: "r1".into(),
        model_id: "m".into(),
        tenant_id: "t".into(),
        hash_scheme: "vllm".into(),
        prefixes: vec![entry],
        ..Default::default()
    }
}

/// An exact lookup in (t, m, vllm).
fn lookup(hash: &str) -> wire::LookupRouteRequest {
    wire::LookupRouteRequest {
        tenant_id: "t".into(),
        model_id: "m".into(),
        hash_scheme: "vllm".into(),
        prefix_hash: hash.to_owned().into(),
        ..Default::default()
    }
}

/// Asserts that the node still takes an update in and finds it.
async fn goes_on(server: &Server) {
    let mut client = server.client().await;
    let ack = client.report_cache_state(tokio_stream::iter([update("alive", 100)])).await.unwrap().into_inner();
    assert!(ack.accepted);
    let answer = client.lookup_route(lookup("alive")).await.unwrap().into_inner();
    assert_eq!(answer.reason_code, "PREFIX_MATCH");
}
