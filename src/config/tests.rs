use super::*;
use crate::config::layers::Said;
use clap::{Args, FromArgMatches};
use std::collections::BTreeMap;

fn args(line: &str) -> Result<ServeArgs, clap::Error> {
    let words = std::iter::once("serve").chain(line.split_whitespace());
    let matches = ServeArgs::augment_args(clap::Command::new("serve")).try_get_matches_from(words)?;
    ServeArgs::from_arg_matches(&matches)
}

fn resolve(line: &str) -> Result<Config, ConfigError> {
    Config::resolve(&args(line).unwrap(), Some("host"))
}

fn refused(line: &str) -> String {
    resolve(line).unwrap_err().to_string()
}

fn with_file(line: &str, content: &str) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("prefixd.toml");
    std::fs::write(&path, content).unwrap();
    Config::resolve(&ServeArgs { config: Some(path), ..args(line).unwrap() }, None)
}

#[test]
fn the_defaults_are_valid_and_those_of_the_contract() {
    let config = resolve("").unwrap();
    let k = &config.knobs;
    assert_eq!(k.default_ttl.as_secs(), 1_800);
    assert_eq!((k.sweep_interval.as_secs(), k.max_index_entries), (60, 1_000_000));
    assert_eq!((k.pressure_weight, k.slo_tight_ttft_ms, k.slo_tight_bias), (1.0, 200, 1.0));
    assert_eq!((k.tenant_hot_min_hit_rate, k.tenant_hot_max_age.as_secs()), (0.1, 300));
    assert_eq!((k.minimum_matched_tokens, k.routing_floor_score, k.minimum_prefix_tokens), (64, 0.1, 0));
    assert_eq!((k.affinity_routing, k.chain_matching, k.require_chain, k.tenant_hot), (true, true, false, true));
    assert_eq!((k.engine_block_size, k.max_token_ids, k.max_message_bytes), (16, 1_048_576, 8 << 20));
    assert_eq!((config.bootstrap, config.node_name.as_str()), (BootstrapMode::Solo, "prefixd"));
    assert_eq!(config.node().meta, prefixd_index::command::ClusterMeta::default());
    assert_eq!(config.rank(), prefixd_index::RankConfig::default());
}

#[test]
fn flags_beat_environment_beats_file_beats_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("prefixd.toml");
    std::fs::write(&path, "default_ttl = \"1m\"\nheartbeat = \"100ms\"\nmax_lag = 7\ntenant_hot = false\n").unwrap();
    let environment =
        BTreeMap::from([("PREFIXD_HEARTBEAT", "200ms"), ("PREFIXD_MAX_LAG", "8"), ("PREFIXD_PORT", "tcp://1")]);
    let given = args("--max-lag 9").unwrap().with_environment(|name| environment.get(name).map(|v| (*v).to_owned()));
    let config = Config::resolve(&ServeArgs { config: Some(path.clone()), ..given }, None).unwrap();
    let k = &config.knobs;
    assert_eq!((k.default_ttl.as_secs(), k.heartbeat.as_millis(), k.max_lag, k.tenant_hot), (60, 200, 9, false));
    let shown = config.to_toml();
    for line in ["max_lag = 9  # flag", "heartbeat = \"200ms\"  # environment", "max_unacked_bytes = \"8MiB\"\n"] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    assert!(shown.contains(&format!("default_ttl = \"1m\"  # file {}", path.display())), "{shown}");
}

#[test]
fn what_check_prints_can_be_read_back() {
    let line = "--peers a=h:1,b=h:2 --node-name b --routing-floor-score 0.25 --affinity-routing=false --otlp-endpoint http://c:4317";
    let first = resolve(line).unwrap();
    let second = with_file("", &first.to_toml()).unwrap();
    let values = |c: &Config| format!("{:?}", c.knobs).replace("Some(Peers)", "None");
    assert_eq!(values(&first), values(&second).replace("Some(Peers)", "None"));
    assert_eq!((first.bootstrap, first.node_name), (second.bootstrap, second.node_name));
}

#[test]
fn a_wrong_value_is_named_with_its_source_and_what_is_allowed() {
    let error = refused("--sweep-interval 60");
    assert!(error.starts_with("--sweep-interval: \"60\" (from flag) is not a duration"), "{error}");
    let error = with_file("", "max_message_bytes = \"1GB\"").unwrap_err().to_string();
    assert!(error.contains("--max-message-bytes: \"1GB\" (from file ") && error.contains("8MiB"), "{error}");
    let error = refused("--grpc-addr nowhere --max-lag -1 --routing-floor-score nan");
    assert_eq!(error.lines().count(), 3, "all are named: {error}");
    for line in error.lines() {
        assert!(line.contains("(from flag) is not a"), "{line}");
    }
}

#[test]
fn unknown_keys_tables_and_broken_files_are_refused_by_name() {
    let error = with_file("", "sweep_intervall = \"1m\"").unwrap_err().to_string();
    assert!(error.contains("unknown key \"sweep_intervall\"; is \"sweep_interval\" meant?"), "{error}");
    let error = with_file("", "default-ttl = \"1m\"").unwrap_err().to_string();
    assert!(error.contains("is \"default_ttl\" meant?"), "{error}");
    let error = with_file("", "[peers]\na = \"h:1\"").unwrap_err().to_string();
    assert!(error.contains("--peers: must be a plain value"), "{error}");
    let error = with_file("", "= 3").unwrap_err().to_string();
    assert!(error.contains("--config ") && error.contains("prefixd.toml"), "{error}");
    let missing = ServeArgs { config: Some("/nonexistent/prefixd.toml".into()), ..Default::default() };
    let error = Config::resolve(&missing, None).unwrap_err().to_string();
    assert!(error.starts_with("--config /nonexistent/prefixd.toml: "), "{error}");
}

