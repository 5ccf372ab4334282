//! What settings must be to each other, and what the unset ones become. Pure: it looks at values, never at the machine.

use super::Problem;
use super::knobs::Knobs;
use prefixd_raft::BootstrapMode;
use std::collections::BTreeSet;

/// Most members of a cluster.
const MAX_PEERS: usize = 15;

/// What the unset settings become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// How an empty disk becomes a member.
    pub bootstrap: BootstrapMode,
    /// This node's name.
    pub node_name: String,
}

/// Decides what is unset, or says what doesn't go together.
pub fn together(knobs: &Knobs, host_name: Option<&str>) -> Result<Decided, Vec<Problem>> {
    let mut problems = Vec::new();
    timing(knobs, &mut problems);
    gates(knobs, &mut problems);
    limits(knobs, &mut problems);
    addresses(knobs, &mut problems);
    certificates(knobs, &mut problems);
    tokens(knobs, &mut problems);
    exposure(knobs, &mut problems);
    let node_name = node_name(knobs, host_name, &mut problems);
    let bootstrap = bootstrap(knobs, &mut problems);
    match (node_name, bootstrap) {
        (Some(node_name), Some(bootstrap)) if problems.is_empty() => Ok(Decided { bootstrap, node_name }),
        _ => Err(problems),
    }
}

fn timing(knobs: &Knobs, problems: &mut Vec<Problem>) {
    if knobs.election_min < knobs.heartbeat * 2 {
        problems.push(Problem::plain("election_min", "must be at least twice --heartbeat"));
    }
    if knobs.election_max <= knobs.election_min {
        problems.push(Problem::plain("election_max", "must be longer than --election-min"));
    }
}

fn gates(knobs: &Knobs, problems: &mut Vec<Problem>) {
    if knobs.require_chain && !knobs.chain_matching {
        problems
            .push(Problem::plain("require_chain", "true contradicts --chain-matching=false: no lookup could match"));
    }
}

fn limits(knobs: &Knobs, problems: &mut Vec<Problem>) {
    if knobs.call_timeout < knobs.propose_timeout {
        let reason = "must not be shorter than --propose-timeout: an event may wait that long for its quorum";
        problems.push(Problem::plain("call_timeout", reason));
    }
}

fn addresses(knobs: &Knobs, problems: &mut Vec<Problem>) {
    let bound = [
        ("grpc_addr", knobs.grpc_addr),
        ("http_addr", knobs.http_addr),
        ("internal_addr", knobs.internal_addr),
        ("node_addr", knobs.node_addr),
    ];
    let mut seen = BTreeSet::new();
    for (key, addr) in bound.into_iter().filter(|(_, addr)| addr.port() != 0) {
        if !seen.insert(addr) {
            problems.push(Problem::plain(key, &format!("{addr} is taken by another of this node's ports")));
        }
    }
}

fn certificates(knobs: &Knobs, problems: &mut Vec<Problem>) {
    let mut wrong = |key: &str, reason: &str| problems.push(Problem::plain(key, reason));
    match (&knobs.tls_cert_file, &knobs.tls_key_file, &knobs.tls_client_ca_file) {
        (Some(_), None, _) => wrong("tls_cert_file", "needs --tls-key-file"),
        (None, Some(_), _) => wrong("tls_key_file", "needs --tls-cert-file"),
        (None, None, Some(_)) => wrong("tls_client_ca_file", "needs --tls-cert-file and --tls-key-file"),
        _ => {}
    }
    match (&knobs.internal_tls_cert_file, &knobs.internal_tls_key_file) {
        (Some(_), None) => wrong("internal_tls_cert_file", "needs --internal-tls-key-file"),
        (None, Some(_)) => wrong("internal_tls_key_file", "needs --internal-tls-cert-file"),
        _ => {}
    }
    let node = [
        ("node_tls_cert_file", &knobs.node_tls_cert_file),
        ("node_tls_key_file", &knobs.node_tls_key_file),
        ("node_tls_ca_file", &knobs.node_tls_ca_file),
    ];
    if node.iter().any(|(_, path)| path.is_some()) {
        for (key, _) in node.iter().filter(|(_, path)| path.is_none()) {
            wrong(key, "is missing: --node-tls-cert-file, --node-tls-key-file and --node-tls-ca-file go together");
        }
    }
}

