//! Which nodes a subcommand talks to, and for how long it waits.

use prefixd_client::{Client, Config, Error};
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
}

impl Target {
    /// A client of these nodes.
    pub fn client(&self) -> Result<Client, Error> {
        let mut config = Config::new(self.server.iter().map(|address| address.trim()));
        if let Some(timeout_ms) = self.timeout_ms {
            config.read_deadline = Duration::from_millis(timeout_ms);
            config.write_deadline = Duration::from_millis(timeout_ms);
        }
        Client::new(config)
    }
}
