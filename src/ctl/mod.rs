//! `prefixd ctl`: asks one node over its node port and shows the answer to people, or as JSON to programs. It changes
//! nothing but through the node's admin service, and it never opens a data directory.

mod backup;
mod member;
mod policy;
mod show;

use crate::cli::print;
use crate::cli::target::source;
use crate::config::parse;
use backup::Backup;
use clap::Subcommand;
use member::Member;
use policy::Policy;
use prefixd_proto::admin::admin_client::AdminClient;
use prefixd_proto::admin::{DigestRequest, StatusRequest, StatusResponse, SweepRequest};
use prefixd_proto::failure::{Failure, Port};
use prefixd_raft::tls::{self, ClientTls};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tonic::Request;
use tonic::transport::{Channel, Endpoint};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Flags of `prefixd ctl`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A node port.
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9091",
        env = "PREFIXD_ADMIN",
        value_parser = parse::host_port,
        global = true
    )]
    admin: String,
    /// The CA of the node port, in PEM; dials with TLS.
    #[arg(long, value_name = "FILE", env = "PREFIXD_CTL_TLS_CA", global = true)]
    tls_ca: Option<PathBuf>,
    /// This operator's certificate, in PEM, of the same CA.
    #[arg(long, value_name = "FILE", env = "PREFIXD_CTL_TLS_CERT", global = true)]
    tls_cert: Option<PathBuf>,
    /// Its private key.
    #[arg(long, value_name = "FILE", env = "PREFIXD_CTL_TLS_KEY", global = true)]
    tls_key: Option<PathBuf>,
    /// The name that the node's certificate must have; default: the host in --admin.
    #[arg(long, value_name = "NAME", env = "PREFIXD_CTL_TLS_SERVER_NAME", global = true)]
    tls_server_name: Option<String>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    /// Give up after this many seconds; a backup, after this many without a word from the node.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3_600),
        global = true
    )]
    timeout: u64,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The node, the cluster and its members; exit code 0 only if the node is ready and knows a leader.
    Status,
    /// The digest of the state: equal on all nodes at an equal index.
    Digest {
        /// At this log index; default: the last one applied.
        #[arg(long, value_name = "INDEX")]
        at: Option<u64>,
    },
    /// Remove what has expired, now.
    Sweep,
    /// Bring the state of the node, whole and at one log position, into a file.
    Backup(Backup),
    /// Policies and quotas of tenants.
    #[command(subcommand)]
    Policy(Policy),
    /// The members of the cluster, and who becomes or stays one.
    #[command(subcommand)]
    Member(Member),
    /// Hand leadership over to another voter.
    TransferLeader {
        /// A name, or the id of a disk as `member list` shows it; default: the voter that has most of the log.
        #[arg(long, value_name = "NAME", value_parser = parse::member_name)]
        to: Option<String>,
    },
}

impl What {
    /// True for what may be done although no answer says so.
    fn changes_something(&self) -> bool {
        match self {
            Self::Status | Self::Digest { .. } | Self::Backup(_) => false,
            Self::Policy(what) => matches!(what, Policy::Set { .. }),
            Self::Member(what) => !matches!(what, Member::List),
            Self::Sweep | Self::TransferLeader { .. } => true,
        }
    }
}

/// Why there is no answer, for people.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The command line makes no sense, or names a file that is no good to dial with.
    #[error("{0}")]
    Usage(String),
    /// It was refused, or not done.
    #[error("{0}")]
    Failed(String),
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

/// Runs one question to its answer: 0 for one that says that all is well, 1 for any other and for none, 2 for a wrong use.
pub async fn run(args: Args) -> ExitCode {
    let fault = match ask(&args).await {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => return ExitCode::FAILURE,
        Err(fault) => fault,
    };
    eprintln!("prefixd ctl: {fault}");
    match fault {
        Fault::Usage(_) => ExitCode::from(2),
        Fault::Failed(_) => ExitCode::FAILURE,
    }
}

