//! Which nodes a subcommand talks to, and for how long it waits.

use crate::watched::Source;
use prefixd_client::{Client, Config};
use std::path::PathBuf;
use std::time::Duration;

/// Flags shared by all subcommands that are clients.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// gRPC addresses of the nodes; the next one is tried when one can't answer
    #[arg(
        long,
        value_name = "ADDR[,ADDR...]",
        env = "PREFIXD_SERVER",
        default_value = "127.0.0.1:9090",
        value_delimiter = ',',
        num_args = 1
    )]
    server: Vec<String>,
    /// How long a call may take, all attempts together, in milliseconds [default: 2000 to read, 15000 to write]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    timeout_ms: Option<u64>,
    /// Speak TLS and trust this CA, in PEM
    #[arg(long, value_name = "FILE", env = "PREFIXD_CLIENT_TLS_CA")]
    tls_ca: Option<PathBuf>,
    /// A certificate to show, in PEM, where nodes demand one
    #[arg(long, value_name = "FILE", env = "PREFIXD_CLIENT_TLS_CERT", requires_all = ["tls_ca", "tls_key"])]
    tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", env = "PREFIXD_CLIENT_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// A file with the bearer token of a tenant
    #[arg(long, value_name = "FILE", env = "PREFIXD_CLIENT_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

impl Target {
    /// A client of these nodes.
    pub fn client(&self) -> Result<Client, String> {
        let mut config = Config::new(self.server.iter().map(|address| address.trim()));
        if let Some(timeout_ms) = self.timeout_ms {
            config.read_deadline = Duration::from_millis(timeout_ms);
            config.write_deadline = Duration::from_millis(timeout_ms);
        }
        if let Some(ca) = source("tls-ca", self.tls_ca.as_ref()) {
            let own = source("tls-cert", self.tls_cert.as_ref()).zip(source("tls-key", self.tls_key.as_ref()));
            config.tls = Some(crate::tls::dialling(&ca, own.as_ref().map(|(cert, key)| (cert, key)))?);
        }
        if let Some(file) = source("token-file", self.token_file.as_ref()) {
            let content = file.read()?;
            let token = std::str::from_utf8(&content.bytes).unwrap_or_default().trim();
            let with_token = if token.is_empty() { None } else { config.with_token(token) };
            config = with_token.ok_or_else(|| file.problem("holds no token"))?;
        }
        Client::new(config).map_err(|error| format!("--server: {error}"))
    }
}

/// A file that a flag may have named.
pub(crate) fn source(flag: &'static str, path: Option<&PathBuf>) -> Option<Source> {
    path.map(|path| Source { flag, path: path.clone() })
}
