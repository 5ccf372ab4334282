//! The part of the configuration that the node's crates take, in their own types.

use super::Config;
use crate::http::listen::HttpLimits;
use prefixd_index::RankConfig;
use prefixd_index::command::ClusterMeta;
use prefixd_index::policy::Strategy;
use prefixd_raft::tls::Room;
use prefixd_raft::{Limits, NodeConfig, Timing};
use std::time::Duration;

impl Config {
    /// What the Raft node is started with; its certificates are [`crate::security`]'s to add.
    pub fn node(&self) -> NodeConfig {
        let knobs = &self.knobs;
        NodeConfig {
            data_dir: knobs.data_dir.clone(),
            node_name: self.node_name.clone(),
            peers: knobs.peers.clone(),
            bootstrap: self.bootstrap,
            advertise_addr: knobs.node_advertise_addr.clone(),
            meta: self.cluster_meta(),
            timing: Timing {
                heartbeat: knobs.heartbeat,
                election_min: knobs.election_min,
                election_max: knobs.election_max,
                propose_timeout: knobs.propose_timeout,
                sweep_interval: knobs.sweep_interval,
                audit_interval: knobs.audit_interval,
            },
            limits: Limits {
                entry_bytes: knobs.entry_bytes,
                queue_bytes: knobs.queue_bytes,
                snapshot_log_entries: knobs.snapshot_log_entries,
                keep_log_entries: knobs.keep_log_entries,
                max_lag_entries: knobs.max_lag,
                disk_reserve_bytes: knobs.disk_reserve_bytes.map(|bytes| bytes as u64),
                snapshot_preimage_entries: usize::try_from(knobs.snapshot_preimage_entries).unwrap_or(usize::MAX),
            },
            tls: None,
            feature_max: prefixd_raft::FEATURE_MAX,
        }
    }

    /// Limits of one HTTP port, which are no other's.
    pub fn http_limits(&self) -> HttpLimits {
        let connections = usize::try_from(self.knobs.max_http_connections).unwrap_or(usize::MAX);
        HttpLimits { room: Room::for_newcomers(connections), timeout: self.knobs.http_timeout }
    }

    /// How this node ranks and gates lookups.
    pub fn rank(&self) -> RankConfig {
        let knobs = &self.knobs;
        let timeout_ms = u32::try_from(knobs.lookup_timeout_ms).unwrap_or(u32::MAX);
        RankConfig {
            pressure_weight: knobs.pressure_weight,
            slo_tight_ttft_ms: knobs.slo_tight_ttft_ms,
            slo_tight_bias: knobs.slo_tight_bias,
            tenant_hot_min_hit_rate: knobs.tenant_hot_min_hit_rate,
            tenant_hot_max_age_us: micros(knobs.tenant_hot_max_age),
            minimum_matched_tokens: knobs.minimum_matched_tokens,
            routing_floor_score: knobs.routing_floor_score,
            minimum_prefix_tokens: (knobs.minimum_prefix_tokens > 0).then_some(knobs.minimum_prefix_tokens),
            lookup_timeout_ms: (timeout_ms > 0).then_some(timeout_ms),
            affinity_routing: knobs.affinity_routing,
            strategy: Strategy {
                enable_chain_matching: knobs.chain_matching,
                require_chain: knobs.require_chain,
                enable_tenant_hot: knobs.tenant_hot,
            },
            block_size: u32::try_from(knobs.engine_block_size).unwrap_or(u32::MAX),
        }
    }

    /// The parameters that this node proposes when it leads.
    fn cluster_meta(&self) -> ClusterMeta {
        let knobs = &self.knobs;
        ClusterMeta {
            default_ttl_us: micros(knobs.default_ttl),
            max_entries: knobs.max_index_entries,
            max_bytes: knobs.max_index_bytes as u64,
            slice_entries: u32::try_from(knobs.slice_entries).unwrap_or(u32::MAX),
            session_ttl_us: micros(knobs.session_ttl),
            ..ClusterMeta::default()
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
