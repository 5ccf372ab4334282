//! TLS around connections, both ends: accepting with the newest server configuration, for one runtime or shared out among
//! several, and dialling with the newest client configuration. Where the configurations come from is their owner's
//! business: this module reads no file and decides nobody's trust. Connections are bounded in number and handshakes in time as well, so that silent peers cost
//! nothing lasting.

use crate::guests::Place;
pub use crate::guests::{Guest, Room, UnderWay};
use futures::future::select_all;
use rustls::pki_types::ServerName;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Longest handshake of a connection that came in, and longest silence of one without TLS: who connects speaks first.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes at once, as many as the node port holds connections, so that none waits behind those that stall; where there
/// are more, further connections wait in the system's queue.
const MAX_HANDSHAKES: usize = 1_024;
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
pub struct Connection {
    socket: Socket,
    /// Whether several buffers are taken at once. HTTP/2 then sends every message of 256 bytes or more in a write of its
    /// own, ahead of its trailers, which spares large messages a copy and costs small ones a second write.
    is_vectored: bool,
    berthed: Berthed,
}

impl Connection {
    /// How its port sees it.
    pub fn guest(&self) -> &Guest {
        self.berthed.place.guest()
    }
}

/// The connections that one server is to serve, as they come.
pub type Incoming = ReceiverStream<io::Result<Connection>>;

enum Socket {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>),
}

/// A place on the port, and one on the runtime, for as long as a connection lives.
struct Berthed {
    place: Place,
    on_its_runtime: Arc<AtomicUsize>,
}

impl Berthed {
    fn new(place: Place, on_its_runtime: &Arc<AtomicUsize>) -> Self {
        on_its_runtime.fetch_add(1, Ordering::Relaxed);
        Self { place, on_its_runtime: on_its_runtime.clone() }
    }
}

