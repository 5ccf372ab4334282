//! Everything of a node that is made of certificates and tokens, opened from its configuration before a port is bound,
//! and kept fresh while it runs. It wires; the judging is in [`crate::tls`] and [`crate::auth`].

use crate::auth::review::{Review, ReviewConfig};
use crate::auth::tokens::TokenSet;
use crate::auth::{Gate, TenantTokens, tenants};
use crate::config::{Config, Knobs};
use crate::tls::{self, Port};
use crate::watched::{Content, Refresh, Source, Watched, keep_fresh};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Certificates and tokens of one node.
#[derive(Default)]
pub struct Security {
    /// The gRPC port's certificates; `None` without TLS.
    pub grpc: Option<Port>,
    /// The controller's port's certificates; `None` without TLS.
    pub internal: Option<Port>,
    /// The node port's certificates; `None` without TLS.
    pub node: Option<Port>,
    /// The controller's port.
    pub gate: Arc<Gate>,
    /// The tenants' tokens.
    pub tenants: Arc<TenantTokens>,
    watched: Vec<Arc<dyn Refresh>>,
    interval: Duration,
}

impl Security {
    /// Reads all files.
    ///
    /// # Errors
    /// The first one that is no good, by its flag.
    pub fn open(config: &Config) -> Result<Self, String> {
        let knobs = &config.knobs;
        let mut watched: Vec<Arc<dyn Refresh>> = Vec::new();
        let grpc = match (&knobs.tls_cert_file, &knobs.tls_key_file) {
            (Some(cert), Some(key)) => Some(Port::grpc(cert.clone(), key.clone(), knobs.tls_client_ca_file.clone())?),
            _ => None,
        };
        let internal = match (&knobs.internal_tls_cert_file, &knobs.internal_tls_key_file) {
            (Some(cert), Some(key)) => Some(Port::internal(cert.clone(), key.clone())?),
            _ => None,
        };
        let node = match (&knobs.node_tls_cert_file, &knobs.node_tls_key_file, &knobs.node_tls_ca_file) {
            (Some(cert), Some(key), Some(ca)) => Some(Port::node(cert.clone(), key.clone(), ca.clone())?),
            _ => None,
        };
        for port in grpc.iter().chain(&internal).chain(&node) {
            watched.push(port.watched.clone());
        }
        let policy = open("policy-token-file", knobs.policy_token_file.as_ref(), TokenSet::parse, &mut watched)?;
        let controller =
            open("controller-token-file", knobs.controller_token_file.as_ref(), TokenSet::parse, &mut watched)?;
        let gate = Gate::new(policy, controller, review(knobs, &mut watched)?);
        let tenants = open("tenant-token-file", knobs.tenant_token_file.as_ref(), tenants::Table::parse, &mut watched)?;
        Ok(Self {
            grpc,
            internal,
            node,
            gate: Arc::new(gate),
            tenants: TenantTokens::new(tenants),
            watched,
            interval: knobs.reload_interval,
        })
    }

    /// Reads files again as they change, until cancelled.
    pub fn watch(&self, stopping: CancellationToken) {
        tokio::spawn(keep_fresh(self.watched.clone(), self.interval, stopping));
    }

    /// (flag, changes taken, changes refused) for each watched set of files.
    pub fn reloads(&self) -> Vec<(&'static str, u64, u64)> {
        self.watched.iter().map(|one| one.counts()).collect()
    }

    /// The ports with TLS, by name.
    pub fn ports(&self) -> impl Iterator<Item = (&'static str, &Port)> {
        let ports = [("grpc", &self.grpc), ("internal", &self.internal), ("node", &self.node)];
        ports.into_iter().filter_map(|(name, port)| Some((name, port.as_ref()?)))
    }

    /// Says what an operator may not have meant.
    pub fn warn(&self, config: &Config) {
        let knobs = &config.knobs;
        let bare = |addr: std::net::SocketAddr| !addr.ip().is_loopback();
        if bare(knobs.grpc_addr) && self.grpc.is_none() && knobs.tenant_token_file.is_some() {
            tracing::warn!(addr = %knobs.grpc_addr, "tenants' tokens travel in clear: --grpc-addr has no TLS");
        }
        if bare(knobs.internal_addr) && self.gate.is_open() {
            tracing::warn!(addr = %knobs.internal_addr, "anybody who reaches --internal-addr may set policies");
        }
        if bare(knobs.internal_addr) && self.internal.is_none() && !self.gate.is_open() {
            tracing::warn!(addr = %knobs.internal_addr, "the controller's tokens travel in clear: --internal-addr has no TLS");
        }
        if bare(knobs.node_addr) && self.node.is_none() {
            tracing::warn!(addr = %knobs.node_addr, "anybody who reaches --node-addr may write the log");
        }
    }
}

fn open<T: Send + Sync + 'static>(
    flag: &'static str,
    path: Option<&PathBuf>,
    parse: impl Fn(&[u8]) -> Result<T, String> + Send + Sync + 'static,
    watched: &mut Vec<Arc<dyn Refresh>>,
) -> Result<Option<Arc<Watched<T>>>, String> {
    let Some(path) = path else { return Ok(None) };
    let source = Source { flag, path: path.clone() };
    let build = move |contents: &[Content]| match contents {
        [content] => parse(&content.bytes).map_err(|why| content.problem(&why)),
        _ => Err(format!("--{flag}: one file was expected")),
    };
    let one = Watched::open(vec![source], build)?;
    watched.push(one.clone());
    Ok(Some(one))
}

fn review(knobs: &Knobs, watched: &mut Vec<Arc<dyn Refresh>>) -> Result<Option<Review>, String> {
    let Some(url) = knobs.token_review_url.clone() else { return Ok(None) };
    let ca = knobs.token_review_ca_file.as_ref().filter(|_| url.secure);
    let config = ReviewConfig {
        ca: open("token-review-ca-file", ca, tls::trust, watched)?,
        own_token: open("token-review-token-file", knobs.token_review_token_file.as_ref(), own_token, watched)?,
        policy_audience: knobs.token_review_policy_audience.clone(),
        controller_audience: knobs.token_review_controller_audience.clone(),
        users: knobs.token_review_users.clone(),
        timeout: knobs.token_review_timeout,
        remember: knobs.token_review_remember,
        url,
    };
    Ok(Some(Review::new(config)))
}

/// This node's own token towards the reviewer.
fn own_token(content: &[u8]) -> Result<String, String> {
    let token = std::str::from_utf8(content).unwrap_or_default().trim();
    let good = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    good.then(|| token.to_owned()).ok_or_else(|| "holds no token".into())
}
