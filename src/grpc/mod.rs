//! The gRPC edge on 9090: InferenceCache, health and reflection. It judges messages (in prefixd-proto), keeps
//! deadlines, batches ingest streams and maps errors to status codes. It decides no answer and keeps no state of the
//! index; a lookup never waits for anything here.

mod admission;
mod arrival;
mod credits;
mod deadline;
mod health;
mod lookup;
mod reports;
mod service;

use crate::auth::TenantTokens;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::threads::PortThread;
use crate::vitals::Vitals;
use prefixd_index::RankConfig;
use prefixd_proto::inferencecache::inference_cache_server::InferenceCacheServer;
use prefixd_raft::Node;
use prefixd_raft::tls::{self, Incoming, PortTls, Room};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic_health::pb::health_server::{Health, HealthServer};

/// Flow control: one stream may send this much ahead, and one connection.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// What the calls share.
pub struct Edge {
    node: Node,
    vitals: Arc<Vitals>,
    metrics: Arc<Metrics>,
    tenants: Arc<TenantTokens>,
    credits: credits::Credits,
    rank: RankConfig,
    max_token_ids: usize,
    max_unacked_bytes: usize,
    max_message_bytes: usize,
    max_concurrent_streams: u32,
    max_concurrent_calls: u64,
    max_ingest_streams: u64,
    call_timeout: Duration,
    /// Silence after which a peer is asked for a sign of life, and how long it may take to give one: this is how a
    /// client that vanished is noticed.
    keepalive: (Duration, Duration),
    stopping: CancellationToken,
}

impl Edge {
    /// The edge of one node.
    pub fn new(
        config: &Config,
        node: Node,
        vitals: Arc<Vitals>,
        metrics: Arc<Metrics>,
        tenants: Arc<TenantTokens>,
        stopping: CancellationToken,
    ) -> Arc<Self> {
        let knobs = &config.knobs;
        Arc::new(Self {
            node,
            vitals,
            metrics,
            tenants,
            credits: credits::Credits::default(),
            rank: config.rank(),
            max_token_ids: usize::try_from(knobs.max_token_ids).unwrap_or(usize::MAX),
            max_unacked_bytes: knobs.max_unacked_bytes,
            max_message_bytes: knobs.max_message_bytes,
            max_concurrent_streams: u32::try_from(knobs.max_concurrent_streams).unwrap_or(u32::MAX),
            max_concurrent_calls: knobs.max_concurrent_calls,
            max_ingest_streams: knobs.max_ingest_streams,
            call_timeout: knobs.call_timeout,
            keepalive: (knobs.grpc_keepalive_interval, knobs.grpc_keepalive_timeout),
            stopping,
        })
    }
}

/// Serves until `closing` is cancelled, then finishes the calls that are under way.
pub async fn serve(
    edge: Arc<Edge>,
    listener: TcpListener,
    tls: Option<PortTls>,
    room: Room,
    closing: CancellationToken,
) -> Result<(), ServeError> {
    let (health, health_driver) = health::service(edge.vitals.clone()).await;
    let threads = PortThread::start_one_a_core("grpc")?;
    let runtimes: Vec<_> = threads.iter().map(PortThread::handle).cloned().collect();
    let incoming = tls::incoming_among(listener, tls, room, &runtimes)?;
    let mut servers = JoinSet::new();
    for (incoming, runtime) in incoming.into_iter().zip(&runtimes) {
        servers.spawn_on(serve_some(edge.clone(), health.clone(), incoming, closing.clone()), runtime);
    }
    let serving = async {
        while let Some(ended) = servers.join_next().await {
            ended??;
        }
        Ok(())
    };
    let drivers = async {
        tokio::join!(health_driver, edge.credits.run(edge.node.clone(), edge.stopping.clone()));
    };
    tokio::select! {
        served = serving => served,
        () = drivers => Ok(()),
    }
}

/// Serves the connections of one thread.
async fn serve_some(
    edge: Arc<Edge>,
    health: HealthServer<impl Health>,
    incoming: Incoming,
    closing: CancellationToken,
) -> Result<(), ServeError> {
    let reflect = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(prefixd_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name("inferencecache.v1alpha1.InferenceCache")
            .with_service_name("grpc.health.v1.Health")
    };
    let service = InferenceCacheServer::new(service::CachePlane(edge.clone()))
        .max_decoding_message_size(edge.max_message_bytes)
        .max_encoding_message_size(usize::MAX);
    let server = Server::builder()
        .http2_keepalive_interval(Some(edge.keepalive.0))
        .http2_keepalive_timeout(Some(edge.keepalive.1))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(edge.max_concurrent_streams)
        .layer(arrival::ArrivalLayer)
        .layer(admission::AdmissionLayer(edge))
        .add_service(service)
        .add_service(health)
        .add_service(reflect().build_v1()?)
        .add_service(reflect().build_v1alpha()?);
    Ok(server.serve_with_incoming_shutdown(incoming, closing.cancelled_owned()).await?)
}

/// Why the gRPC port could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The transport failed.
    #[error("gRPC: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// The threads or the listener could not be set up.
    #[error("gRPC: {0}")]
    Setup(#[from] io::Error),
    /// A thread's server is gone.
    #[error("gRPC: a server ended: {0}")]
    Ended(#[from] JoinError),
    /// The descriptors of the contract are broken.
    #[error("gRPC reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}
