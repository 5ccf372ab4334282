//! The controller's HTTP edge on 8081: GET /snapshot, POST or PUT /policy, POST /probe. Each call passes
//! the gate first, before anything else is said about it. Policies are replicated like everything
//! else: this module decodes and proposes, it keeps nothing.

mod probe;
mod snapshot;
pub(crate) mod time;

use super::rounds::Rounds;
use crate::auth::{Audience, Denial, Gate};
use crate::metrics::Metrics;
use crate::metrics::auth::Surface;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::Bytes;
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
/// Probes at once, those included that still clean up.
const MAX_PROBES: usize = 64;

/// What the handlers share; the node is filled in once it has loaded its state.
#[derive(Clone)]
struct Shared {
    node: Arc<OnceLock<Node>>,
    /// Scans of the whole index, one at a time.
    scans: Rounds<Result<Bytes, String>>,
    /// Probes whose block is not removed yet.
    probes: Arc<Semaphore>,
    body_timeout: Duration,
    metrics: Arc<Metrics>,
    gate: Arc<Gate>,
}

/// The routes of the internal port; a body must have come within `body_timeout`.
pub fn routes(node: Arc<OnceLock<Node>>, metrics: Arc<Metrics>, gate: Arc<Gate>, body_timeout: Duration) -> Router {
    Router::new()
        .route("/snapshot", any(get_snapshot))
        .route("/policy", any(set_policy))
        .route("/probe", any(run_probe))
        .layer(super::traced())
        .with_state(Shared {
            node,
            scans: Rounds::new(),
            probes: Arc::new(Semaphore::new(MAX_PROBES)),
            body_timeout,
            metrics,
            gate,
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
        let challenge = (self.status == StatusCode::UNAUTHORIZED).then_some([(WWW_AUTHENTICATE, "Bearer")]);
        (self.status, allow, challenge, format!("{}\n", self.reason)).into_response()
    }
}

impl Shared {
    /// Lets a call in, or says why not, and counts it. Calls through an open gate are no successes of anybody.
    async fn admit(&self, headers: &HeaderMap, surface: Surface) -> Result<(), Refusal> {
        let audience = match surface {
            Surface::Policy => Audience::Policy,
            Surface::Snapshot | Surface::Probe => Audience::Controller,
        };
        if self.gate.is_open() {
            return Ok(());
        }
        let header = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
        let judged = self.gate.admit(audience, header).await;
        self.metrics.auth.count(surface, &judged);
        judged.map_err(|denial| match denial {
            Denial::Unauthenticated => Refusal::new(StatusCode::UNAUTHORIZED, "a valid bearer token is required"),
            Denial::Forbidden => Refusal::new(StatusCode::FORBIDDEN, "this token does not open this path"),
            Denial::Unavailable(why) => {
                tracing::warn!(why, "a token could not be reviewed");
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the token can't be reviewed now")
            }
        })
    }

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
    shared.admit(request.headers(), Surface::Snapshot).await?;
    allow(&request, &[Method::GET], "GET")?;
    let node = shared.node()?.clone();
    // A scan of a large index takes a while, as does writing it out, and both ports are served by one thread.
    let scan = move || json(&snapshot::document(&node.view().state_rows()));
    let document = shared.scans.join(scan).await.flatten();
    document.map(as_json).map_err(broken)
}

async fn set_policy(State(shared): State<Shared>, request: Request) -> Result<StatusCode, Refusal> {
    shared.admit(request.headers(), Surface::Policy).await?;
    allow(&request, &[Method::POST, Method::PUT], "POST, PUT")?;
    let body = shared.body(request, policy::MAX_BYTES, StatusCode::PAYLOAD_TOO_LARGE).await?;
    let policies = policy::decode(&body).map_err(|reason| Refusal::new(StatusCode::BAD_REQUEST, reason))?;
    let proposed = shared.node()?.propose(Command::SetPolicy(policies)).await;
    proposed.map_err(|error| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn run_probe(State(shared): State<Shared>, request: Request) -> Result<Response, Refusal> {
    shared.admit(request.headers(), Surface::Probe).await?;
    allow(&request, &[Method::POST], "POST")?;
    let body = shared.body(request, MAX_PROBE_BYTES, StatusCode::BAD_REQUEST).await?;
    let asked = probe::decode(&body).map_err(|reason| Refusal::new(StatusCode::BAD_REQUEST, reason))?;
    let busy = |_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many probes are under way");
    let permit = shared.probes.clone().try_acquire_owned().map_err(busy)?;
    // A task of its own: it cleans up even if the caller goes away.
    let report = tokio::spawn(probe::run(shared.node()?.clone(), asked, permit)).await;
    json(&report.map_err(broken)?).map(as_json).map_err(broken)
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

fn json(value: &impl serde::Serialize) -> Result<Bytes, String> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| error.to_string())
}

fn as_json(text: Bytes) -> Response {
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}
