//! Serving routes on a listener within limits: so many connections, so much time for the head of a request, so much
//! idleness. A peer that died or dawdles loses its connection; whoever is over the number waits to be accepted.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Pause after the system refused a connection: it is out of file descriptors, most likely.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

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
    routes: Router,
    limits: HttpLimits,
    closing: CancellationToken,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let permits = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    while let Some(accepted) = closing.run_until_cancelled(accept(&listener, &permits)).await {
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

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    // The semaphore is never closed.
    let permit = permits.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(error) => {
            tracing::warn!(%error, "an HTTP connection could not be accepted");
            tokio::time::sleep(REFUSED_PAUSE).await;
            None
        }
    }
}
