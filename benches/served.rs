//! A node that a bench measures: the shipped binary as a process of its own, on ports of the system's choice.

use prefixd::environment::{NODE_ENVIRONMENT, missing};
use prefixd_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use serde_json::Value;
use std::error::Error;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};

const PATIENCE: Duration = Duration::from_secs(60);

pub type Fault = Box<dyn Error + Send + Sync>;

/// What nodes have in their environment that their memory depends on: what is set where the bench runs, else what whoever
/// starts a node gives it.
pub fn environment() -> String {
    let value = |name: &str, value: &str| std::env::var(name).unwrap_or_else(|_| value.to_owned());
    let given = NODE_ENVIRONMENT.map(|(name, default)| format!("{name}={}", value(name, default)));
    let ours = |(name, value): (String, String)| {
        let is_known = NODE_ENVIRONMENT.iter().any(|(known, _)| *known == name);
        (name.starts_with("MIMALLOC_") && !is_known).then(|| format!("{name}={value}"))
    };
    given.into_iter().chain(std::env::vars().filter_map(ours)).collect::<Vec<_>>().join(" ")
}

/// The node, ended with the bench.
pub struct Served {
    child: Child,
    addrs: Value,
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself, which would have been noticed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    /// A node with its data in `dir`, and these flags, once it is ready. It logs warnings, unless a flag says otherwise.
    pub fn start(dir: &Path, flags: &[String]) -> Result<Self, Fault> {
        let is_quiet = !flags.iter().any(|flag| flag.starts_with("--log-level"));
        let addr_file = dir.join("addrs.json");
        let child = Command::new(env!("CARGO_BIN_EXE_prefixd"))
            .arg("serve")
            .args(["grpc", "http", "internal", "node"].map(|port| format!("--{port}-addr=127.0.0.1:0")))
            .arg(format!("--addr-file={}", addr_file.display()))
            .arg(format!("--data-dir={}", dir.join("data").display()))
            .args(is_quiet.then_some("--log-level=warn"))
            .args(flags)
            .envs(missing(|name| std::env::var_os(name).is_some()))
            .stdout(Stdio::null())
            .spawn()?;
        let mut served = Self { child, addrs: Value::Null };
        let began = Instant::now();
        while !served.url("http", "/readyz").is_ok_and(|ready| ureq::get(&ready).call().is_ok()) {
            if began.elapsed() > PATIENCE {
                return Err("the node was never ready".into());
            }
            std::thread::sleep(Duration::from_millis(20));
            let text = std::fs::read(&addr_file).ok();
            served.addrs = text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or(Value::Null);
        }
        Ok(served)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn addr(&self, port: &str) -> Result<&str, Fault> {
        Ok(self.addrs[port].as_str().ok_or_else(|| format!("no address of {port} in {}", self.addrs))?)
    }

    pub fn url(&self, port: &str, path: &str) -> Result<String, Fault> {
        Ok(format!("http://{}{path}", self.addr(port)?))
    }

    pub async fn client(&self) -> Result<InferenceCacheClient<Channel>, Fault> {
        let channel = Endpoint::from_shared(self.url("grpc", "")?)?.tcp_nodelay(true).connect().await?;
        Ok(InferenceCacheClient::new(channel))
    }

    /// A figure of the process in bytes, by its name in /proc: VmRSS, VmHWM.
    pub fn memory_bytes(&self, name: &str) -> Result<u64, Fault> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.ok_or_else(|| format!("no {name}: has it ended?"))?.trim().trim_end_matches(" kB").trim();
        Ok(kib.parse::<u64>()? * 1_024)
    }
}