fn tokens(knobs: &Knobs, problems: &mut Vec<Problem>) {
    let mut wrong = |key: &str, reason: &str| problems.push(Problem::plain(key, reason));
    let Some(url) = &knobs.token_review_url else {
        match (&knobs.policy_token_file, &knobs.controller_token_file) {
            (Some(_), None) => wrong("policy_token_file", "needs --controller-token-file, or --token-review-url"),
            (None, Some(_)) => wrong("controller_token_file", "needs --policy-token-file, or --token-review-url"),
            _ => {}
        }
        return;
    };
    if url.is_exposed() {
        wrong("token_review_url", "would send tokens in clear: use https, or http on a loopback address");
    }
    if url.secure && knobs.token_review_ca_file.is_none() {
        wrong("token_review_ca_file", "is needed for https");
    }
    if knobs.token_review_users.is_empty() {
        wrong("token_review_users", "must name who is let in: any pod can have a token made out to any audience");
    }
    if knobs.token_review_policy_audience == knobs.token_review_controller_audience {
        wrong("token_review_policy_audience", "must differ from --token-review-controller-audience");
    }
}

/// What must not be reached from elsewhere unless somebody said so.
fn exposure(knobs: &Knobs, problems: &mut Vec<Problem>) {
    if knobs.insecure_disable_auth {
        return;
    }
    let is_open = knobs.policy_token_file.is_none() && knobs.token_review_url.is_none();
    if is_open && !knobs.internal_addr.ip().is_loopback() {
        let reason = format!(
            "{} is not a loopback address and nobody is asked for a token there: give --policy-token-file and \
             --controller-token-file, or --token-review-url, or bind 127.0.0.1, or accept the risk with \
             --insecure-disable-auth",
            knobs.internal_addr
        );
        problems.push(Problem::plain("internal_addr", &reason));
    }
    if knobs.node_tls_ca_file.is_none() && !knobs.node_addr.ip().is_loopback() {
        let reason = format!(
            "{} is not a loopback address and whoever reaches it may write the log: give --node-tls-cert-file, \
             --node-tls-key-file and --node-tls-ca-file, or bind 127.0.0.1, or accept the risk with \
             --insecure-disable-auth",
            knobs.node_addr
        );
        problems.push(Problem::plain("node_addr", &reason));
    }
}

fn node_name(knobs: &Knobs, host_name: Option<&str>, problems: &mut Vec<Problem>) -> Option<String> {
    let names: BTreeSet<_> = knobs.peers.iter().map(|p| p.name.as_str()).collect();
    if names.len() < knobs.peers.len() {
        problems.push(Problem::plain("peers", "names a member twice"));
    }
    let addrs: BTreeSet<_> = knobs.peers.iter().map(|p| p.addr.as_str()).collect();
    if addrs.len() < knobs.peers.len() {
        problems.push(Problem::plain("peers", "has two members at one address"));
    }
    if knobs.peers.len() > MAX_PEERS {
        problems.push(Problem::plain("peers", &format!("names more than {MAX_PEERS} members")));
    }
    let name = match (&knobs.node_name, host_name) {
        (Some(name), _) => name.as_str(),
        (None, Some(host)) if !names.is_empty() => host,
        (None, _) => "prefixd",
    };
    if names.is_empty() || names.contains(name) {
        return Some(name.to_owned());
    }
    let listed = names.into_iter().collect::<Vec<_>>().join(", ");
    problems.push(Problem::plain("node_name", &format!("{name:?} is not one of --peers ({listed})")));
    None
}

fn bootstrap(knobs: &Knobs, problems: &mut Vec<Problem>) -> Option<BootstrapMode> {
    let alone = knobs.peers.is_empty();
    let problem = match knobs.bootstrap {
        Some(BootstrapMode::Solo) if knobs.peers.len() > 1 => "solo contradicts --peers with more than one member",
        Some(BootstrapMode::Peers) if alone => "peers needs --peers",
        Some(BootstrapMode::Never) if alone => "never needs --peers: whom should this node ask to join?",
        Some(mode) => return Some(mode),
        None if !alone => return Some(BootstrapMode::Peers),
        None if knobs.node_addr.ip().is_loopback() => return Some(BootstrapMode::Solo),
        None => {
            "must be said when --node-addr is not loopback and there are no --peers: \
             solo founds a cluster of one"
        }
    };
    problems.push(Problem::plain("bootstrap", problem));
    None
}
