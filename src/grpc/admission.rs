//! The layer that keeps the port within its means: so many calls at once and no more, none for too long. What is too
//! much is turned away before its body is read, and never queued. LookupRoute stays fail-open all the while: a call
//! that can't be served is answered with TIMEOUT, as late ones are. Health and reflection always pass.

use super::Edge;
use crate::metrics::load::CallKind;
use http_body_util::{BodyExt, Full};
use prost::Message;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::header::CONTENT_TYPE;
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response};
use tower::Layer;

/// The paths of the contract's calls.
const CONTRACT: &str = "/inferencecache.v1alpha1.InferenceCache/";

/// Wraps a service in [`Admission`].
#[derive(Clone)]
pub(super) struct AdmissionLayer(pub(super) Arc<Edge>);

impl<S> Layer<S> for AdmissionLayer {
    type Service = Admission<S>;

    fn layer(&self, inner: S) -> Admission<S> {
        Admission { inner, edge: self.0.clone() }
    }
}

/// The service that the layer makes.
#[derive(Clone)]
pub(super) struct Admission<S> {
    inner: S,
    edge: Arc<Edge>,
}

/// Counts a call as under way for as long as it lives.
struct Open {
    edge: Arc<Edge>,
    kind: CallKind,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.edge.metrics.load.end(self.kind);
    }
}

impl<S, B> Service<Request<B>> for Admission<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Some(kind) = kind(request.uri().path()) else { return Box::pin(self.inner.call(request)) };
        let edge = self.edge.clone();
        let most = if kind == CallKind::Stream { edge.max_ingest_streams } else { edge.max_concurrent_calls };
        if !edge.metrics.load.admit(kind, most) {
            return Box::pin(async move { Ok(edge.turned_away(kind)) });
        }
        let open = Open { edge, kind };
        let served = self.inner.call(request);
        Box::pin(async move {
            if kind == CallKind::Stream {
                let response = served.await;
                drop(open);
                return response;
            }
            match tokio::time::timeout(open.edge.call_timeout, served).await {
                Ok(response) => response,
                Err(_) => Ok(open.edge.too_late(kind)),
            }
        })
    }
}

impl Edge {
    fn turned_away(&self, kind: CallKind) -> Response<Body> {
        match kind {
            CallKind::Lookup => self.timeout_unread(),
            _ => Status::resource_exhausted("too many calls are under way on this node: try another one").into_http(),
        }
    }

    fn too_late(&self, kind: CallKind) -> Response<Body> {
        self.metrics.load.late(kind);
        match kind {
            CallKind::Lookup => self.timeout_unread(),
            _ => Status::deadline_exceeded("the call took longer than this node allows").into_http(),
        }
    }

    /// TIMEOUT for a lookup whose message was never read.
    fn timeout_unread(&self) -> Response<Body> {
        let (reply, headers) = self.unread_lookup();
        let encoded = reply.message().encode_to_vec();
        let mut frame = Vec::with_capacity(5 + encoded.len());
        // A frame of gRPC: not compressed, its length, the message. A TIMEOUT has a few dozen bytes.
        frame.push(0);
        frame.extend_from_slice(&u32::try_from(encoded.len()).unwrap_or(0).to_be_bytes());
        frame.extend_from_slice(&encoded);
        let trailers = HeaderMap::from_iter([(tonic::Status::GRPC_STATUS, HeaderValue::from_static("0"))]);
        let body = Full::new(tonic::codegen::Bytes::from(frame)).with_trailers(async move { Some(Ok(trailers)) });
        let mut response = Response::new(Body::new(body));
        *response.headers_mut() = headers;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}

fn kind(path: &str) -> Option<CallKind> {
    Some(match path.strip_prefix(CONTRACT)? {
        "LookupRoute" => CallKind::Lookup,
        "ReportCacheState" => CallKind::Stream,
        _ => CallKind::Other,
    })
}
