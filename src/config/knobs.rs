//! Every setting of a node on one page: its key, type, default and what is allowed. The key is the key in the TOML
//! file; the flag is the key with dashes, the environment variable is PREFIXD_ and the key in capitals. Nothing here
//! knows where a value came from (see [`super::layers`]) or how settings depend on each other (see [`super::check`]).

use super::layers::Settings;
use super::{Problem, parse};
use crate::auth::review::ReviewUrl;
use prefixd_raft::{BootstrapMode, Peer};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What there is to know about a setting before it has a value.
#[derive(Copy, Clone, Debug)]
pub struct Knob {
    /// The key in the file.
    pub key: &'static str,
    /// The heading that it stands under in the help.
    pub group: &'static str,
    /// The value when nobody says anything, as text; empty for a setting that may stay unset.
    pub default: &'static str,
    /// One line for the help.
    pub help: &'static str,
    /// True for settings that are true or false, whose flag needs no value.
    pub switch: bool,
}

impl Knob {
    /// The long flag without its dashes.
    pub fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("PREFIXD_{}", self.key.to_ascii_uppercase())
    }
}

macro_rules! knobs {
    ($($group:literal { $(#[doc = $help:literal] $key:ident: $type:ty = $default:literal, $parse:expr;)* })*) => {
        /// The values of all settings, each valid by itself.
        #[derive(Clone, Debug)]
        pub struct Knobs {
            $($(#[doc = $help] pub $key: $type,)*)*
        }

        /// All settings, in the order of the help.
        pub const TABLE: &[Knob] = &[$($(Knob {
            key: stringify!($key),
            group: $group,
            default: $default,
            help: $help,
            switch: matches!($default.as_bytes(), b"true" | b"false"),
        },)*)*];

        impl Knobs {
            /// Reads every setting, or says what is wrong with each that is wrong.
            pub fn read(settings: &Settings) -> Result<Self, Vec<Problem>> {
                let mut problems = Vec::new();
                $($(let $key: Option<$type> = settings.read(stringify!($key), $parse, &mut problems);)*)*
                $($(let Some($key) = $key else { return Err(problems) };)*)*
                Ok(Self { $($($key,)*)* })
            }
        }
    };
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
const fn days(n: u64) -> Duration {
    Duration::from_secs(n * 86_400)
}
const NONE: Duration = Duration::ZERO;
const MAX: u64 = u64::MAX;

knobs! {
    "Node" {
        #[doc = "Where this node's identity, log and snapshots live."]
        data_dir: PathBuf = "./prefixd-data", parse::path;
        #[doc = "This node's name in the cluster; default: the host's name with --peers, else \"prefixd\"."]
        node_name: Option<String> = "", parse::optional(parse::member_name);
        #[doc = "All members, this node included, as name=host:port,… of their node ports."]
        peers: Vec<Peer> = "", parse::peers;
        #[doc = "How an empty data directory becomes a member: solo (found a cluster of one), peers (found one with all peers, or join theirs), never (only join). Default: peers with --peers, solo on a loopback --node-addr; elsewhere it must be said."]
        bootstrap: Option<BootstrapMode> = "", parse::optional(parse::bootstrap);
        #[doc = "Write the bound addresses to this file, as JSON, once all ports are bound."]
        addr_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "Longest orderly stop after SIGTERM; then the process ends anyway."]
        stop_timeout: Duration = "10s", parse::duration(ms(100)..=days(1));
    }
    "Addresses" {
        #[doc = "gRPC for gateways and producers."]
        grpc_addr: SocketAddr = "127.0.0.1:9090", parse::bind_addr;
        #[doc = "HTTP: /healthz, /readyz, /metrics."]
        http_addr: SocketAddr = "127.0.0.1:8080", parse::bind_addr;
        #[doc = "HTTP for the controller."]
        internal_addr: SocketAddr = "127.0.0.1:8081", parse::bind_addr;
        #[doc = "gRPC between nodes and for operators."]
        node_addr: SocketAddr = "127.0.0.1:9091", parse::bind_addr;
        #[doc = "host:port of the node port as announced to the other nodes; default: what --node-addr bound."]
        node_advertise_addr: Option<String> = "", parse::optional(parse::host_port);
        #[doc = "Serve --internal-addr without tokens, and --node-addr without mutual TLS, even where they aren't loopback."]
        insecure_disable_auth: bool = "false", parse::switch;
    }
    "TLS and tokens" {
        #[doc = "Certificate chain of --grpc-addr in PEM, the own certificate first; TLS is off unless set. This and all files below are read again when they change."]
        tls_cert_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "Its private key in PEM."]
        tls_key_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "CA that clients of --grpc-addr must have a certificate of; none is demanded unless set."]
        tls_client_ca_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "Certificate chain of --internal-addr in PEM; TLS is off there unless set."]
        internal_tls_cert_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "Its private key in PEM."]
        internal_tls_key_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "This node's certificate chain in PEM, shown by --node-addr and to the other nodes; mutual TLS is off unless set."]
        node_tls_cert_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "Its private key in PEM."]
        node_tls_key_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "CA of all nodes and operators, and of nobody else."]
        node_tls_ca_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "Tokens for /policy on --internal-addr, one a line."]
        policy_token_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "Tokens for /snapshot and /probe on --internal-addr, one a line."]
        controller_token_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "Ask this Kubernetes API server (TokenReview) about tokens on --internal-addr, such as https://kubernetes.default.svc; off unless set."]
        token_review_url: Option<ReviewUrl> = "", parse::optional(parse::review_url);
        #[doc = "CA of that server, for https."]
        token_review_ca_file: Option<PathBuf> = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", parse::optional(parse::path);
        #[doc = "This node's own token towards it; empty sends none."]
        token_review_token_file: Option<PathBuf> = "/var/run/secrets/kubernetes.io/serviceaccount/token", parse::optional(parse::path);
        #[doc = "Audience that a reviewed token for /policy must have."]
        token_review_policy_audience: String = "prefixd-policy", parse::text;
        #[doc = "Audience that a reviewed token for /snapshot and /probe must have."]
        token_review_controller_audience: String = "prefixd-controller", parse::text;
        #[doc = "Users let in by reviewed tokens, separated by commas, such as system:serviceaccount:NAMESPACE:NAME."]
        token_review_users: Vec<String> = "", parse::words;
        #[doc = "Longest review of a token; then 503."]
        token_review_timeout: Duration = "5s", parse::duration(ms(10)..=ms(60_000));
        #[doc = "How long a token that was let in isn't reviewed again; 0 reviews every call."]
        token_review_remember: Duration = "10s", parse::duration(NONE..=ms(300_000));
        #[doc = "Tokens of tenants on --grpc-addr: a line is a token, a space, and tenants separated by commas (* is all); anybody may use any tenant_id unless set."]
        tenant_token_file: Option<PathBuf> = "", parse::optional(parse::path);
        #[doc = "Between looks at the files above."]
        reload_interval: Duration = "2s", parse::duration(ms(10)..=ms(3_600_000));
    }
    "Logs and traces" {
        #[doc = "text or json."]
        log_format: &'static str = "text", parse::word(&["text", "json"]);
        #[doc = "error, warn, info, debug, trace, or a filter such as info,prefixd=debug."]
        log_level: String = "info", parse::log_level;
        #[doc = "Send traces to this OTLP collector (gRPC), such as http://127.0.0.1:4317; off unless set."]
        otlp_endpoint: Option<String> = "", parse::optional(parse::endpoint);
    }
    "Index" {
        #[doc = "Time to live of entries and stats in tenants whose policy gives none."]
        default_ttl: Duration = "30m", parse::duration(ms(1)..=days(36_500));
        #[doc = "Between background sweeps of what has expired."]
        sweep_interval: Duration = "60s", parse::duration(ms(100)..=days(1));
        #[doc = "Cap on entries; 0 is unbounded."]
        max_index_entries: u64 = "1000000", parse::whole(0..=MAX);
        #[doc = "Cap on the index's bytes by the documented formula; 0 is unbounded."]
        max_index_bytes: usize = "0", parse::bytes(0..=MAX);
        #[doc = "Most entries that one slice of background removal takes."]
        slice_entries: u64 = "2048", parse::whole(1..=1_000_000);
        #[doc = "How long an idle ingest session is remembered."]
        session_ttl: Duration = "1h", parse::duration(Duration::from_secs(60)..=days(365));
    }
    "Ranking" {
        #[doc = "Weight of a replica's pressure; 0 is no penalty."]
        pressure_weight: f32 = "1", parse::real(0.0..=1e6);
        #[doc = "A request with 0 < slo.ttft_ms below this prefers fresher replicas; 0 never does."]
        slo_tight_ttft_ms: i32 = "200", parse::tokens;
        #[doc = "Strength of that preference; 0 is none."]
        slo_tight_bias: f32 = "1", parse::real(0.0..=1e6);
        #[doc = "TENANT_HOT wants at least this hit rate."]
        tenant_hot_min_hit_rate: f32 = "0.1", parse::real(0.0..=1.0);
        #[doc = "TENANT_HOT wants stats younger than this; 0 switches it off."]
        tenant_hot_max_age: Duration = "5m", parse::duration(NONE..=days(365));
    }
    "Gates of tenants without a policy of their own" {
        #[doc = "Replicas that match fewer tokens are dropped; 0 is no floor."]
        minimum_matched_tokens: i32 = "64", parse::tokens;
        #[doc = "The best score must reach this; 0 or less is no floor."]
        routing_floor_score: f32 = "0.1", parse::real(-1e9..=1e9);
        #[doc = "Requests that cover fewer tokens get no positive hint; 0 is no minimum."]
        minimum_prefix_tokens: i32 = "0", parse::tokens;
        #[doc = "A lookup slower than this many milliseconds answers TIMEOUT; 0 is no limit."]
        lookup_timeout_ms: u64 = "0", parse::whole(0..=3_600_000);
        #[doc = "Answer a miss with a stable replica (AFFINITY_HINT)."]
        affinity_routing: bool = "true", parse::switch;
        #[doc = "Match chains of block hashes."]
        chain_matching: bool = "true", parse::switch;
        #[doc = "Refuse lookups without a valid chain (POLICY_REQUIRES_CHAIN)."]
        require_chain: bool = "false", parse::switch;
        #[doc = "Answer an exact miss with warm replicas of the tenant (TENANT_HOT)."]
        tenant_hot: bool = "true", parse::switch;
    }
    "Policy" {
        #[doc = "Policies and quotas from this file: the JSON of POST /policy, or the same as YAML when it ends in .yaml or .yml. It is watched; once a set was pushed by the controller or by prefixd ctl, the file no longer counts."]
        policy_file: Option<PathBuf> = "", parse::optional(parse::path);
    }
    "Limits of requests" {
        #[doc = "Tokens in an engine's KV block, for lookups by tokens."]
        engine_block_size: u64 = "16", parse::whole(1..=65_536);
        #[doc = "Most token_ids in a lookup; over it NO_HINT."]
        max_token_ids: u64 = "1048576", parse::whole(0..=1 << 20);
        #[doc = "Largest prompt_text in a lookup; over it NO_HINT. This release has no tokenizer: prompt_text is always NO_HINT."]
        max_prompt_bytes: usize = "1MiB", parse::bytes(0..=1 << 30);
        #[doc = "Concurrent tokenizations; over it NO_HINT. Without effect while there is no tokenizer."]
        max_tokenizations: u64 = "64", parse::whole(1..=65_536);
        #[doc = "Longest tokenization of a lookup without any deadline. Without effect while there is no tokenizer."]
        tokenization_timeout: Duration = "5s", parse::duration(ms(1)..=days(1));
        #[doc = "Largest message on --grpc-addr; over it OUT_OF_RANGE."]
        max_message_bytes: usize = "8MiB", parse::bytes(64 << 10..=1 << 30);
        #[doc = "Most bytes of updates that one ingest stream may have unacknowledged."]
        max_unacked_bytes: usize = "8MiB", parse::bytes(64 << 10..=1 << 30);
        #[doc = "Most connections on --grpc-addr; one over it is closed before any handshake."]
        max_grpc_connections: u64 = "8192", parse::whole(1..=1_000_000);
        #[doc = "Most concurrent calls on one gRPC connection."]
        max_concurrent_streams: u64 = "1024", parse::whole(1..=1_000_000);
        #[doc = "Most calls under way on --grpc-addr, ReportCacheState aside; over it LookupRoute answers TIMEOUT, the others RESOURCE_EXHAUSTED."]
        max_concurrent_calls: u64 = "16384", parse::whole(1..=1_000_000);
        #[doc = "Most open ReportCacheState streams; over it RESOURCE_EXHAUSTED."]
        max_ingest_streams: u64 = "4096", parse::whole(1..=1_000_000);
        #[doc = "Longest call on --grpc-addr, ReportCacheState aside; then LookupRoute answers TIMEOUT, the others DEADLINE_EXCEEDED."]
        call_timeout: Duration = "30s", parse::duration(ms(10)..=days(1));
        #[doc = "Silence on a gRPC connection after which its peer is asked for a sign of life."]
        grpc_keepalive_interval: Duration = "20s", parse::duration(ms(100)..=days(1));
        #[doc = "How long that sign may take before the connection is dropped."]
        grpc_keepalive_timeout: Duration = "10s", parse::duration(ms(100)..=days(1));
        #[doc = "Most connections on each of --http-addr and --internal-addr; for one over it the one open longest is closed."]
        max_http_connections: u64 = "512", parse::whole(1..=65_536);
        #[doc = "How long the head of an HTTP request, or its body, may take, a connection be idle, and a peer take nothing of its answer."]
        http_timeout: Duration = "10s", parse::duration(ms(100)..=days(1));
    }
    "Replication" {
        #[doc = "How long a batch may take to be committed and applied here before its caller gets UNAVAILABLE."]
        propose_timeout: Duration = "10s", parse::duration(ms(50)..=days(1));
        #[doc = "Between a leader's heartbeats."]
        heartbeat: Duration = "250ms", parse::duration(ms(10)..=ms(60_000));
        #[doc = "Shortest silence after which a follower stands for election."]
        election_min: Duration = "1s", parse::duration(ms(20)..=ms(600_000));
        #[doc = "Longest such silence."]
        election_max: Duration = "2s", parse::duration(ms(20)..=ms(600_000));
        #[doc = "Between comparisons of the digest across nodes."]
        audit_interval: Duration = "60s", parse::duration(ms(100)..=days(1));
        #[doc = "A node that lags by more log entries is not ready."]
        max_lag: u64 = "10000", parse::whole(1..=MAX);
        #[doc = "Bytes of updates that one log entry joins."]
        entry_bytes: usize = "1MiB", parse::bytes(4 << 10..=16 << 20);
        #[doc = "Bytes of updates that may wait in this node; over it RESOURCE_EXHAUSTED."]
        queue_bytes: usize = "64MiB", parse::bytes(1 << 20..=16 << 30);
        #[doc = "Log entries after a snapshot that trigger the next one."]
        snapshot_log_entries: u64 = "20000", parse::whole(10..=1_000_000_000);
        #[doc = "Log entries kept behind a snapshot for short outages."]
        keep_log_entries: u64 = "5000", parse::whole(0..=1_000_000_000);
        #[doc = "Free bytes of the disk below which this node takes no ingest and no log entries in, and answers lookups alone; 0 for no reserve. Default: room for one snapshot and two segments of the log (64MiB each)."]
        disk_reserve_bytes: Option<usize> = "", parse::optional(parse::bytes(0..=MAX));
        #[doc = "Entries that may change while a snapshot is being taken, before it is given up and retried."]
        snapshot_preimage_entries: u64 = "1000000", parse::whole(1_000..=1_000_000_000);
    }
}
