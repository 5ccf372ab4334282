//! The public HTTP edge on 8080: liveness, readiness and metrics. It answers from the first moment, also while the
//! node still loads its state. Nothing here changes anything; what the controller may do is on a port of its own
//! ([`internal`]).

pub mod internal;
pub mod listen;

use crate::vitals::{Readiness, Vitals};
use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;
use std::sync::{Arc, OnceLock};
use tower_http::classify::{ServerErrorsAsFailures, SharedClassifier};
use tower_http::trace::{
    DefaultMakeSpan, DefaultOnBodyChunk, DefaultOnEos, DefaultOnRequest, DefaultOnResponse, TraceLayer,
};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A node that has loaded its state.
#[derive(Debug)]
pub struct Loaded {
    /// Its readiness.
    pub vitals: Arc<Vitals>,
    /// Its metrics.
    pub registry: Registry,
}

/// The routes of the public port; `loaded` is filled once there is a node.
pub fn public(loaded: Arc<OnceLock<Loaded>>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .layer(traced())
        .with_state(loaded)
}

/// Spans around calls. An answer of 503 is an answer, and no fault to be logged for each time that somebody asks.
fn traced() -> TraceLayer<
    SharedClassifier<ServerErrorsAsFailures>,
    DefaultMakeSpan,
    DefaultOnRequest,
    DefaultOnResponse,
    DefaultOnBodyChunk,
    DefaultOnEos,
    (),
> {
    TraceLayer::new_for_http().on_failure(())
}

async fn ready(State(loaded): State<Arc<OnceLock<Loaded>>>) -> Response {
    match loaded.get().map(|loaded| loaded.vitals.readiness().borrow().clone()) {
        Some(Readiness::Ready) => "ready\n".into_response(),
        Some(Readiness::Unready(reason)) => unready(&reason),
        None => unready("loading"),
    }
}

fn unready(reason: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")).into_response()
}

async fn metrics(State(loaded): State<Arc<OnceLock<Loaded>>>, headers: HeaderMap) -> Response {
    let Some(Loaded { registry, .. }) = loaded.get() else { return unready("loading") };
    let openmetrics = headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("application/openmetrics-text"));
    let mut page = String::new();
    let (encoded, kind) = if openmetrics {
        (text::encode(&mut page, registry), OPENMETRICS)
    } else {
        (prometheus_text::encode(&mut page, registry), PLAIN)
    };
    match encoded {
        Ok(()) => ([(CONTENT_TYPE, kind)], page).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be encoded\n").into_response(),
    }
}
