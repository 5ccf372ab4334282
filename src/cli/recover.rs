//! `prefixd recover`: makes a cluster of one, with a new id, of this node's disk, for a quorum that is lost for good. It
//! says what it sees, and changes nothing before it was told to twice: by name, and by --yes.

use super::print;
use crate::watched::Source;
use clap::Parser;
use prefixd_raft::membership::Outlook;
use prefixd_raft::recover::{Holdings, Survey};
use prefixd_raft::tls::ClientTls;
use prefixd_raft::{Peer, StartError};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const LONG_ABOUT: &str = "\
Makes a cluster of one node, with a new cluster id, of the disk in --data-dir, for the day when most disks of a cluster \
are lost for good. The node must not run.

Without --yes it only says what the disk holds and what would be given up. Of several disks that are left recover the one \
with the highest term, then the highest last index; empty the others and start them with --bootstrap=never: they join. A \
disk of the old cluster that isn't emptied is refused by the recovered one.";

/// Make a cluster of one of this disk, after a quorum was lost for good
#[derive(Debug, Parser)]
#[command(long_about = LONG_ABOUT)]
pub struct Args {
    /// The data directory of a node that does not run
    #[arg(long, value_name = "DIR", env = "PREFIXD_DATA_DIR")]
    data_dir: PathBuf,
    /// Where to ask for the other members, as name=host:port,…; default: at the addresses that they announced
    #[arg(long, value_name = "NAME=HOST:PORT,…", env = "PREFIXD_PEERS", value_delimiter = ',')]
    peers: Vec<String>,
    /// Certificate of this node, in PEM, to ask members whose node ports speak mutual TLS: as `prefixd serve` has it
    #[arg(long, value_name = "FILE", env = "PREFIXD_NODE_TLS_CERT_FILE", requires_all = ["node_tls_key_file", "node_tls_ca_file"])]
    node_tls_cert_file: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", env = "PREFIXD_NODE_TLS_KEY_FILE", requires = "node_tls_cert_file")]
    node_tls_key_file: Option<PathBuf>,
    /// The CA of all nodes
    #[arg(long, value_name = "FILE", env = "PREFIXD_NODE_TLS_CA_FILE", requires = "node_tls_cert_file")]
    node_tls_ca_file: Option<PathBuf>,
    /// Do it
    #[arg(long)]
    yes: bool,
    /// Do it although a quorum of the cluster answers: what comes of that is a second cluster beside the first
    #[arg(long, requires = "yes")]
    beside_a_living_cluster: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// What to ask with, if members speak TLS.
    fn tls(&self) -> Result<Option<ClientTls>, String> {
        let files = (&self.node_tls_cert_file, &self.node_tls_key_file, &self.node_tls_ca_file);
        let (Some(cert), Some(key), Some(ca)) = files else { return Ok(None) };
        let source = |flag, path: &PathBuf| Source { flag, path: path.clone() };
        let (cert, key) = (source("node-tls-cert-file", cert), source("node-tls-key-file", key));
        let config = crate::tls::dialling(&source("node-tls-ca-file", ca), Some((&cert, &key)))?;
        Ok(Some(Arc::new(move || config.clone())))
    }
}

