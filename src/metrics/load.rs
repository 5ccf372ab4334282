//! Connections, calls under way on the gRPC port, and those of both that there was no room for.

use super::sample::{counter, counters, gauge, gauges};
use prefixd_raft::tls::Room;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What kind of call it is, as far as limits go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// LookupRoute.
    Lookup,
    /// ReportCacheState.
    Stream,
    /// Everything else.
    Other,
}

impl CallKind {
    const ALL: [CallKind; 3] = [CallKind::Lookup, CallKind::Stream, CallKind::Other];

    fn as_str(self) -> &'static str {
        match self {
            CallKind::Lookup => "lookup",
            CallKind::Stream => "stream",
            CallKind::Other => "other",
        }
    }
}

/// Counters of calls.
#[derive(Debug, Default)]
pub struct LoadCounters {
    open: [AtomicU64; CallKind::ALL.len()],
    shed: [AtomicU64; CallKind::ALL.len()],
    late: [AtomicU64; CallKind::ALL.len()],
    /// The gRPC port's connections, once it is served.
    pub connections: OnceLock<Room>,
    /// Those of the HTTP ports, by the flags that name these.
    pub http: OnceLock<[(&'static str, Room); 2]>,
}

fn cell(cells: &[AtomicU64; CallKind::ALL.len()], kind: CallKind) -> &AtomicU64 {
    let [lookup, stream, other] = cells;
    match kind {
        CallKind::Lookup => lookup,
        CallKind::Stream => stream,
        CallKind::Other => other,
    }
}

impl LoadCounters {
    /// Counts a call as under way if fewer than `most` are of those that share its limit.
    pub fn admit(&self, kind: CallKind, most: u64) -> bool {
        let open = |kind| cell(&self.open, kind).load(Relaxed);
        let before = cell(&self.open, kind).fetch_add(1, Relaxed);
        let others = match kind {
            CallKind::Stream => 0,
            CallKind::Lookup => open(CallKind::Other),
            CallKind::Other => open(CallKind::Lookup),
        };
        let is_in = before.saturating_add(others) < most;
        if !is_in {
            self.end(kind);
            cell(&self.shed, kind).fetch_add(1, Relaxed);
        }
        is_in
    }

    /// Counts a call that was admitted as ended.
    pub fn end(&self, kind: CallKind) {
        cell(&self.open, kind).fetch_sub(1, Relaxed);
    }

    /// Counts a call that was ended because it took too long.
    pub fn late(&self, kind: CallKind) {
        cell(&self.late, kind).fetch_add(1, Relaxed);
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (open, turned_away) = self.connections.get().map_or((0, 0), |room| (room.open(), room.closed()));
        gauge(encoder, "prefixd_grpc_connections", "Connections on the gRPC port", open as f64)?;
        let help = "Connections closed because too many were open";
        counter(encoder, "prefixd_grpc_connections_turned_away", help, turned_away)?;
        let http = || self.http.get().into_iter().flatten().map(|(port, room)| ([("port", *port)], room));
        let open = http().map(|(port, room)| (port, room.open() as f64));
        gauges(encoder, "prefixd_http_connections", "Connections on an HTTP port", open)?;
        let help = "Connections closed to make room for newcomers";
        let displaced = http().map(|(port, room)| (port, room.closed()));
        counters(encoder, "prefixd_http_connections_displaced", help, displaced)?;
        let rows = |cells| CallKind::ALL.map(|kind| ([("kind", kind.as_str())], cell(cells, kind).load(Relaxed)));
        let open = rows(&self.open).map(|(labels, n)| (labels, n as f64));
        gauges(encoder, "prefixd_grpc_calls", "Calls of the contract under way", open)?;
        let help = "Calls turned away because too many were under way";
        counters(encoder, "prefixd_grpc_calls_shed", help, rows(&self.shed))?;
        let help = "Calls ended because they took longer than --call-timeout";
        counters(encoder, "prefixd_grpc_calls_late", help, rows(&self.late))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_and_others_share_a_limit_and_streams_have_their_own() {
        let load = LoadCounters::default();
        assert!(load.admit(CallKind::Lookup, 2) && load.admit(CallKind::Other, 2));
        assert!(!load.admit(CallKind::Lookup, 2) && !load.admit(CallKind::Other, 2));
        assert!(load.admit(CallKind::Stream, 1) && !load.admit(CallKind::Stream, 1));
        load.end(CallKind::Other);
        assert!(load.admit(CallKind::Lookup, 2));
    }
}
