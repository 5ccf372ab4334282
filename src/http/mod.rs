//! The public HTTP edge on 8080: liveness, readiness and metrics. It answers from the first moment, also while the
//! node still loads its state, and neither of the first two ever waits for a page of the third: those are made elsewhere
//! ([`rounds`]). Nothing here changes anything; what the controller may do is on a port of its own ([`internal`]).

pub mod internal;
pub mod listen;
mod rounds;

use crate::vitals::{Readiness, Vitals};
use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::registry::Registry;
use rounds::Rounds;
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

/// What the handlers share.
#[derive(Clone)]
struct Public {
    loaded: Arc<OnceLock<Loaded>>,
    plain: Pages,
    openmetrics: Pages,
}

/// Pages of metrics in one format; none for those that can't be encoded.
type Pages = Rounds<Option<Bytes>>;

/// The routes of the public port; `loaded` is filled once there is a node.
pub fn public(loaded: Arc<OnceLock<Loaded>>) -> Router {
    let plain = Pages::new();
    let openmetrics = plain.another();
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .layer(traced())
        .with_state(Public { loaded, plain, openmetrics })
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

async fn ready(State(Public { loaded, .. }): State<Public>) -> Response {
    match loaded.get().map(|loaded| loaded.vitals.readiness().borrow().clone()) {
        Some(Readiness::Ready) => "ready\n".into_response(),
        Some(Readiness::Unready(reason)) => unready(&reason),
        None => unready("loading"),
    }
}

fn unready(reason: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")).into_response()
}

async fn metrics(State(public): State<Public>, headers: HeaderMap) -> Response {
    let Public { loaded, plain, openmetrics } = public;
    if loaded.get().is_none() {
        return unready("loading");
    }
    let is_openmetrics = headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("application/openmetrics-text"));
    let (pages, kind) = if is_openmetrics { (openmetrics, OPENMETRICS) } else { (plain, PLAIN) };
    let page = pages.join(move || page(&loaded.get()?.registry, is_openmetrics)).await;
    match page.ok().flatten() {
        Some(page) => ([(CONTENT_TYPE, kind)], page).into_response(),
        None => (StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be encoded\n").into_response(),
    }
}

fn page(registry: &Registry, is_openmetrics: bool) -> Option<Bytes> {
    let mut page = String::new();
    let encoded = match is_openmetrics {
        true => text::encode(&mut page, registry),
        false => prometheus_text::encode(&mut page, registry),
    };
    encoded.ok().map(|()| page.into())
}
