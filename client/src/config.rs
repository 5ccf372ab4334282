//! The knobs of a client and their defaults.

use std::sync::Arc;
use std::time::Duration;
use tonic::metadata::AsciiMetadataValue;

/// How a [`Client`](crate::Client) reaches the cluster.
#[derive(Clone, Debug)]
pub struct Config {
    /// The gRPC addresses of the nodes, as `host:port` or `http://host:port`.
    pub endpoints: Vec<String>,
    /// Time for one read (`lookup`, `cache_state`), all attempts together. One attempt gets an even share of it, so
    /// that a node that hangs leaves time for the others.
    pub read_deadline: Duration,
    /// Time for one write (`report`, `publish`), all attempts together. An attempt may use all of it: a write that is
    /// given up while it still waits inside a node could be applied after a later one.
    pub write_deadline: Duration,
    /// Time to establish a connection.
    pub connect_timeout: Duration,
    /// Calls per operation, at most.
    pub attempts_max: u32,
    /// The first pause between attempts is between 0 and this, and the bound doubles each time.
    pub backoff_base: Duration,
    /// The bound on a pause stops growing here.
    pub backoff_max: Duration,
    /// For this long a node that failed is tried after all others.
    pub unhealthy_for: Duration,
    /// A silent connection is pinged after this, and given up after as much again.
    pub keepalive: Duration,
    /// The largest message that is sent or taken.
    pub message_bytes_max: usize,
    /// Dial with TLS: whom to trust, and a certificate to show if nodes want one. `None` talks in clear.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The authorization header of every call; [`Config::with_token`] makes one.
    pub authorization: Option<AsciiMetadataValue>,
}

impl Config {
    /// The defaults, for these nodes.
    pub fn new<I>(endpoints: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            read_deadline: Duration::from_secs(2),
            write_deadline: Duration::from_secs(15),
            connect_timeout: Duration::from_secs(1),
            attempts_max: 100,
            backoff_base: Duration::from_millis(5),
            backoff_max: Duration::from_millis(500),
            unhealthy_for: Duration::from_secs(5),
            keepalive: Duration::from_secs(2),
            message_bytes_max: 64 << 20,
            tls: None,
            authorization: None,
        }
    }

    /// Sends this bearer token with every call; `None` if it is not what a header can carry.
    pub fn with_token(mut self, token: &str) -> Option<Self> {
        let mut value: AsciiMetadataValue = format!("Bearer {token}").parse().ok()?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Some(self)
    }
}