/// Runs the subcommand: 0 when the disk was recovered, 1 when it was not, 2 for a wrong use.
pub async fn run(args: Args) -> ExitCode {
    let (peers, tls) = match peers(&args.peers).and_then(|peers| Ok((peers, args.tls()?))) {
        Ok(both) => both,
        Err(error) => {
            eprintln!("prefixd recover: {error}");
            return ExitCode::from(2);
        }
    };
    match recover(&args, &peers, tls).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("prefixd recover: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn recover(args: &Args, peers: &[Peer], tls: Option<ClientTls>) -> Result<bool, String> {
    let data_dir = args.data_dir.clone();
    let survey = blocking(move || Survey::open(&data_dir)).await?;
    let held = survey.holdings();
    if !args.json {
        print::line(&describe(&held));
    }
    let outlook = survey.outlook(&survey.ask(peers, tls).await);
    let (why, may) = match outlook {
        Outlook::Refuse(why) => return Err(why),
        Outlook::Healthy(why) if !args.beside_a_living_cluster => return Err(why),
        Outlook::Healthy(why) => (why, true),
        Outlook::Lost(why) => (why, args.yes),
    };
    if !args.json {
        print::line(&format!("{why}."));
    }
    if !may {
        return Err("nothing was changed; run this again with --yes to recover this disk".into());
    }
    let cluster_id = rand::random_range(1..=u128::MAX);
    let done = blocking(move || survey.recover(cluster_id)).await?;
    if args.json {
        let value = json!({
            "node_name": held.node_name, "node_id": held.node_id, "index": done.index, "entries": done.entries,
            "old_cluster_id": held.cluster_id.map(|id| format!("{id:032x}")),
            "cluster_id": format!("{:032x}", done.cluster_id), "digest": format!("{:032x}", done.digest),
        });
        print::line(&format!("{value:#}"));
        return Ok(true);
    }
    let (name, dir) = (&held.node_name, args.data_dir.display());
    print::line(&format!(
        "\nrecovered: cluster {:032x} of {name} alone, {} entries, digest {:032x}\n\
         next: prefixd serve --node-name={name} --data-dir={dir} --bootstrap=never --peers=…\n\
         then, for each other node, with an EMPTY data directory: prefixd serve --bootstrap=never --peers=… (it joins; where \
         {name}'s --peers lacks it, also: prefixd ctl member add NAME HOST:PORT)",
        done.cluster_id, done.entries, done.digest
    ));
    Ok(true)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?;
    done.map_err(|error| error.to_string())
}

fn describe(held: &Holdings) -> String {
    let cluster = held.cluster_id.map_or_else(|| "none".into(), |id| format!("{id:032x}"));
    let last = held.last.map_or_else(|| "none".into(), |(term, index)| format!("term {term}, index {index}"));
    let members: Vec<String> = held
        .members
        .iter()
        .map(|m| format!("{}={:016x}{}", m.name, m.node_id, if m.voter { "" } else { " (learner)" }))
        .collect();
    format!(
        "node      {} (disk {:016x})\ncluster   {cluster}\nmembers   {}\nlast log  {last}; known to be committed up to {}\n\
         index     {} entries, digest {:032x}\n",
        held.node_name,
        held.node_id,
        members.join(", "),
        held.committed,
        held.entries,
        held.digest
    )
}

fn peers(texts: &[String]) -> Result<Vec<Peer>, String> {
    texts
        .iter()
        .filter(|text| !text.trim().is_empty())
        .map(|text| match text.trim().split_once('=') {
            Some((name, addr)) if !name.is_empty() && addr.contains(':') => {
                Ok(Peer { name: name.to_owned(), addr: addr.to_owned() })
            }
            _ => Err(format!("--peers: {text:?} is not name=host:port")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_names_and_addresses() {
        let texts = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let found = peers(&texts("n0=a:1, n1=b:2")).unwrap();
        assert_eq!(found[1], Peer { name: "n1".into(), addr: "b:2".into() });
        assert_eq!(peers(&texts("")), Ok(Vec::new()));
        for bad in ["n0", "=a:1", "n0=a"] {
            assert!(peers(&texts(bad)).unwrap_err().contains("is not name=host:port"), "{bad}");
        }
    }

    #[test]
    fn a_certificate_comes_with_its_key_and_the_ca() {
        let parsed = |flags: &str| {
            let flags = flags.split_whitespace();
            Args::try_parse_from(["recover", "--data-dir=d"].into_iter().chain(flags))
        };
        for part in ["--node-tls-cert-file=c --node-tls-key-file=k", "--node-tls-ca-file=a", "--node-tls-key-file=k"] {
            assert!(parsed(part).is_err(), "{part}");
        }
        let args = parsed("--node-tls-cert-file=c --node-tls-key-file=k --node-tls-ca-file=/nowhere/ca").unwrap();
        assert!(args.tls().err().unwrap().contains("/nowhere/ca"));
        assert!(parsed("").unwrap().tls().unwrap().is_none());
    }

    #[test]
    fn a_living_cluster_takes_two_flags() {
        let parsed = |flags: &[&str]| Args::try_parse_from([&["recover", "--data-dir=d"], flags].concat());
        assert!(parsed(&["--beside-a-living-cluster"]).is_err());
        let args = parsed(&["--beside-a-living-cluster", "--yes", "--peers=a=b:1,c=d:2"]).unwrap();
        assert!(args.yes && args.peers.len() == 2);
    }

    #[test]
    fn what_a_disk_holds_is_told_in_full() {
        let held = Holdings {
            node_name: "n0".into(),
            node_id: 7,
            cluster_id: Some(5),
            members: Vec::new(),
            last: Some((3, 99)),
            committed: 98,
            entries: 12,
            digest: 1,
        };
        let text = describe(&held);
        for part in ["n0 (disk 0000000000000007)", "term 3, index 99; known to be committed up to 98", "12 entries"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
