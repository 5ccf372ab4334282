//! Serving routes on a listener within limits: so many connections, so much time for the head of a request, so much
//! idleness, so long without taking anything of an answer. A peer that died or dawdles loses its connection.
//!
//! At the limit of connections a newcomer doesn't wait, since it may be the probe that decides whether this process is
//! killed: the connection that is open longest is closed for it, and rather one without a request under way
//! ([`Room::for_newcomers`]). One whose answer is made and not taken counts as being without. What the rest lose by it is
//! a connection, which clients make anew; who answers what is [`super`]'s to say.

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use prefixd_raft::tls::{self, Connection, PortTls, Room};
use std::io;
use std::net::TcpListener;
use std::time::Duration;
use tokio_io_timeout::TimeoutWriter;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Limits of one HTTP port.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Connections at once.
    pub room: Room,
    /// Longest reading of a head or a body, longest idleness, and longest stall of a peer that is written to.
    pub timeout: Duration,
}

/// Serves until `closing` is cancelled, then lets the requests under way finish.
pub async fn serve(
    listener: TcpListener,
    tls: Option<PortTls>,
    routes: Router,
    limits: HttpLimits,
    closing: CancellationToken,
) -> io::Result<()> {
    let mut incoming = tls::incoming(listener, tls, limits.room)?;
    let graceful = GracefulShutdown::new();
    while let Some(accepted) = closing.run_until_cancelled(incoming.next()).await {
        match accepted {
            Some(Ok(connection)) => {
                tokio::spawn(converse(connection, routes.clone(), limits.timeout, graceful.watcher()));
            }
            // Failures stay with whoever accepts.
            Some(Err(_)) => {}
            None => break,
        }
    }
    drop(incoming);
    graceful.shutdown().await;
    Ok(())
}

/// Answers one connection until it ends or is told to leave.
async fn converse(connection: Connection, routes: Router, timeout: Duration, watcher: Watcher) {
    let guest = connection.guest().clone();
    let mut io = TimeoutWriter::new(connection);
    io.set_timeout(Some(timeout));
    let answer = service_fn(|request: Request<Incoming>| {
        let (routes, under_way) = (routes.clone(), guest.begin());
        async move {
            let answer = routes.oneshot(request).await;
            drop(under_way);
            answer
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(timeout);
    let conversation = http.serve_connection(TokioIo::new(Box::pin(io)), answer);
    tokio::select! {
        ended = watcher.watch(conversation) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "an HTTP connection ended");
            }
        }
        () = guest.told_to_leave() => tracing::debug!("an HTTP connection was closed for a newcomer"),
    }
}

#[cfg(test)]
mod tests;
