//! `prefixd dev`: a real cluster on this machine, each node a child process of this same executable with a disk and
//! ports of its own. It starts, shows and ends them; it must never restart one by itself, so that a node that is killed
//! stays dead until somebody says otherwise. What the nodes get is in `plan`, a child's life in `child`.

mod child;
mod plan;
mod ready;

use super::print;
use child::{Child, Orders};
use plan::Node;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long somebody who listens on loopback may take to accept.
const LOOK_TIMEOUT: Duration = Duration::from_millis(200);

/// The environment variable by which a child learns whose child it is.
const PARENT_VARIABLE: &str = "PREFIXD_EXIT_WITH_PARENT";

const LONG_ABOUT: &str = "\
Runs a real cluster on this machine: each node is a process of its own with its own disk, on loopback.

Node i is called n<i>, keeps its data in DIR/n<i> and listens on base+10*i (gRPC), +1 (HTTP: /readyz, /metrics), \
+2 (internal HTTP) and +3 (node port). Started again on the same DIR it is the same cluster.

Nothing is restarted: kill a node to see the others go on. Ctrl-C or SIGTERM ends all nodes, the orderly way first; a \
second one kills them. Flags after -- are passed to each node's `prefixd serve`.";

/// Run a local cluster of real processes
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT)]
pub struct Args {
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: u16,
    /// The first node's gRPC port
    #[arg(long, value_name = "PORT", default_value_t = 19000, value_parser = clap::value_parser!(u16).range(1..))]
    base_port: u16,
    /// Where the nodes keep their data
    #[arg(long, value_name = "DIR", default_value = "./prefixd-dev")]
    data_dir: PathBuf,
    /// How long a node may take to end in an orderly way
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    stop_timeout_secs: u64,
    /// Flags for every node's `prefixd serve`
    #[arg(last = true, value_name = "SERVE FLAGS")]
    serve_flags: Vec<String>,
}

/// Runs the subcommand until a signal: 0 when all nodes then ended by themselves, 1 when one had to be killed or all had
/// ended before, 2 when it could not start.
pub async fn run(args: Args) -> ExitCode {
    match std::env::current_exe() {
        Ok(executable) => run_with(&executable, args, signals()).await,
        Err(error) => {
            eprintln!("prefixd dev: can't find the executable to run: {error}");
            ExitCode::from(2)
        }
    }
}

/// To be called at the start of `prefixd serve`: when the process is a node of `prefixd dev`, asks the kernel to end it
/// with its parent, so that a `dev` that is killed outright leaves no orphans. The kernel watches the *thread* that
/// forked, which is the main thread of `dev`. Does nothing elsewhere.
pub fn exit_with_parent() {
    let Some(parent) = std::env::var(PARENT_VARIABLE).ok().and_then(|pid| pid.parse::<i32>().ok()) else { return };
    #[cfg(target_os = "linux")]
    {
        use rustix::process;
        if let Err(error) = process::set_parent_process_death_signal(Some(process::Signal::TERM)) {
            eprintln!("this node will not notice when `prefixd dev` is killed: {error}");
        }
        // The parent may have died before the kernel was asked.
        if process::getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(parent) {
            std::process::exit(0);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = parent;
}

/// What the children's tasks tell.
enum Event {
    Ready { node: usize },
    Ended { node: usize, how: child::End },
}

/// Each signal that ends the cluster, as it comes.
fn signals() -> mpsc::Receiver<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let (sender, receiver) = mpsc::channel(4);
    for (kind, name) in
        [(SignalKind::interrupt(), "SIGINT"), (SignalKind::terminate(), "SIGTERM"), (SignalKind::hangup(), "SIGHUP")]
    {
        match signal(kind) {
            Ok(mut stream) => {
                let sender = sender.clone();
                tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(name).await.is_ok() {} });
            }
            Err(error) => eprintln!("prefixd dev: {name} won't be noticed: {error}"),
        }
    }
    receiver
}

