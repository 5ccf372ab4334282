//! The InferenceCache service: each call in a line or two, the work is in the modules beside this one.

use super::arrival::Arrived;
use super::{Edge, deadline};
use prefixd_proto::inferencecache as wire;
use prefixd_proto::inferencecache::inference_cache_server::InferenceCache;
use prefixd_proto::lookups;
use std::sync::Arc;
use std::time::Instant;
use tokio_stream::Empty;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Request, Response, Status, Streaming};

/// The service on one node.
pub(super) struct CachePlane(pub(super) Arc<Edge>);

impl CachePlane {
    /// Judges the token of a call with one message.
    fn admit<T>(&self, request: &Request<T>, tenant: &str) -> Result<(), Status> {
        let grant = self.0.tenants.admit(request.metadata())?;
        self.0.tenants.check(&grant, tenant)
    }
}

#[tonic::async_trait]
impl InferenceCache for CachePlane {
    async fn render_template(
        &self,
        request: Request<wire::RenderTemplateRequest>,
    ) -> Result<Response<wire::RenderTemplateResponse>, Status> {
        self.admit(&request, &request.get_ref().tenant_id)?;
        let reason_code = "OK".to_owned();
        Ok(Response::new(wire::RenderTemplateResponse { reason_code, ..Default::default() }))
    }

    async fn lookup_route(
        &self,
        request: Request<wire::LookupRouteRequest>,
    ) -> Result<Response<wire::LookupRouteResponse>, Status> {
        let started = Instant::now();
        self.admit(&request, &request.get_ref().tenant_id)?;
        let arrived = request.extensions().get::<Arrived>().map_or(started, |arrived| arrived.0);
        let caller = deadline::of_caller(request.metadata(), arrived);
        let message = request.get_ref();
        let asked = lookups::request(message, self.0.max_token_ids);
        let (answer, headers) = self.0.lookup(&asked, started, caller, |reply| reply.message());
        Ok(Response::from_parts(MetadataMap::from_headers(headers), answer, Extensions::default()))
    }

    async fn lookup_pd_route(
        &self,
        request: Request<wire::LookupPdRouteRequest>,
    ) -> Result<Response<wire::LookupPdRouteResponse>, Status> {
        self.admit(&request, &request.get_ref().tenant_id)?;
        let reason_code = "NO_HINT".to_owned();
        Ok(Response::new(wire::LookupPdRouteResponse { reason_code, ..Default::default() }))
    }

    async fn get_cache_state(
        &self,
        request: Request<wire::GetCacheStateRequest>,
    ) -> Result<Response<wire::GetCacheStateResponse>, Status> {
        self.admit(&request, &request.get_ref().tenant_id)?;
        let message = request.into_inner();
        let state = self.0.node.view().cache_state(&message.tenant_id, &message.model_id);
        Ok(Response::new(lookups::cache_state(state)))
    }

    async fn report_cache_state(
        &self,
        request: Request<Streaming<wire::CacheStateUpdate>>,
    ) -> Result<Response<wire::Ack>, Status> {
        let grant = self.0.tenants.admit(request.metadata())?;
        self.0.report(request.into_inner(), grant).await.map(Response::new)
    }

    async fn publish_event(&self, request: Request<wire::CacheEvent>) -> Result<Response<wire::Ack>, Status> {
        self.admit(&request, &request.get_ref().tenant_id)?;
        self.0.publish(request.into_inner()).await.map(Response::new)
    }

    type StreamCacheEventsStream = Empty<Result<wire::CacheEvent, Status>>;

    async fn stream_cache_events(
        &self,
        request: Request<wire::StreamEventsRequest>,
    ) -> Result<Response<Self::StreamCacheEventsStream>, Status> {
        self.admit(&request, &request.get_ref().tenant_id)?;
        Ok(Response::new(tokio_stream::empty()))
    }

    type StreamMetricsStream = Empty<Result<wire::Metric, Status>>;

    async fn stream_metrics(
        &self,
        request: Request<wire::StreamMetricsRequest>,
    ) -> Result<Response<Self::StreamMetricsStream>, Status> {
        self.0.tenants.admit(request.metadata())?;
        Ok(Response::new(tokio_stream::empty()))
    }
}