/// Asks, and shows the answer; false when that says that not all is well.
///
/// # Errors
/// No answer, or a refusal, for people.
pub(crate) async fn ask(args: &Args) -> Result<bool, Fault> {
    if let What::Policy(Policy::Validate { file }) = &args.what {
        return Ok(policy::validate(file, args.json)?);
    }
    if let What::Backup(backup) = &args.what {
        backup.check()?;
    }
    let tls = client_tls(args).map_err(Fault::Usage)?;
    let mut node = connect(args, tls).await?;
    let failed = |status: tonic::Status| Fault::Failed(failure(args, &status));
    match &args.what {
        What::Status => {
            let status = node.status(StatusRequest {}).await.map_err(failed)?.into_inner();
            let text = if args.json { show::status_json(&status) } else { show::status(&status) };
            print::line(&text);
            Ok(is_healthy(&status))
        }
        What::Digest { at } => {
            let digest = node.digest(DigestRequest { index: *at }).await.map_err(failed)?.into_inner();
            print::line(&show::digest(&digest, args.json));
            Ok(true)
        }
        What::Sweep => {
            let swept = node.sweep(within(args.patience(), SweepRequest {})).await.map_err(failed)?.into_inner();
            print::line(&show::sweep(&swept, args.json));
            Ok(true)
        }
        What::Member(what) => member::run(node, what, args.patience(), args.json).await.map_err(failed),
        What::TransferLeader { to } => {
            member::transfer(node, to.as_deref(), args.patience(), args.json).await.map_err(failed)
        }
        What::Backup(backup) => Ok(backup::take(args, backup, node).await?),
        What::Policy(Policy::Get) => policy::get(node, args.json).await?.map_err(failed),
        What::Policy(Policy::Set { file }) => {
            policy::set(node, file, args.patience(), args.json).await?.map_err(failed)
        }
        What::Policy(Policy::Validate { file }) => Ok(policy::validate(file, args.json)?),
    }
}

impl Args {
    /// How long the answer may take.
    fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// An order whose node knows when the caller will have given up.
fn within<T>(patience: Duration, order: T) -> Request<T> {
    let mut request = Request::new(order);
    request.set_timeout(patience);
    request
}

async fn connect(args: &Args, tls: Option<Arc<rustls::ClientConfig>>) -> Result<AdminClient<Channel>, String> {
    let endpoint = Endpoint::from_shared(format!("http://{}", args.admin))
        .map_err(|_| format!("--admin {:?} is not host:port", args.admin))?
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(args.patience());
    let channel = match tls {
        Some(config) => {
            let newest: ClientTls = Arc::new(move || config.clone());
            let connector = tls::connector(args.admin.clone(), args.tls_server_name.clone(), newest);
            endpoint.connect_with_connector(connector).await
        }
        None => endpoint.connect().await,
    };
    let channel = channel
        .map_err(|error| format!("--admin {} {}", args.admin, Failure::of_connecting(&error).told(Port::Node)))?;
    Ok(AdminClient::new(channel))
}

/// What a failed call is told as. A broken connection is how a port that wants certificates treats those who have none.
fn failure(args: &Args, status: &tonic::Status) -> String {
    let failure = Failure::of(status);
    let told = format!("{} {}", args.admin, failure.told(Port::Node));
    match failure {
        Failure::Broken(_) if args.tls_cert.is_none() => {
            format!("{told} A node port with TLS wants --tls-ca, --tls-cert and --tls-key")
        }
        Failure::Deadline if args.what.changes_something() => {
            format!("{told} (--timeout {}): what was asked for may be done all the same", args.timeout)
        }
        Failure::Deadline => format!("{told} (--timeout {})", args.timeout),
        _ => told,
    }
}

/// What to dial with, if TLS is asked for.
fn client_tls(args: &Args) -> Result<Option<Arc<rustls::ClientConfig>>, String> {
    let own = match (source("tls-cert", args.tls_cert.as_ref()), source("tls-key", args.tls_key.as_ref())) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err("--tls-cert and --tls-key go together".into()),
    };
    match source("tls-ca", args.tls_ca.as_ref()) {
        Some(ca) => crate::tls::dialling(&ca, own.as_ref().map(|(cert, key)| (cert, key))).map(Some),
        None if own.is_some() || args.tls_server_name.is_some() => Err("TLS needs --tls-ca".into()),
        None => Ok(None),
    }
}

/// Ready, and a leader is known.
fn is_healthy(status: &StatusResponse) -> bool {
    status.ready && status.leader.is_some()
}
