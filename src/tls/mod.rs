//! Certificates and keys from files to configurations of rustls, for the gRPC port, the controller's, the node port and
//! what dials it.
//! It decides who is trusted, nothing else: connections are made in prefixd_raft::tls, files are watched in
//! [`crate::watched`].

mod pem;

use crate::watched::{Content, Source, Watched};
use pem::Pair;
use prefixd_raft::tls::{NodeTls, PortTls};
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// gRPC is HTTP/2, and says so; so does the controller's port, which isn't.
const ALPN_GRPC: &[u8] = b"h2";
const ALPN_HTTP: &[u8] = b"http/1.1";

/// The TLS of one port as it is now.
pub struct Posture {
    server: Arc<ServerConfig>,
    client: Option<Arc<ClientConfig>>,
    /// When the port's certificate ends, in seconds since the Unix epoch.
    not_after: i64,
}

/// One port's certificates, watched.
#[derive(Clone)]
pub struct Port {
    /// The files.
    pub watched: Arc<Watched<Posture>>,
    failures: Arc<AtomicU64>,
}

impl Port {
    /// The gRPC port's: a certificate and its key, and a CA if clients must have certificates too.
    ///
    /// # Errors
    /// A file that is none, by its flag.
    pub fn grpc(cert: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> Result<Self, String> {
        let mut sources =
            vec![Source { flag: "tls-cert-file", path: cert }, Source { flag: "tls-key-file", path: key }];
        sources.extend(client_ca.map(|path| Source { flag: "tls-client-ca-file", path }));
        Self::open(sources, |contents| {
            let (pair, ca) = split(contents)?;
            let clients = ca.map(trusted).transpose()?;
            Ok(Posture { not_after: pair.not_after, server: server(pair, clients, ALPN_GRPC)?, client: None })
        })
    }

    /// The controller's port: a certificate and its key. Who may call is decided by tokens.
    ///
    /// # Errors
    /// A file that is none, by its flag.
    pub fn internal(cert: PathBuf, key: PathBuf) -> Result<Self, String> {
        let sources = vec![
            Source { flag: "internal-tls-cert-file", path: cert },
            Source { flag: "internal-tls-key-file", path: key },
        ];
        Self::open(sources, |contents| {
            let (pair, _) = split(contents)?;
            Ok(Posture { not_after: pair.not_after, server: server(pair, None, ALPN_HTTP)?, client: None })
        })
    }

    /// The node port's: one certificate for both ends, and the CA of all nodes and operators.
    ///
    /// # Errors
    /// A file that is none, by its flag.
    pub fn node(cert: PathBuf, key: PathBuf, ca: PathBuf) -> Result<Self, String> {
        let sources = vec![
            Source { flag: "node-tls-cert-file", path: cert },
            Source { flag: "node-tls-key-file", path: key },
            Source { flag: "node-tls-ca-file", path: ca },
        ];
        Self::open(sources, |contents| {
            let (pair, ca) = split(contents)?;
            let roots = trusted(ca.ok_or("no CA")?)?;
            let client = client(roots.clone(), Some(pair.clone()))?;
            let not_after = pair.not_after;
            Ok(Posture { server: server(pair, Some(roots), ALPN_GRPC)?, client: Some(client), not_after })
        })
    }

    fn open(
        sources: Vec<Source>,
        build: impl Fn(&[Content]) -> Result<Posture, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        Ok(Self { watched: Watched::open(sources, build)?, failures: Arc::default() })
    }

    /// What accepts connections of this port.
    pub fn accepting(&self) -> PortTls {
        let watched = self.watched.clone();
        PortTls { server: Arc::new(move || watched.current().server.clone()), failures: self.failures.clone() }
    }

    /// What a node takes; `None` if these aren't a node port's certificates.
    pub fn for_node(&self) -> Option<NodeTls> {
        let first = self.watched.current().client.clone()?;
        let watched = self.watched.clone();
        let client = move || watched.current().client.clone().unwrap_or_else(|| first.clone());
        Some(NodeTls { port: self.accepting(), client: Arc::new(client) })
    }

    /// When the certificate ends, in seconds since the Unix epoch.
    pub fn not_after(&self) -> i64 {
        self.watched.current().not_after
    }

    /// Handshakes that failed since start.
    pub fn failed_handshakes(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

fn split(contents: &[Content]) -> Result<(Pair, Option<&Content>), String> {
    let [cert, key, rest @ ..] = contents else { return Err("no certificate and key".into()) };
    let pair = pem::pair(cert, key)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    if i64::try_from(now).is_ok_and(|now| pair.not_after <= now) {
        return Err(cert.problem("the certificate has expired"));
    }
    Ok((pair, rest.first()))
}

fn trusted(ca: &Content) -> Result<RootCertStore, String> {
    pem::roots(&ca.bytes).map_err(|why| ca.problem(&why))
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn server(pair: Pair, clients: Option<RootCertStore>, alpn: &[u8]) -> Result<Arc<ServerConfig>, String> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
            builder.with_client_cert_verifier(verifier.build().map_err(|e| format!("the CA: {e}"))?)
        }
    };
    let mut config = builder.with_single_cert(pair.chain, pair.key).map_err(|e| format!("certificate and key: {e}"))?;
    config.alpn_protocols = vec![alpn.to_vec()];
    // A resumed session would skip the check of the client's certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn client(roots: RootCertStore, pair: Option<Pair>) -> Result<Arc<ClientConfig>, String> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots);
    let mut config = match pair {
        Some(pair) => {
            builder.with_client_auth_cert(pair.chain, pair.key).map_err(|e| format!("certificate and key: {e}"))?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN_GRPC.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// What a command line dials with: the CA that it trusts and, if asked for, a certificate of its own.
///
/// # Errors
/// A file that is none, by its flag and path.
pub fn dialling(ca: &Source, own: Option<(&Source, &Source)>) -> Result<Arc<ClientConfig>, String> {
    let roots = trusted(&ca.read()?)?;
    let pair = own.map(|(cert, key)| pem::pair(&cert.read()?, &key.read()?)).transpose()?;
    client(roots, pair)
}

/// The roots of a CA file, for clients that bring their own way to connect.
///
/// # Errors
/// No certificate in it.
pub fn trust(ca: &[u8]) -> Result<Arc<ClientConfig>, String> {
    let config = client(pem::roots(ca)?, None)?;
    let mut config = ClientConfig::clone(&config);
    config.alpn_protocols = Vec::new();
    Ok(Arc::new(config))
}
