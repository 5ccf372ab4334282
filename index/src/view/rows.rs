//! The aggregates that operators ask for: GetCacheState, the rows of GET /snapshot, models for the metrics. They are
//! read from the shared tables without a lock; the reserved tenant is in none of them.

use super::names::{Domain, Member, Node, Report, Seats};
use super::tables::{Kind, TableHash, Tables};
use super::{CacheState, ReplicaRow, StateRows};
use crate::limits::RESERVED_TENANT;
use crate::store::runs::census;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The aggregate of one (tenant, model).
pub(crate) fn cache_state(tables: &Tables, tenant: &str, model: &str) -> CacheState {
    let guard = tables.names.guard();
    let domain = match tenant {
        RESERVED_TENANT => None,
        _ => tables.roster(tenant, model, &guard),
    };
    let Some((domain, roster)) = domain else { return CacheState::default() };
    let reporting = roster.reporting.load();
    let row = |member: &Arc<Member>| Some((Arc::clone(&member.replica), member.stats.load().as_ref()?.stats));
    CacheState { replicas: reporting.iter().filter_map(row).collect(), total_prefixes: domain.prefixes.get() }
}

/// Each model with its distinct prefixes, sorted.
pub(crate) fn models(tables: &Tables) -> Vec<(Arc<str>, u64)> {
    let guard = tables.names.guard();
    let mut models: Vec<(Arc<str>, u64)> = tables
        .names
        .iter(&guard)
        .filter_map(|(_, node)| match node {
            Node::Model(model) if model.domains.get() > 0 => Some((Arc::clone(&model.name), model.prefixes.get())),
            _ => None,
        })
        .collect();
    models.sort_unstable();
    models
}

/// All rows, by a scan of every entry.
pub(crate) fn state_rows(tables: &Tables, hash_seed: u64) -> StateRows {
    let mut rows: BTreeMap<(Arc<str>, Arc<str>), ReplicaRow> = BTreeMap::new();
    for (member, entries, newest_us) in held(tables, hash_seed) {
        let row = row(&mut rows, &member);
        row.entries += entries;
        row.last_event_us = row.last_event_us.max(newest_us);
    }
    let mut tenants: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    let guard = tables.names.guard();
    for (key, node) in tables.names.iter(&guard) {
        match (key.kind, node) {
            (Kind::Tenant, Node::Tenant(tenant)) if !tenant.reserved && tenant.entries.get() > 0 => {
                tenants.insert(Arc::clone(&tenant.name), tenant.prefixes.get());
            }
            (Kind::Domain, Node::Domain(domain, roster)) if !domain.tenant.reserved => {
                for member in roster.reporting.load().iter() {
                    let Some(report) = member.stats.load_full() else { continue };
                    tenants.entry(Arc::clone(&domain.tenant.name)).or_insert(domain.tenant.prefixes.get());
                    prefer_latest(&mut row(&mut rows, member).stats, &domain.model, &report);
                }
            }
            _ => {}
        }
    }
    let total_prefixes = tenants.values().sum();
    let replicas = rows.into_values().collect();
    StateRows { replicas, tenants: tenants.into_iter().collect(), total_prefixes }
}

/// What the visible entries of each member of an ordinary tenant come to: their number and newest last-seen.
fn held(tables: &Tables, hash_seed: u64) -> Vec<(Arc<Member>, u64, u64)> {
    // While the pin lasts no seat goes to somebody else.
    let _pin = tables.store.readers.pin(0);
    let guard = tables.names.guard();
    let mut rosters: HashMap<u64, Arc<Seats>, TableHash> = HashMap::with_hasher(TableHash(hash_seed));
    for (_, node) in tables.names.iter(&guard) {
        if let Node::Partition(partition) = node
            && let Domain { tenant, model, .. } = &*partition.domain
            && !tenant.reserved
            && let Some((_, roster)) = tables.roster(&tenant.name, model, &guard)
        {
            rosters.insert(partition.id, roster.seats.load_full());
        }
    }
    let mut held: HashMap<*const Member, (&Arc<Member>, u64, u64), TableHash> =
        HashMap::with_hasher(TableHash(hash_seed));
    census(&tables.store, |partition, seat, entries, seen_us| {
        if let Some(seated) = rosters.get(&partition).and_then(|seats| seats.in_seat(seat)) {
            let member = &seated.member;
            let sum = held.entry(Arc::as_ptr(member)).or_insert((member, 0, 0));
            *sum = (member, sum.1 + entries, sum.2.max(seen_us));
        }
    });
    held.into_values().map(|(member, entries, newest_us)| (Arc::clone(member), entries, newest_us)).collect()
}

fn row<'r>(rows: &'r mut BTreeMap<(Arc<str>, Arc<str>), ReplicaRow>, member: &Member) -> &'r mut ReplicaRow {
    let (tenant, replica) = (Arc::clone(&member.domain.tenant.name), Arc::clone(&member.replica));
    rows.entry((Arc::clone(&tenant), Arc::clone(&replica))).or_insert(ReplicaRow {
        tenant,
        replica,
        stats: None,
        entries: 0,
        last_event_us: 0,
    })
}

/// Keeps the stats of the model with the latest liveness; of equal ones those of the smaller model.
fn prefer_latest(kept: &mut Option<super::RowStats>, model: &Arc<str>, report: &Report) {
    let newer = kept.as_ref().is_none_or(|kept| {
        report.liveness_us > kept.liveness_us || (report.liveness_us == kept.liveness_us && *model < kept.model)
    });
    if newer {
        *kept =
            Some(super::RowStats { model: Arc::clone(model), stats: report.stats, liveness_us: report.liveness_us });
    }
}
