//! The layer around every call: it notes when a call with a deadline arrived, so that time spent reading its body
//! counts, and opens a span that continues the caller's trace. With nobody listening for spans it does next to nothing.

use opentelemetry::propagation::Extractor;
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, Request};
use tower::Layer;
use tracing::Instrument;
use tracing::instrument::Instrumented;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// When the headers of a call with a deadline arrived.
#[derive(Copy, Clone, Debug)]
pub(super) struct Arrived(pub(super) Instant);

/// Wraps a service in [`Arrival`].
#[derive(Copy, Clone, Debug)]
pub(super) struct ArrivalLayer;

impl<S> Layer<S> for ArrivalLayer {
    type Service = Arrival<S>;

    fn layer(&self, inner: S) -> Arrival<S> {
        Arrival { inner }
    }
}

/// The service that the layer makes.
#[derive(Clone, Debug)]
pub(super) struct Arrival<S> {
    inner: S,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for Arrival<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Instrumented<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if request.headers().contains_key("grpc-timeout") {
            request.extensions_mut().insert(Arrived(Instant::now()));
        }
        let span = span(&request);
        self.inner.call(request).instrument(span)
    }
}

fn span<B>(request: &Request<B>) -> tracing::Span {
    let path = request.uri().path();
    let span = tracing::debug_span!(target: "prefixd::rpc", "rpc", otel.name = path, otel.kind = "server");
    if !span.is_disabled() {
        let parent = opentelemetry::global::get_text_map_propagator(|p| p.extract(&Headers(request.headers())));
        // Fails only when no exporter listens, and then there is no trace to continue.
        let _ = span.set_parent(parent);
    }
    span
}

/// A request's headers as the propagator reads them.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|key| key.as_str()).collect()
    }
}
