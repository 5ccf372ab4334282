//! The document of GET /snapshot: what the index holds, aggregated for the controller's status. Pure: rows in,
//! document out.

use super::time;
use prefixd_index::view::{ReplicaRow, StateRows};
use serde::Serialize;
use std::collections::BTreeMap;

/// The whole document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    replicas: Vec<Replica>,
    tenants: Vec<Tenant>,
    total_prefixes: u64,
    hot_prefixes: u64,
}

/// One (tenant, replica).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Replica {
    replica_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    tenant: String,
    cache_memory_bytes: i64,
    hit_rate: f32,
    pressure: f32,
    last_update: String,
    prefix_count: u64,
    last_event_at: String,
    #[serde(skip_serializing_if = "is_false")]
    stats_reported: bool,
    #[serde(skip_serializing_if = "is_zero")]
    t2_hit_tokens: i64,
    #[serde(skip_serializing_if = "is_zero")]
    t2_query_tokens: i64,
}

/// One tenant.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tenant {
    tenant_id: String,
    index_entries: u64,
    hit_rate: f64,
    #[serde(skip_serializing_if = "is_false")]
    hit_rate_reported: bool,
    memory_used: u64,
}

/// The document for these rows.
pub(super) fn document(rows: &StateRows) -> Document {
    Document {
        replicas: rows.replicas.iter().map(replica).collect(),
        tenants: tenants(rows),
        total_prefixes: rows.total_prefixes,
        hot_prefixes: 0,
    }
}

fn replica(row: &ReplicaRow) -> Replica {
    let (stats, last_update_us) = row.stats.as_ref().map(|row| (row.stats, row.liveness_us)).unwrap_or_default();
    Replica {
        replica_id: row.replica.as_ref().into(),
        tenant: row.tenant.as_ref().into(),
        cache_memory_bytes: stats.cache_memory_bytes,
        hit_rate: stats.hit_rate,
        pressure: stats.pressure,
        last_update: time::rfc3339(last_update_us),
        prefix_count: row.entries,
        last_event_at: time::rfc3339(row.last_event_us),
        stats_reported: row.stats.is_some(),
        t2_hit_tokens: stats.t2_hit_tokens,
        t2_query_tokens: stats.t2_query_tokens,
    }
}

/// Every tenant with prefixes or replicas, with the mean hit rate of its replicas with stats.
fn tenants(rows: &StateRows) -> Vec<Tenant> {
    let mut by_name: BTreeMap<&str, (u64, Vec<f64>)> = BTreeMap::new();
    for (tenant, prefixes) in &rows.tenants {
        by_name.entry(tenant.as_ref()).or_default().0 = *prefixes;
    }
    for row in &rows.replicas {
        let rates = &mut by_name.entry(row.tenant.as_ref()).or_default().1;
        rates.extend(row.stats.as_ref().map(|row| f64::from(row.stats.hit_rate)));
    }
    let tenant = |(name, (index_entries, rates)): (&str, (u64, Vec<f64>))| Tenant {
        tenant_id: name.into(),
        index_entries,
        hit_rate: if rates.is_empty() { 0.0 } else { rates.iter().sum::<f64>() / rates.len() as f64 },
        hit_rate_reported: !rates.is_empty(),
        memory_used: 0,
    };
    by_name.into_iter().map(tenant).collect()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &i64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use prefixd_index::delta::Stats;
    use prefixd_index::view::RowStats;
    use serde_json::json;

    #[test]
    fn rows_become_the_controllers_document() {
        let row = |replica: &str, stats| ReplicaRow {
            tenant: "t".into(),
            replica: replica.into(),
            stats,
            entries: 2,
            last_event_us: 1_000_000,
        };
        let stats = |hit_rate, liveness_us| {
            let stats = Stats { hit_rate, cache_memory_bytes: 9, t2_query_tokens: 4, ..Stats::default() };
            Some(RowStats { model: "m".into(), stats, liveness_us })
        };
        let rows = StateRows {
            replicas: vec![row("r1", stats(0.5, 2_000_000)), row("r2", stats(0.25, 3_000_000)), row("r3", None)],
            tenants: vec![("t".into(), 5)],
            total_prefixes: 5,
        };
        let document = serde_json::to_value(document(&rows)).unwrap();
        let full = json!({
            "replicaId": "r1", "tenant": "t", "cacheMemoryBytes": 9, "hitRate": 0.5, "pressure": 0.0,
            "lastUpdate": "1970-01-01T00:00:02Z", "prefixCount": 2, "lastEventAt": "1970-01-01T00:00:01Z",
            "statsReported": true, "t2QueryTokens": 4,
        });
        let bare = json!({
            "replicaId": "r3", "tenant": "t", "cacheMemoryBytes": 0, "hitRate": 0.0, "pressure": 0.0,
            "lastUpdate": "0001-01-01T00:00:00Z", "prefixCount": 2, "lastEventAt": "1970-01-01T00:00:01Z",
        });
        assert_eq!((&document["replicas"][0], &document["replicas"][2]), (&full, &bare));
        let tenant =
            json!([{"tenantId": "t", "indexEntries": 5, "hitRate": 0.375, "hitRateReported": true, "memoryUsed": 0}]);
        assert_eq!(document["tenants"], tenant);
        assert_eq!((&document["totalPrefixes"], &document["hotPrefixes"]), (&json!(5), &json!(0)));
    }

    #[test]
    fn an_empty_index_is_a_document_too() {
        let document = serde_json::to_value(document(&StateRows::default())).unwrap();
        assert_eq!(document, json!({"replicas": [], "tenants": [], "totalPrefixes": 0, "hotPrefixes": 0}));
    }
}