impl Drop for Berthed {
    fn drop(&mut self) {
        self.on_its_runtime.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A runtime that serves connections.
struct Berth {
    runtime: Handle,
    is_vectored: bool,
    open: Arc<AtomicUsize>,
    accepted: mpsc::Sender<io::Result<Connection>>,
}

/// The connections that come in on a listener, for large messages, served by the runtime that this is called in.
///
/// # Errors
/// A listener that the runtime can't take.
pub fn incoming(listener: std::net::TcpListener, tls: Option<PortTls>, room: Room) -> io::Result<Incoming> {
    let (berth, stream) = berth(&Handle::current(), true);
    listen(listener, tls, room, vec![berth])?;
    Ok(stream)
}

/// The same for small messages, shared out among several runtimes, one stream for each: a connection goes to the runtime
/// that has the fewest, and stays there. Must be called within a runtime, which accepts; handshakes are made where the
/// connection is served.
///
/// # Errors
/// A listener that the runtime can't take, or no runtime to serve it.
pub fn incoming_among(
    listener: std::net::TcpListener,
    tls: Option<PortTls>,
    room: Room,
    runtimes: &[Handle],
) -> io::Result<Vec<Incoming>> {
    let (berths, streams) = runtimes.iter().map(|runtime| berth(runtime, false)).unzip();
    listen(listener, tls, room, berths)?;
    Ok(streams)
}

fn berth(runtime: &Handle, is_vectored: bool) -> (Berth, Incoming) {
    let (accepted, waiting) = mpsc::channel(MAX_WAITING);
    (Berth { runtime: runtime.clone(), is_vectored, open: Arc::default(), accepted }, ReceiverStream::new(waiting))
}

fn listen(listener: std::net::TcpListener, tls: Option<PortTls>, room: Room, berths: Vec<Berth>) -> io::Result<()> {
    if berths.is_empty() {
        return Err(io::Error::other("no runtime serves this port"));
    }
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    tokio::spawn(accept(listener, tls, room, berths));
    Ok(())
}

/// Accepts until one of those who serve is gone.
async fn accept(listener: TcpListener, tls: Option<PortTls>, room: Room, berths: Vec<Berth>) {
    let handshakes = Arc::new(Semaphore::new(room.handshakes(MAX_HANDSHAKES)));
    let mut log = FailureLog::default();
    let (failed, mut failures) = mpsc::channel::<(&str, String)>(1);
    let mut closed = select_all(berths.iter().map(|berth| Box::pin(berth.accepted.closed())));
    loop {
        let permit = handshakes.clone().acquire_owned();
        let tcp = tokio::select! {
            _ = &mut closed => return,
            Some((what, why)) = failures.recv() => { log.say(what, &why); continue }
            tcp = async { (permit.await, listener.accept().await) } => tcp,
        };
        let (Ok(permit), tcp) = tcp else { return };
        let tcp = tcp.and_then(|(tcp, _)| tcp.into_std());
        let Ok(tcp) = tcp.map_err(|error| log.say("a connection was not accepted", &error.to_string())) else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(place) = room.take().await else { continue };
        let Some(berth) = berths.iter().min_by_key(|berth| berth.open.load(Ordering::Relaxed)) else { return };
        let berthed = Berthed::new(place, &berth.open);
        let (tls, accepted, failed) = (tls.clone(), berth.accepted.clone(), failed.clone());
        let is_vectored = berth.is_vectored;
        berth.runtime.spawn(async move {
            let greeted = tokio::select! {
                greeted = greet(tcp, tls.as_ref()) => greeted,
                () = berthed.place.guest().told_to_leave() => return,
            };
            match greeted {
                // The port may have closed meanwhile.
                Ok(socket) => drop(accepted.send(Ok(Connection { socket, is_vectored, berthed })).await),
                // A full log drops the line; the counter has it.
                Err(failure) => drop(failed.try_send(failure)),
            }
            drop(permit);
        });
    }
}

/// Takes the connection over to this runtime, and shakes hands where that is asked for.
async fn greet(tcp: std::net::TcpStream, tls: Option<&PortTls>) -> Result<Socket, (&'static str, String)> {
    let tcp = TcpStream::from_std(tcp).map_err(|error| ("a connection was not taken over", error.to_string()))?;
    // Without it small messages wait for acknowledgements; a socket that refuses it works all the same.
    let _ = tcp.set_nodelay(true);
    let Some(tls) = tls else {
        return match tokio::time::timeout(HANDSHAKE_TIMEOUT, tcp.readable()).await {
            Ok(_) => Ok(Socket::Plain(tcp)),
            Err(_) => Err(("a connection was closed", format!("it said nothing within {HANDSHAKE_TIMEOUT:?}"))),
        };
    };
    shake(tcp, tls).await.map_err(|why| {
        tls.failures.fetch_add(1, Ordering::Relaxed);
        ("a TLS handshake failed", why)
    })
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
        self.is_vectored
            && match &self.socket {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_stream::StreamExt;

    async fn next(of: &mut Incoming) -> Connection {
        of.next().await.expect("the port is open").expect("accepted")
    }

    /// A client that has said something.
    async fn client(addr: std::net::SocketAddr) -> io::Result<TcpStream> {
        let mut tcp = TcpStream::connect(addr).await?;
        tcp.write_all(b"PRI").await?;
        Ok(tcp)
    }

    #[tokio::test]
    async fn who_says_nothing_gives_its_place_back() -> io::Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let room = Room::new(8);
        let mut accepted = incoming(listener, None, room.clone())?;
        let mut silent = TcpStream::connect(addr).await?;
        let _speaks = client(addr).await?;
        let _held = next(&mut accepted).await;
        assert_eq!(silent.read(&mut [0]).await?, 0, "it is closed");
        assert_eq!(room.open(), 1, "the other one is not");
        Ok(())
    }

    #[tokio::test]
    async fn a_connection_goes_where_the_fewest_are() -> io::Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let here = [Handle::current(), Handle::current()];
        let mut streams = incoming_among(listener, None, Room::new(8), &here)?;
        let (mut second, mut first) = (streams.pop().expect("two"), streams.pop().expect("two"));
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(client(addr).await?);
        }
        let _held = [next(&mut first).await, next(&mut first).await];
        drop([next(&mut second).await, next(&mut second).await]);
        for _ in 0..2 {
            clients.push(client(addr).await?);
        }
        let _again = [next(&mut second).await, next(&mut second).await];
        Ok(())
    }
}
