//! Serving routes on a listener within limits: so many connections, so much time for the head of a request, so much
//! idleness. A peer that died or dawdles loses its connection; whoever is over the number waits to be served.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use prefixd_raft::tls::{self, Connection, PortTls, Room};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;

/// Limits of one HTTP port.
#[derive(Copy, Clone, Debug)]
pub struct HttpLimits {
    /// Connections at once.
    pub connections: usize,
    /// Longest reading of a head or a body, and longest idleness.
    pub timeout: Duration,
}

/// Serves until `closing` is cancelled, then lets the requests under way finish.
pub async fn serve(
    listener: std::net::TcpListener,
    tls: Option<PortTls>,
    routes: Router,
    limits: HttpLimits,
    closing: CancellationToken,
) -> io::Result<()> {
    let mut incoming = tls::incoming(listener, tls, Room::new(usize::MAX))?;
    let permits = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    while let Some(accepted) = closing.run_until_cancelled(next(&mut incoming, &permits)).await {
        let Some((stream, permit)) = accepted else { continue };
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(limits.timeout);
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes.clone()));
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP connection ended");
            }
            drop(permit);
        });
    }
    graceful.shutdown().await;
    Ok(())
}

async fn next(
    incoming: &mut (impl Stream<Item = io::Result<Connection>> + Unpin),
    permits: &Arc<Semaphore>,
) -> Option<(Connection, OwnedSemaphorePermit)> {
    // The semaphore is never closed.
    let permit = permits.clone().acquire_owned().await.ok()?;
    match incoming.next().await {
        Some(Ok(connection)) => Some((connection, permit)),
        // Failures stay with whoever accepts, and the stream doesn't end before this task drops it.
        Some(Err(_)) | None => std::future::pending().await,
    }
}
