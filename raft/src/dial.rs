//! Channels to peers. A member's address is its entry in this node's peer list, else what it announced last; names are
//! resolved at each dial. With mutual TLS a peer must prove the host name that was dialled. Bulk transfers have channels of their own, so that they never delay a heartbeat.

use crate::face::Peer;
use crate::moved::Moved;
use crate::tls::{self, ClientTls};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Largest message on the node port, both ways, on both ends.
pub(crate) const MAX_NODE_MESSAGE_BYTES: usize = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Channels kept; beyond it all are dropped and dialled anew (addresses change rarely).
const MAX_CHANNELS: usize = 256;

/// What a channel carries.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Votes, heartbeats, log entries.
    Raft,
    /// Forwarded commands, status, bootstrap.
    Calls,
    /// Snapshots.
    Bulk,
}

/// Dials peers and keeps the channels.
pub(crate) struct Dialer {
    overrides: HashMap<String, String>,
    tls: Option<ClientTls>,
    pub(crate) moved: Moved,
    channels: Mutex<HashMap<(String, Purpose), Channel>>,
}

impl Dialer {
    pub(crate) fn new(peers: &[Peer], tls: Option<ClientTls>) -> Self {
        let overrides = peers.iter().map(|peer| (peer.name.clone(), peer.addr.clone())).collect();
        Self { overrides, tls, moved: Moved::default(), channels: Mutex::default() }
    }

    /// The address of a member: the peer list's, else the announced one, or where that one has moved to.
    pub(crate) fn addr(&self, name: &str, announced: &str) -> String {
        match self.overrides.get(name) {
            Some(listed) => listed.clone(),
            None => self.moved.now(name, announced),
        }
    }

    /// A channel to an address; it connects when it is first used. The error is the end of a sentence that begins with
    /// the address.
    pub(crate) fn channel(&self, addr: &str, purpose: Purpose) -> Result<Channel, String> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (addr.to_owned(), purpose);
        if let Some(channel) = channels.get(&key) {
            return Ok(channel.clone());
        }
        if channels.len() >= MAX_CHANNELS {
            channels.clear();
        }
        let endpoint = Endpoint::from_shared(format!("http://{addr}"))
            .map_err(|e| format!("is no address of a node port (host:port): {e}"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        let channel = match &self.tls {
            Some(tls) => endpoint.connect_with_connector_lazy(tls::connector(addr.to_owned(), None, tls.clone())),
            None => endpoint.connect_lazy(),
        };
        channels.insert(key, channel.clone());
        Ok(channel)
    }
}
