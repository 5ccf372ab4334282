//! One node from its first check to its last flush: the order in which its parts start and stop. It knows every part
//! and does the work of none.

use crate::cli::print;
use crate::config::{Config, ServeArgs};
use crate::grpc;
use crate::http::listen::HttpLimits;
use crate::http::{self, Loaded};
use crate::metrics::{self, Metrics};
use crate::ports::{Bound, Ports};
use crate::security::Security;
use crate::telemetry::Telemetry;
use crate::threads::PortThread;
use crate::tls::Port;
use crate::vitals::Vitals;
use prefixd_raft::tls::{PortTls, Room};
use prefixd_raft::{Node, NodeConfig};
use rustix::fs::{Access, access};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long calls under way may take to end once the node has stopped, and traces to be sent after them.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// What the shell says of a process that a signal ended.
const EXIT_SECOND_SIGNAL: i32 = 130;

type Fault = Box<dyn Error + Send + Sync>;

/// `prefixd serve`: 0 after an orderly stop, 1 after a failure, 2 for a configuration that is none.
pub async fn run(args: ServeArgs) -> ExitCode {
    let args = args.with_environment(|name| std::env::var(name).ok());
    let check = args.check;
    let config = match Config::resolve(&args, host_name().as_deref()) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let security = match Security::open(&config) {
        Ok(security) => security,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    if let Err(error) = places(&config) {
        eprintln!("{error}");
        return ExitCode::from(2);
    }
    if check {
        crate::cli::print::text(&config.to_toml());
        return ExitCode::SUCCESS;
    }
    let knobs = &config.knobs;
    let endpoint = knobs.otlp_endpoint.as_deref();
    let telemetry = match Telemetry::start(knobs.log_format, &knobs.log_level, endpoint, &config.node_name) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let code = match serve(&config, security).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "prefixd ends");
            ExitCode::FAILURE
        }
    };
    let sent = tokio::task::spawn_blocking(move || telemetry.stop());
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, sent).await;
    code
}

async fn serve(config: &Config, security: Security) -> Result<(), Fault> {
    security.warn(config);
    let mut signals = Signals::new()?;
    let ports = Ports::bind(config)?;
    let bound = ports.bound;
    if let Some(path) = &config.knobs.addr_file {
        bound.write_to(path)?;
    }
    announce(config, &bound);
    let mut running = tokio::select! {
        started = Running::start_with(config, ports, security) => started?,
        () = signals.first() => return Ok(()),
    };
    let node = running.node.clone();
    let ended = tokio::select! {
        () = signals.first() => Ok(()),
        message = node.failed() => Err(message.into()),
        fault = running.a_server_ended() => Err(fault),
    };
    if ended.is_ok() {
        tracing::info!("stopping");
        tokio::spawn(signals.exit_at_the_next());
    }
    let stopped = running.stop(config.knobs.stop_timeout).await;
    ended.and(stopped)
}

/// A node and the servers around it. Also what tests start, without signals.
pub struct Running {
    /// The node.
    pub node: Node,
    servers: JoinSet<Result<(), Fault>>,
    stopping: CancellationToken,
    closing: CancellationToken,
    /// What both HTTP ports are served on.
    _http: PortThread,
}

impl Running {
    /// Starts everything on ports that are already bound. Liveness is answered from the first moment, lookups as soon
    /// as the state is loaded, whether the node is ready or not.
    pub async fn start(config: &Config, ports: Ports) -> Result<Self, Fault> {
        Self::start_with(config, ports, Security::open(config)?).await
    }

