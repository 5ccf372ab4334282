//! The InferenceCache service: each call in a line or two, the work is in the modules beside this one.

use super::arrival::Arrived;
use super::{Edge, deadline};
use prefixd_proto::inferencecache as wire;
use prefixd_proto::inferencecache::inference_cache_server::InferenceCache;
use prefixd_proto::lookups;
use std::sync::Arc;
use std::time::Instant;
use tokio_stream::Empty;
use tonic::{Request, Response, Status, Streaming};

/// The service on one node.
pub(super) struct CachePlane(pub(super) Arc<Edge>);

#[tonic::async_trait]
impl InferenceCache for CachePlane {
    async fn render_template(
        &self,
        _request: Request<wire::RenderTemplateRequest>,
    ) -> Result<Response<wire::RenderTemplateResponse>, Status> {
        let reason_code = "OK".to_owned();
        Ok(Response::new(wire::RenderTemplateResponse { reason_code, ..Default::default() }))
    }

    async fn lookup_route(
        &self,
        request: Request<wire::LookupRouteRequest>,
    ) -> Result<Response<wire::LookupRouteResponse>, Status> {
        let started = Instant::now();
        let arrived = request.extensions().get::<Arrived>().map_or(started, |arrived| arrived.0);
        let caller = deadline::of_caller(request.metadata(), arrived);
        Ok(self.0.lookup(request.into_inner(), started, caller))
    }

    async fn lookup_pd_route(
        &self,
        _request: Request<wire::LookupPdRouteRequest>,
    ) -> Result<Response<wire::LookupPdRouteResponse>, Status> {
        let reason_code = "NO_HINT".to_owned();
        Ok(Response::new(wire::LookupPdRouteResponse { reason_code, ..Default::default() }))
    }

    async fn get_cache_state(
        &self,
        request: Request<wire::GetCacheStateRequest>,
    ) -> Result<Response<wire::GetCacheStateResponse>, Status> {
        let message = request.into_inner();
        let state = self.0.node.view().cache_state(&message.tenant_id, &message.model_id);
        Ok(Response::new(lookups::cache_state(state)))
    }

    async fn report_cache_state(
        &self,
        request: Request<Streaming<wire::CacheStateUpdate>>,
    ) -> Result<Response<wire::Ack>, Status> {
        self.0.report(request.into_inner()).await.map(Response::new)
    }

    async fn publish_event(&self, request: Request<wire::CacheEvent>) -> Result<Response<wire::Ack>, Status> {
        self.0.publish(request.into_inner()).await.map(Response::new)
    }

    type StreamCacheEventsStream = Empty<Result<wire::CacheEvent, Status>>;

    async fn stream_cache_events(
        &self,
        _request: Request<wire::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamCacheEventsStream>, Status> {
        Ok(Response::new(tokio_stream::empty()))
    }

    type StreamMetricsStream = Empty<Result<wire::Metric, Status>>;

    async fn stream_metrics(
        &self,
        _request: Request<wire::StreamMetricsRequest>,
    ) -> Result<Response<Self::StreamMetricsStream>, Status> {
        Ok(Response::new(tokio_stream::empty()))
    }
}
