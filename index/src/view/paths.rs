//! The way from a request's names to its entries, remembered by each reader: most lookups of a gateway name the same
//! few scopes, and nothing about a name changes while no name comes or goes.

use super::names::{Domain, Partition, Roster, Scope, is_same};
use super::tables::Tables;
use crate::lookup::LookupRequest;
use std::sync::Arc;

/// How many paths a reader remembers.
const PATHS: usize = 8;

/// Where a request's names lead.
#[derive(Clone)]
pub(crate) struct Path {
    pub(crate) domain: Arc<Domain>,
    pub(crate) roster: Arc<Roster>,
    pub(crate) scope: Arc<Scope>,
    /// `None` when nothing has ever been reported of the adapter.
    pub(crate) partition: Option<Arc<Partition>>,
    adapter: Box<str>,
}

/// The paths taken last, with what they hold good for.
#[derive(Default)]
pub(crate) struct Paths {
    tables: u64,
    version: u64,
    paths: Vec<Path>,
    next: usize,
}

impl Paths {
    /// The path of a request, if its scope exists.
    pub(crate) fn find<B>(&mut self, tables: &Tables, request: &LookupRequest<'_, B>) -> Option<&Path> {
        let version = tables.names_version();
        if (self.tables, self.version) != (tables.id, version) {
            (self.tables, self.version) = (tables.id, version);
            self.paths.clear();
        }
        let is_it = |path: &Path| {
            is_same(&path.scope.scheme, request.scheme)
                && is_same(&path.adapter, request.adapter)
                && is_same(&path.domain.model, request.model)
                && is_same(&path.domain.tenant.name, request.tenant)
        };
        let known = self.paths.iter().position(is_it);
        let at = match known {
            Some(at) => at,
            None => {
                let path = look_up(tables, request)?;
                if self.paths.len() < PATHS {
                    self.paths.push(path);
                    self.paths.len() - 1
                } else {
                    self.next = (self.next + 1) % PATHS;
                    self.paths[self.next] = path;
                    self.next
                }
            }
        };
        self.paths.get(at)
    }
}

/// The path of a request, from the tables.
pub(crate) fn look_up<B>(tables: &Tables, request: &LookupRequest<'_, B>) -> Option<Path> {
    let guard = tables.names.guard();
    let (domain, roster) = tables.roster(request.tenant, request.model, &guard)?;
    let scope = tables.scope(domain.id, request.scheme, &guard)?;
    let partition = tables.partition(scope.id, request.adapter, &guard);
    Some(Path {
        domain: Arc::clone(domain),
        roster: Arc::clone(roster),
        scope: Arc::clone(scope),
        partition: partition.cloned(),
        adapter: request.adapter.into(),
    })
}