async fn run_with(executable: &Path, args: Args, signals: mpsc::Receiver<&'static str>) -> ExitCode {
    let nodes = match plan::nodes(args.nodes, args.base_port, &args.data_dir, &args.serve_flags) {
        Ok(nodes) => nodes,
        Err(error) => {
            eprintln!("prefixd dev: {error}");
            return ExitCode::from(2);
        }
    };
    // Whoever listens there would pass for a node that is ready.
    if let Some((node, taken)) = nodes.iter().find_map(|node| Some((node, taken(node)?))) {
        eprintln!("prefixd dev: {taken} of {} is taken by another process: choose another --base-port", node.name);
        return ExitCode::from(2);
    }
    if let Err(error) = std::fs::create_dir_all(&args.data_dir) {
        eprintln!("prefixd dev: can't make {}: {error}", args.data_dir.display());
        return ExitCode::from(2);
    }
    print::text(&plan::table(&nodes));
    let orders = Orders::new(Duration::from_secs(args.stop_timeout_secs));
    let (sender, events) = mpsc::channel(nodes.len() * 2);
    for (index, node) in nodes.iter().enumerate() {
        // From this thread, the main one: see `exit_with_parent`.
        match Child::start(executable, node) {
            Ok(child) => watch(index, node, child, &orders, &sender),
            Err(error) => {
                eprintln!("prefixd dev: can't run {}: {error}", executable.display());
                orders.kill();
                return ExitCode::from(2);
            }
        }
    }
    drop(sender);
    supervise(&nodes, events, signals, &orders).await
}

/// An address of this node at which somebody listens already.
fn taken(node: &Node) -> Option<SocketAddr> {
    let all = [node.grpc, node.http, node.internal, node.node];
    all.into_iter().find(|addr| TcpStream::connect_timeout(addr, LOOK_TIMEOUT).is_ok())
}

/// Waits in the background for a node to be ready and for it to end.
fn watch(index: usize, node: &Node, child: Child, orders: &Orders, sender: &mpsc::Sender<Event>) {
    let (on_ready, on_end) = (sender.clone(), sender.clone());
    let ready = ready::wait(node.http);
    let polling = tokio::spawn(async move {
        ready.await;
        // Nobody listens only when everything is over.
        let _ = on_ready.send(Event::Ready { node: index }).await;
    });
    let orders = orders.clone();
    tokio::spawn(async move {
        let how = child.live(&orders).await;
        polling.abort();
        let _ = on_end.send(Event::Ended { node: index, how }).await;
    });
}

async fn supervise(
    nodes: &[Node],
    mut events: mpsc::Receiver<Event>,
    mut signals: mpsc::Receiver<&'static str>,
    orders: &Orders,
) -> ExitCode {
    let started = Instant::now();
    let (mut ready, mut alive, mut is_stopping, mut is_clean) = (0, nodes.len(), false, true);
    while alive > 0 {
        tokio::select! {
            Some(event) = events.recv() => match event {
                Event::Ready { node } => {
                    ready += 1;
                    print::line(&format!("{} is ready after {:.1} s", nodes[node].name, started.elapsed().as_secs_f64()));
                    if ready == nodes.len() {
                        print::line(&plan::hint(nodes));
                    }
                }
                Event::Ended { node, how } => {
                    alive -= 1;
                    is_clean &= is_stopping && how.is_clean();
                    let rest = if is_stopping { String::new() } else { format!("; {alive} left, nothing is restarted") };
                    print::line(&format!("{} {how}{rest}", nodes[node].name));
                }
            },
            Some(signal) = signals.recv() => {
                if is_stopping {
                    print::line(&format!("{signal} again: killing what is left"));
                    orders.kill();
                } else {
                    print::line(&format!("{signal}: ending {alive} nodes"));
                    is_stopping = true;
                    orders.stop();
                }
            }
        }
    }
    if is_stopping && is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests;