#[test]
fn peers_may_be_a_list_in_the_file() {
    let config = with_file("--node-name b", "peers = [\"a=h:1\", \"b=h:2\"]").unwrap();
    assert_eq!(config.knobs.peers.len(), 2);
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    for (line, part) in [
        ("--heartbeat 1s --election-min 1s", "--election-min: must be at least twice --heartbeat"),
        ("--election-min 2s --election-max 2s", "--election-max: must be longer"),
        ("--require-chain --chain-matching=false", "--require-chain: true contradicts"),
        ("--internal-addr 0.0.0.0:8081", "--internal-addr: 0.0.0.0:8081 is not a loopback address"),
        ("--propose-timeout 31s", "--call-timeout: must not be shorter than --propose-timeout"),
        ("--policy-file /nonexistent/p.json", "--policy-file: /nonexistent/p.json: No such file"),
        ("--http-addr 127.0.0.1:9090", "--http-addr: 127.0.0.1:9090 is taken"),
        ("--peers a=h:1,a=h:2 --node-name a", "--peers: names a member twice"),
        ("--peers a=h:1,b=h:1 --node-name a", "--peers: has two members at one address"),
        ("--peers a=h:1,b --node-name a", "of \"b\", there is no '='"),
        ("--peers a=h:1,b=h --node-name a", "of \"b=h\", the address must be"),
        ("--peers a=h:1,b=h:2 --node-name c", "--node-name: \"c\" is not one of --peers (a, b)"),
        ("--peers a=h:1", "--node-name: \"host\" is not one of --peers (a)"),
        ("--node-addr 0.0.0.0:9091 --insecure-disable-auth", "--bootstrap: must be said"),
        ("--node-addr 0.0.0.0:9091 --bootstrap solo", "--node-addr: 0.0.0.0:9091 is not a loopback address"),
        ("--tls-cert-file c", "--tls-cert-file: needs --tls-key-file"),
        ("--tls-key-file k", "--tls-key-file: needs --tls-cert-file"),
        ("--tls-client-ca-file a", "--tls-client-ca-file: needs --tls-cert-file"),
        ("--internal-tls-cert-file c", "--internal-tls-cert-file: needs --internal-tls-key-file"),
        ("--internal-tls-key-file k", "--internal-tls-key-file: needs --internal-tls-cert-file"),
        ("--node-tls-cert-file c --node-tls-ca-file a", "--node-tls-key-file: is missing"),
        ("--policy-token-file p", "--policy-token-file: needs --controller-token-file"),
        ("--controller-token-file p", "--controller-token-file: needs --policy-token-file"),
        ("--token-review-url http://api --token-review-users u", "--token-review-url: would send tokens in clear"),
        ("--token-review-url https://api", "--token-review-users: must name who"),
        ("--token-review-url https://api --token-review-users u --token-review-ca-file=", "--token-review-ca-file: is"),
        (
            "--token-review-url https://api --token-review-users u --token-review-policy-audience prefixd-controller",
            "--token-review-policy-audience: must differ",
        ),
        ("--bootstrap never", "--bootstrap: never needs --peers"),
        ("--bootstrap peers", "--bootstrap: peers needs --peers"),
        ("--bootstrap solo --peers a=h:1,b=h:2 --node-name a", "--bootstrap: solo contradicts --peers"),
    ] {
        let error = refused(line);
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[test]
fn what_is_unset_is_decided() {
    for (line, bootstrap, name) in [
        ("--peers host=h:1,b=h:2", BootstrapMode::Peers, "host"),
        ("--peers a=h:1,b=h:2 --node-name b --bootstrap never", BootstrapMode::Never, "b"),
        ("--node-addr 0.0.0.0:9091 --bootstrap solo --insecure-disable-auth", BootstrapMode::Solo, "prefixd"),
        (
            "--node-addr 0.0.0.0:9091 --bootstrap solo --node-tls-cert-file c --node-tls-key-file k --node-tls-ca-file a",
            BootstrapMode::Solo,
            "prefixd",
        ),
        ("--internal-addr 0.0.0.0:0 --policy-token-file p --controller-token-file c", BootstrapMode::Solo, "prefixd"),
        ("--internal-addr 0.0.0.0:0 --insecure-disable-auth", BootstrapMode::Solo, "prefixd"),
        ("--grpc-addr localhost:0 --http-addr localhost:0", BootstrapMode::Solo, "prefixd"),
    ] {
        let config = resolve(line).unwrap();
        assert_eq!((config.bootstrap, config.node_name.as_str()), (bootstrap, name), "{line}");
    }
}

#[test]
fn every_setting_is_a_flag_with_help_a_default_and_a_variable() {
    let help = ServeArgs::augment_args(clap::Command::new("serve")).render_long_help().to_string();
    for knob in TABLE {
        assert!(help.contains(&format!("--{}", knob.flag())), "{}", knob.key);
        assert!(help.contains(&knob.variable()), "{}", knob.key);
        assert!(knob.help.ends_with('.'), "{}", knob.key);
    }
    let said = args("--tenant-hot --require-chain=false").unwrap().said;
    assert_eq!(said.flags.get("tenant_hot").map(String::as_str), Some("true"));
    assert!(args("--no-such-flag").is_err());
    assert_eq!(Said::default().flags.len(), 0);
}

#[test]
fn the_page_of_settings_is_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/CONFIGURATION.md");
    if std::env::var_os("PREFIXD_WRITE_DOCS").is_some() {
        std::fs::write(path, show::page()).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(page == show::page(), "docs/CONFIGURATION.md is behind: run this test once with PREFIXD_WRITE_DOCS=1");
}
