//! TLS around connections, both ends: accepting with the newest server configuration and dialling with the newest
//! client configuration. Where the configurations come from is their owner's business: this module reads no file and
//! decides nobody's trust. Handshakes are bounded in time and number, so that silent peers cost nothing lasting.

use rustls::pki_types::ServerName;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Longest handshake of a connection that came in.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes at once; further connections wait in the system's queue.
const MAX_HANDSHAKES: usize = 256;
/// Accepted connections that wait to be served.
const MAX_WAITING: usize = 16;
/// Pause after a failed accept, which mostly says that this process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Between lines of the log about failed handshakes.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Gives the server configuration for the next connection.
pub type ServerTls = Arc<dyn Fn() -> Arc<rustls::ServerConfig> + Send + Sync>;
/// Gives the client configuration for the next connection.
pub type ClientTls = Arc<dyn Fn() -> Arc<rustls::ClientConfig> + Send + Sync>;

/// The TLS of one port that is served.
#[derive(Clone)]
pub struct PortTls {
    /// The newest configuration.
    pub server: ServerTls,
    /// Counts handshakes that failed.
    pub failures: Arc<AtomicU64>,
}

/// The mutual TLS of the node port.
#[derive(Clone)]
pub struct NodeTls {
    /// What the port accepts with.
    pub port: PortTls,
    /// What peers are dialled with.
    pub client: ClientTls,
}

impl fmt::Debug for NodeTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeTls")
    }
}

/// One accepted connection, with or without TLS.
pub enum Connection {
    /// Bare TCP.
    Plain(TcpStream),
    /// TLS, shaken.
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>),
}

/// The connections that come in on a listener, until it is dropped. Must be called within a tokio runtime.
///
/// # Errors
/// A listener that the runtime can't take.
pub fn incoming(
    listener: std::net::TcpListener,
    tls: Option<PortTls>,
) -> io::Result<impl Stream<Item = io::Result<Connection>> + Send + 'static> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let (accepted, waiting) = mpsc::channel(MAX_WAITING);
    tokio::spawn(accept(listener, tls, accepted));
    Ok(tokio_stream::wrappers::ReceiverStream::new(waiting))
}

async fn accept(listener: TcpListener, tls: Option<PortTls>, accepted: mpsc::Sender<io::Result<Connection>>) {
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    let mut log = FailureLog::default();
    let (failed, mut failures) = mpsc::channel::<String>(1);
    loop {
        let permit = handshakes.clone().acquire_owned();
        let tcp = tokio::select! {
            () = accepted.closed() => return,
            Some(why) = failures.recv() => { log.say(&why); continue }
            tcp = async { (permit.await, listener.accept().await) } => tcp,
        };
        let (Ok(permit), tcp) = tcp else { return };
        let Ok((tcp, _)) = tcp else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Without it small messages wait for acknowledgements; a socket that refuses it works all the same.
        let _ = tcp.set_nodelay(true);
        let Some(tls) = &tls else {
            drop(permit);
            if accepted.send(Ok(Connection::Plain(tcp))).await.is_err() {
                return;
            }
            continue;
        };
        let (tls, accepted, failed) = (tls.clone(), accepted.clone(), failed.clone());
        tokio::spawn(async move {
            match shake(tcp, &tls).await {
                // The port may have closed meanwhile.
                Ok(connection) => drop(accepted.send(Ok(connection)).await),
                Err(why) => {
                    tls.failures.fetch_add(1, Ordering::Relaxed);
                    // A full log drops the line; the counter has it.
                    let _ = failed.try_send(why);
                }
            }
            drop(permit);
        });
    }
}

async fn shake(tcp: TcpStream, tls: &PortTls) -> Result<Connection, String> {
    let peer = tcp.peer_addr().map_or_else(|_| "a peer that left".to_owned(), |addr| addr.to_string());
    let acceptor = TlsAcceptor::from((tls.server)());
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(tcp)).await {
        Ok(Ok(stream)) => Ok(Connection::Tls(Box::new(stream))),
        Ok(Err(error)) => Err(format!("{peer}: {error}")),
        Err(_) => Err(format!("{peer}: no handshake within {HANDSHAKE_TIMEOUT:?}")),
    }
}

/// Says of failed handshakes as much as a reader needs: whoever may knock must not be able to fill the log.
#[derive(Default)]
struct FailureLog(Option<Instant>);

impl FailureLog {
    fn say(&mut self, why: &str) {
        if self.0.is_none_or(|last| last.elapsed() >= LOG_INTERVAL) {
            self.0 = Some(Instant::now());
            tracing::warn!(why, "a TLS handshake failed (others within {LOG_INTERVAL:?} are only counted)");
        }
    }
}

/// Dials host:port and shakes hands; the certificate must be valid for `name`, or for the host when there is none.
///
/// # Errors
/// No connection, or a peer that isn't trusted; the message says which.
pub async fn dial(
    addr: &str,
    name: Option<&str>,
    config: Arc<rustls::ClientConfig>,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let host = name.unwrap_or_else(|| addr.rsplit_once(':').map_or(addr, |(host, _)| host));
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let tcp = TcpStream::connect(addr).await?;
    tcp.set_nodelay(true)?;
    TlsConnector::from(config).connect(name, tcp).await
}

/// What tonic connects a channel with: always to `addr`, whatever address the channel's URI has.
pub fn connector(
    addr: String,
    name: Option<String>,
    tls: ClientTls,
) -> impl tower::Service<
    tonic::codegen::http::Uri,
    Response = hyper_util::rt::TokioIo<tokio_rustls::client::TlsStream<TcpStream>>,
    Error = io::Error,
    Future = impl Future<Output = io::Result<hyper_util::rt::TokioIo<tokio_rustls::client::TlsStream<TcpStream>>>> + Send,
> + Send
+ 'static {
    tower::service_fn(move |_: tonic::codegen::http::Uri| {
        let (addr, name, config) = (addr.clone(), name.clone(), tls());
        async move { Ok(hyper_util::rt::TokioIo::new(dial(&addr, name.as_deref(), config).await?)) }
    })
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match self {
            Self::Plain(tcp) => tcp.connect_info(),
            Self::Tls(tls) => tls.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(context, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(context, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(context, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(context, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write_vectored(context, bufs),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(context, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(tcp) => tcp.is_write_vectored(),
            Self::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(context),
            Self::Tls(tls) => Pin::new(tls).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(context),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(context),
        }
    }
}
