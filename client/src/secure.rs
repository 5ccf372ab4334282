//! Connections with TLS: the host that is dialled must be what the node's certificate says. Whom to trust, and what to
//! show, is in the configuration that the caller brings.

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

/// A channel that dials with TLS when it is first used.
pub(crate) fn channel(endpoint: &Endpoint, config: Arc<rustls::ClientConfig>) -> Channel {
    let connector = tower::service_fn(move |uri: Uri| dial(uri, config.clone()));
    endpoint.connect_with_connector_lazy(connector)
}

async fn dial(uri: Uri, config: Arc<rustls::ClientConfig>) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let missing = || io::Error::new(io::ErrorKind::InvalidInput, "an endpoint is host:port");
    let host = uri.host().ok_or_else(missing)?.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().ok_or_else(missing)?;
    let tcp = TcpStream::connect((host.as_str(), port)).await?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    Ok(TokioIo::new(TlsConnector::from(config).connect(name, tcp).await?))
}