    /// The same with certificates and tokens that were read already.
    pub async fn start_with(config: &Config, ports: Ports, security: Security) -> Result<Self, Fault> {
        let security = Arc::new(security);
        let stopping = CancellationToken::new();
        let closing = CancellationToken::new();
        security.watch(closing.clone());
        let metrics = Arc::new(Metrics::default());
        let loaded = Arc::new(OnceLock::new());
        let mut servers = JoinSet::new();
        let http_thread = PortThread::start("http")?;
        let public = http::public(loaded.clone());
        let (limits, internal_limits) = (config.http_limits(), config.http_limits());
        let _ = metrics.load.http.set([("http", limits.room.clone()), ("internal", internal_limits.room.clone())]);
        servers.spawn_on(serve_http(ports.http, None, public, limits, closing.clone()), http_thread.handle());
        let controlled = Arc::new(OnceLock::new());
        let gate = security.gate.clone();
        let timeout = internal_limits.timeout;
        let internal = http::internal::routes(controlled.clone(), metrics.clone(), gate, timeout);
        let tls = security.internal.as_ref().map(Port::accepting);
        let internal = serve_http(ports.internal, tls, internal, internal_limits, closing.clone());
        servers.spawn_on(internal, http_thread.handle());
        let tls = security.node.as_ref().and_then(Port::for_node);
        let node = Node::start(NodeConfig { tls, ..config.node() }, ports.node).await?;
        let vitals = Vitals::new(&node, stopping.clone());
        let registry = metrics::registry(metrics.clone(), node.clone(), security.clone());
        // Nobody else sets these.
        let _ = loaded.set(Loaded { vitals: vitals.clone(), registry });
        let _ = controlled.set(node.clone());
        tokio::spawn(vitals.clone().run(node.clone()));
        if let Some(file) = config.policy_file.clone() {
            let (node, metrics, stopping) = (node.clone(), metrics.clone(), stopping.clone());
            tokio::spawn(async move { file.run(node, &metrics.policies, stopping).await });
        }
        let room = Room::new(usize::try_from(config.knobs.max_grpc_connections).unwrap_or(usize::MAX));
        let _ = metrics.load.connections.set(room.clone());
        let edge = grpc::Edge::new(config, node.clone(), vitals, metrics, security.tenants.clone(), stopping.clone());
        let (tls, grpc_closing) = (security.grpc.as_ref().map(Port::accepting), closing.clone());
        servers.spawn(async move { Ok(grpc::serve(edge, ports.grpc, tls, room, grpc_closing).await?) });
        Ok(Self { node, servers, stopping, closing, _http: http_thread })
    }

    /// Resolves when a server ended, which none should.
    async fn a_server_ended(&mut self) -> Fault {
        match self.servers.join_next().await {
            Some(Ok(Err(fault))) => fault,
            Some(Err(panicked)) => panicked.into(),
            Some(Ok(Ok(()))) | None => "a server ended".into(),
        }
    }

    /// Stops in order: unready and no more ingest, then the node, then the servers. Lookups are answered to the end.
    pub async fn stop(mut self, timeout: Duration) -> Result<(), Fault> {
        self.stopping.cancel();
        let stopped = tokio::time::timeout(timeout, self.node.stop_within(timeout)).await;
        self.closing.cancel();
        let close = async { while self.servers.join_next().await.is_some() {} };
        if tokio::time::timeout(CLOSE_TIMEOUT, close).await.is_err() {
            tracing::info!("closing connections that clients keep open");
            self.servers.abort_all();
        }
        stopped.map_err(|_| format!("the node did not stop within --stop-timeout ({timeout:?})"))?;
        Ok(())
    }
}

async fn serve_http(
    listener: std::net::TcpListener,
    tls: Option<PortTls>,
    routes: axum::Router,
    limits: HttpLimits,
    closing: CancellationToken,
) -> Result<(), Fault> {
    Ok(http::listen::serve(listener, tls, routes, limits, closing).await?)
}

/// SIGTERM and Ctrl-C.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn first(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    async fn exit_at_the_next(mut self) {
        self.first().await;
        eprintln!("second signal: ending at once");
        std::process::exit(EXIT_SECOND_SIGNAL);
    }
}

/// Whether this node could write where it is to; as far as a look tells, since nothing is made.
fn places(config: &Config) -> Result<(), String> {
    let data_dir = &config.knobs.data_dir;
    let existing = data_dir.ancestors().find(|path| path.as_os_str().is_empty() || path.exists());
    let addr_file = config.knobs.addr_file.as_deref().and_then(Path::parent);
    let places = [("--data-dir", existing), ("--addr-file", addr_file)];
    for (flag, place) in places.into_iter().filter_map(|(flag, place)| Some((flag, place?))) {
        let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
        if !place.is_dir() {
            return Err(format!("{flag}: {} is no directory", place.display()));
        }
        access(place, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| format!("{flag}: {}: {e}", place.display()))?;
    }
    Ok(())
}

fn host_name() -> Option<String> {
    let said = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok())?;
    Some(said.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Says what listens where: to people on standard output, or as a line of the log where logs are for machines.
fn announce(config: &Config, bound: &Bound) {
    let (node, data) = (&config.node_name, config.knobs.data_dir.display());
    let Bound { grpc, http, internal, node: node_port } = bound;
    let version = env!("CARGO_PKG_VERSION");
    if config.knobs.log_format == "json" {
        tracing::info!(version, node, %data, %grpc, %http, %internal, %node_port, "listening");
        return;
    }
    print::line(&format!(
        "prefixd {version}, node {node:?}, data in {data}\n\
         \x20 gRPC      {grpc:<21}  gateways and producers: InferenceCache, health, reflection\n\
         \x20 HTTP      {http:<21}  /healthz /readyz /metrics\n\
         \x20 internal  {internal:<21}  the controller: /snapshot /policy /probe\n\
         \x20 node      {node_port:<21}  other nodes, and operators: prefixd ctl --admin {node_port} status"
    ));
}
