//! Binding all ports before anything else starts, and telling where they were bound.

use crate::config::Config;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// The listeners of one node.
#[derive(Debug)]
pub struct Ports {
    /// gRPC for gateways and producers.
    pub grpc: TcpListener,
    /// Public HTTP.
    pub http: TcpListener,
    /// HTTP for the controller.
    pub internal: TcpListener,
    /// gRPC between nodes.
    pub node: TcpListener,
    /// Where all of them are.
    pub bound: Bound,
}

/// Where the ports were bound, as in --addr-file.
#[derive(Copy, Clone, Debug, Serialize)]
pub struct Bound {
    /// gRPC for gateways and producers.
    pub grpc: SocketAddr,
    /// Public HTTP.
    pub http: SocketAddr,
    /// HTTP for the controller.
    pub internal: SocketAddr,
    /// gRPC between nodes.
    pub node: SocketAddr,
}

/// Why the ports could not be bound or told.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// An address could not be bound.
    #[error("{flag} {addr}: {error}")]
    Bind {
        /// The flag that named it.
        flag: &'static str,
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// The address file could not be written.
    #[error("--addr-file {}: {error}", path.display())]
    AddrFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl Ports {
    /// Binds all ports, or none.
    pub fn bind(config: &Config) -> Result<Self, PortError> {
        let knobs = &config.knobs;
        let (grpc, grpc_addr) = bind("--grpc-addr", knobs.grpc_addr)?;
        let (http, http_addr) = bind("--http-addr", knobs.http_addr)?;
        let (internal, internal_addr) = bind("--internal-addr", knobs.internal_addr)?;
        let (node, node_addr) = bind("--node-addr", knobs.node_addr)?;
        let bound = Bound { grpc: grpc_addr, http: http_addr, internal: internal_addr, node: node_addr };
        Ok(Self { grpc, http, internal, node, bound })
    }
}

fn bind(flag: &'static str, addr: SocketAddr) -> Result<(TcpListener, SocketAddr), PortError> {
    let bound = || {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        Ok((listener, addr))
    };
    bound().map_err(|error| PortError::Bind { flag, addr, error })
}

impl Bound {
    /// Writes the addresses as JSON; who reads the file sees all of it or none.
    pub fn write_to(&self, path: &Path) -> Result<(), PortError> {
        let write = || {
            let mut name = path.file_name().unwrap_or_default().to_owned();
            name.push(format!(".{}.tmp", std::process::id()));
            let temporary = path.with_file_name(name);
            let mut file = File::create(&temporary)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)
        };
        write().map_err(|error| PortError::AddrFile { path: path.into(), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServeArgs;

    fn config(flags: &[(&str, String)]) -> Config {
        let mut args = ServeArgs::default();
        for key in ["grpc_addr", "http_addr", "internal_addr", "node_addr"] {
            args.said.flags.insert(key.into(), "127.0.0.1:0".into());
        }
        for (key, text) in flags {
            args.said.flags.insert((*key).into(), text.clone());
        }
        Config::resolve(&args, None).unwrap()
    }

    #[test]
    fn a_taken_port_is_named_with_its_flag() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = taken.local_addr().unwrap().to_string();
        let error = Ports::bind(&config(&[("http_addr", addr.clone())])).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--http-addr {addr}: ")), "{error}");
    }

    #[test]
    fn bound_addresses_are_written_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("addrs.json");
        let ports = Ports::bind(&config(&[])).unwrap();
        ports.bound.write_to(&path).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for (key, listener) in
            [("grpc", &ports.grpc), ("http", &ports.http), ("internal", &ports.internal), ("node", &ports.node)]
        {
            let addr = listener.local_addr().unwrap().to_string();
            assert_eq!(read.get(key).and_then(|v| v.as_str()), Some(addr.as_str()), "{key}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = ports.bound.write_to(Path::new("/nonexistent/addrs.json")).unwrap_err().to_string();
        assert!(error.starts_with("--addr-file /nonexistent/addrs.json: "), "{error}");
    }
}
