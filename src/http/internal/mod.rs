//! The controller's HTTP edge on 8081: GET /snapshot, POST or PUT /policy, POST /probe. It carries no authentication
//! yet, so the configuration keeps it on loopback unless told otherwise. Policies are replicated like everything
//! else: this module decodes and proposes, it keeps nothing.

mod probe;
mod snapshot;
mod time;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures::StreamExt;
use prefixd_index::command::Command;
use prefixd_proto::policy;
use prefixd_raft::Node;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Largest probe request.
const MAX_PROBE_BYTES: usize = 4 << 10;
/// Most that is read of a body beyond its limit.
const MAX_FORGOTTEN_BYTES: usize = 8 << 20;
/// Scans of the whole index at once.
const MAX_SCANS: usize = 1;
/// Probes at once, those included that still clean up.
const MAX_PROBES: usize = 64;

/// What the handlers share; the node is filled in once it has loaded its state.
#[derive(Clone)]
struct Shared {
    node: Arc<OnceLock<Node>>,
    scans: Arc<Semaphore>,
    /// Probes whose block is not removed yet.
    probes: Arc<Semaphore>,
    body_timeout: Duration,
}

/// The routes of the internal port; a body must have come within `body_timeout`.
pub fn routes(node: Arc<OnceLock<Node>>, body_timeout: Duration) -> Router {
    Router::new()
        .route("/snapshot", any(get_snapshot))
        .route("/policy", any(set_policy))
        .route("/probe", any(run_probe))
        .layer(super::traced())
        .with_state(Shared {
            node,
            scans: Arc::new(Semaphore::new(MAX_SCANS)),
            probes: Arc::new(Semaphore::new(MAX_PROBES)),
            body_timeout,
        })
}

/// Why a request was not carried out, for its caller.
struct Refusal {
    status: StatusCode,
    reason: String,
    allow: Option<&'static str>,
}

impl Refusal {
    fn new(status: StatusCode, reason: impl ToString) -> Self {
        Self { status, reason: reason.to_string(), allow: None }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let allow = self.allow.map(|list| [(ALLOW, list)]);
        (self.status, allow, format!("{}\n", self.reason)).into_response()
    }
}

impl Shared {
    fn node(&self) -> Result<&Node, Refusal> {
        let loading = || Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the node is still loading its state");
        self.node.get().ok_or_else(loading)
    }

    /// The whole body, if it comes in time.
    async fn body(&self, request: Request<Body>, limit: usize, over: StatusCode) -> Result<Vec<u8>, Refusal> {
        let late = |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time");
        tokio::time::timeout(self.body_timeout, body(request, limit, over)).await.map_err(late)?
    }
}

async fn get_snapshot(State(shared): State<Shared>, request: Request) -> Result<Response, Refusal> {
    allow(&request, &[Method::GET], "GET")?;
    let view = shared.node()?.view();
    let closing = |_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the port is closing");
    let _scan = shared.scans.acquire().await.map_err(closing)?;
    // A scan of a large index takes a while, and lookups run on these threads.
    let document = tokio::task::spawn_blocking(move || snapshot::document(&view.state_rows())).await;
    json(&document.map_err(broken)?)
}

async fn set_policy(State(shared): State<Shared>, request: Request) -> Result<StatusCode, Refusal> {
    allow(&request, &[Method::POST, Method::PUT], "POST, PUT")?;
    let body = shared.body(request, policy::MAX_BYTES, StatusCode::PAYLOAD_TOO_LARGE).await?;
    let policies = policy::decode(&body).map_err(|reason| Refusal::new(StatusCode::BAD_REQUEST, reason))?;
    let proposed = shared.node()?.propose(Command::SetPolicy(policies)).await;
    proposed.map_err(|error| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn run_probe(State(shared): State<Shared>, request: Request) -> Result<Response, Refusal> {
    allow(&request, &[Method::POST], "POST")?;
    let body = shared.body(request, MAX_PROBE_BYTES, StatusCode::BAD_REQUEST).await?;
    let asked = probe::decode(&body).map_err(|reason| Refusal::new(StatusCode::BAD_REQUEST, reason))?;
    let busy = |_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many probes are under way");
    let permit = shared.probes.clone().try_acquire_owned().map_err(busy)?;
    // A task of its own: it cleans up even if the caller goes away.
    let report = tokio::spawn(probe::run(shared.node()?.clone(), asked, permit)).await;
    json(&report.map_err(broken)?)
}

/// Refuses other methods with the exact Allow.
fn allow(request: &Request, methods: &[Method], list: &'static str) -> Result<(), Refusal> {
    if methods.contains(request.method()) {
        return Ok(());
    }
    let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, format!("allowed: {list}"));
    Err(Refusal { allow: Some(list), ..refusal })
}

/// The whole body. Of one that is over the limit some more is read and forgotten, so that its sender gets to see the
/// answer instead of a broken pipe.
async fn body(request: Request<Body>, limit: usize, over: StatusCode) -> Result<Vec<u8>, Refusal> {
    let mut read = 0;
    let mut kept = Vec::new();
    let mut chunks = request.into_body().into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error))?;
        read += chunk.len();
        if read <= limit {
            kept.extend_from_slice(&chunk);
        } else if read > limit + MAX_FORGOTTEN_BYTES {
            break;
        }
    }
    if read > limit {
        return Err(Refusal::new(over, format!("the body is over {limit} bytes")));
    }
    Ok(kept)
}

fn broken(error: impl ToString) -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error)
}

fn json<T: serde::Serialize>(value: &T) -> Result<Response, Refusal> {
    let text = serde_json::to_vec(value).map_err(broken)?;
    Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
}
