//! Families about certificates and tokens, read when somebody asks.

use super::sample::{counters, gauge, gauges};
use crate::security::Security;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, security: &Security) -> fmt::Result {
    let tls = f64::from(u8::from(security.grpc.is_some()));
    gauge(encoder, "inferencecache_server_grpc_tls_enabled", "1 when the gRPC port speaks TLS", tls)?;
    let ends = security.ports().map(|(name, port)| ([("port", name)], port.not_after() as f64));
    gauges(encoder, "prefixd_tls_certificate_not_after_seconds", "When the certificate of the port ends", ends)?;
    let failures = security.ports().map(|(name, port)| ([("port", name)], port.failed_handshakes()));
    counters(encoder, "prefixd_tls_handshake_failures", "TLS handshakes that failed", failures)?;
    let reloads = security.reloads();
    let reloads = reloads.iter().flat_map(|(file, ok, error)| {
        [("ok", *ok), ("error", *error)].map(|(result, n)| ([("file", *file), ("result", result)], n))
    });
    counters(encoder, "prefixd_file_reloads", "Changes of watched files", reloads)?;
    let judged = security.tenants.counts().map(|(result, n)| ([("result", result)], n));
    counters(encoder, "prefixd_tenant_auth", "Messages whose tenant token was judged", judged)
}
