//! TLS around connections, both ends: accepting with the newest server configuration and dialling with the newest
//! client configuration. Where the configurations come from is their owner's business: this module reads no file and
//! decides nobody's trust. Connections are bounded in number and handshakes in time as well, so that silent peers cost
//! nothing lasting.

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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
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

/// How many connections a port holds. One over the number is closed before its handshake: a client then tries another
/// node at once, where waiting in a queue would hold it up.
#[derive(Clone, Debug)]
pub struct Room {
    free: Arc<Semaphore>,
    connections: usize,
    turned_away: Arc<AtomicU64>,
}

impl Room {
    /// Room for this many connections.
    pub fn new(connections: usize) -> Self {
        let connections = connections.min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(connections)), connections, turned_away: Arc::default() }
    }

    /// Connections that are open now.
    pub fn open(&self) -> u64 {
        (self.connections - self.free.available_permits()) as u64
    }

    /// Connections that were closed for want of room.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    fn take(&self) -> Option<OwnedSemaphorePermit> {
        let taken = self.free.clone().try_acquire_owned().ok();
        if taken.is_none() {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }
}

/// One accepted connection, with or without TLS.
pub struct Connection {
    socket: Socket,
    _place: OwnedSemaphorePermit,
}

enum Socket {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>),
}

/// The connections that come in on a listener, until it is dropped. Must be called within a tokio runtime.
///
/// # Errors
/// A listener that the runtime can't take.
pub fn incoming(
    listener: std::net::TcpListener,
    tls: Option<PortTls>,
    room: Room,
) -> io::Result<impl Stream<Item = io::Result<Connection>> + Send + Unpin + 'static> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let (accepted, waiting) = mpsc::channel(MAX_WAITING);
    tokio::spawn(accept(listener, tls, room, accepted));
    Ok(tokio_stream::wrappers::ReceiverStream::new(waiting))
}

async fn accept(
    listener: TcpListener,
    tls: Option<PortTls>,
    room: Room,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    let mut log = FailureLog::default();
    let (failed, mut failures) = mpsc::channel::<String>(1);
    loop {
        let permit = handshakes.clone().acquire_owned();
        let tcp = tokio::select! {
            () = accepted.closed() => return,
            Some(why) = failures.recv() => { log.say("a TLS handshake failed", &why); continue }
            tcp = async { (permit.await, listener.accept().await) } => tcp,
        };
        let (Ok(permit), tcp) = tcp else { return };
        let Ok((tcp, _)) = tcp.map_err(|error| log.say("a connection was not accepted", &error.to_string())) else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(place) = room.take() else { continue };
        // Without it small messages wait for acknowledgements; a socket that refuses it works all the same.
        let _ = tcp.set_nodelay(true);
        let Some(tls) = &tls else {
            drop(permit);
            if accepted.send(Ok(Connection { socket: Socket::Plain(tcp), _place: place })).await.is_err() {
                return;
            }
            continue;
        };
        let (tls, accepted, failed) = (tls.clone(), accepted.clone(), failed.clone());
        tokio::spawn(async move {
            match shake(tcp, &tls).await {
                // The port may have closed meanwhile.
                Ok(socket) => drop(accepted.send(Ok(Connection { socket, _place: place })).await),
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

async fn shake(tcp: TcpStream, tls: &PortTls) -> Result<Socket, String> {
    let peer = tcp.peer_addr().map_or_else(|_| "a peer that left".to_owned(), |addr| addr.to_string());
    let acceptor = TlsAcceptor::from((tls.server)());
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(tcp)).await {
        Ok(Ok(stream)) => Ok(Socket::Tls(Box::new(stream))),
        Ok(Err(error)) => Err(format!("{peer}: {error}")),
        Err(_) => Err(format!("{peer}: no handshake within {HANDSHAKE_TIMEOUT:?}")),
    }
}

/// Says of connections that failed as much as a reader needs: whoever may knock must not be able to fill the log.
#[derive(Default)]
struct FailureLog(Option<Instant>);

impl FailureLog {
    fn say(&mut self, what: &str, why: &str) {
        if self.0.is_none_or(|last| last.elapsed() >= LOG_INTERVAL) {
            self.0 = Some(Instant::now());
            tracing::warn!(why, "{what} (no line about others within {LOG_INTERVAL:?})");
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
        match &self.socket {
            Socket::Plain(tcp) => tcp.connect_info(),
            Socket::Tls(tls) => tls.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Plain(tcp) => Pin::new(tcp).poll_read(context, buf),
            Socket::Tls(tls) => Pin::new(tls).poll_read(context, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().socket {
            Socket::Plain(tcp) => Pin::new(tcp).poll_write(context, buf),
            Socket::Tls(tls) => Pin::new(tls).poll_write(context, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().socket {
            Socket::Plain(tcp) => Pin::new(tcp).poll_write_vectored(context, bufs),
            Socket::Tls(tls) => Pin::new(tls).poll_write_vectored(context, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.socket {
            Socket::Plain(tcp) => tcp.is_write_vectored(),
            Socket::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Plain(tcp) => Pin::new(tcp).poll_flush(context),
            Socket::Tls(tls) => Pin::new(tls).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Plain(tcp) => Pin::new(tcp).poll_shutdown(context),
            Socket::Tls(tls) => Pin::new(tls).poll_shutdown(context),
        }
    }
}
