//! The writer's side of everything with a name: tenants, domains, scopes, partitions and members come into being with
//! their first entry or stats and vanish with their last, so that made-up names leave nothing behind. Positions and
//! ids are private to a node and never influence a result.

use super::Index;
use super::heap::Firsts;
use super::member::MemberState;
use super::orders::TtlClass;
use crate::digest::{self, NameHash};
use crate::formula;
use crate::limits::RESERVED_TENANT;
use crate::view::names::{Count, Domain, Member, Model, Node, Partition, Roster, Scope, Tenant, is_same};
use crate::view::settings;
use crate::view::tables::{Kind, NameKey, NameRef, Tables};
use papaya::LocalGuard;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A tenant.
pub(crate) struct TenantState {
    pub(crate) shared: Arc<Tenant>,
    /// Which TTL governs it.
    pub(crate) ttl: TtlClass,
    /// True when the cap takes its least used entries first.
    pub(crate) is_lfu: bool,
    domains: u32,
    /// Slabs by their oldest prefix, once that has been asked for.
    pub(crate) prefixes: Option<Firsts>,
    /// Retirements with entries left to purge.
    pub(crate) retired: BTreeSet<u64>,
}

/// A (tenant, model).
pub(crate) struct DomainState {
    id: u64,
    pub(crate) roster: Arc<Roster>,
    /// The model's sums over tenants; `None` under the reserved tenant, which is in no sum.
    pub(crate) model: Option<Arc<Model>>,
    members: u32,
    /// Partitions that have an entry, dead ones too.
    pub(crate) partitions: u32,
    /// The member in each seat; a seat that is free, or soon will be, says who was in it last.
    pub(crate) seats: Vec<u32>,
    pub(crate) free_seats: Vec<u32>,
}

/// A (tenant, model, hash scheme).
pub(crate) struct ScopeState {
    pub(crate) shared: Arc<Scope>,
    domain: u64,
    partitions: u32,
}

/// A (tenant, model, hash scheme, adapter).
pub(crate) struct PartitionState {
    pub(crate) shared: Arc<Partition>,
    pub(crate) scope: u32,
    /// Stands for its names in digests.
    pub(crate) base: NameHash,
    /// Entries, dead ones too.
    pub(crate) entries: u64,
}

/// Most seats of a (tenant, model), those that are waiting to be free included.
const MAX_SEATS: u32 = 1 << crate::store::SEAT_BITS;

/// The shared tables with a guard on each, for the length of one step of apply.
pub(crate) struct Pins<'t> {
    pub(crate) tables: &'t Tables,
    pub(crate) names: LocalGuard<'t>,
}

impl<'t> Pins<'t> {
    pub(crate) fn new(tables: &'t Tables) -> Self {
        Self { tables, names: tables.names.guard() }
    }

    fn name(&self, kind: Kind, parent: u64, name: &Arc<str>, node: Node) {
        self.tables.names.insert(NameKey { kind, parent, name: Arc::clone(name) }, node, &self.names);
        self.tables.note_name(kind);
    }

    fn forget(&self, kind: Kind, parent: u64, name: &str) {
        self.tables.names.remove(&NameRef { kind, parent, name }, &self.names);
        self.tables.note_name(kind);
    }
}

/// The sums of a model over all tenants but the reserved one.
fn ensure_model(pins: &Pins<'_>, name: &str) -> Arc<Model> {
    if let Some(model) = pins.tables.model(name, &pins.names) {
        return Arc::clone(model);
    }
    let model = Arc::new(Model { name: name.into(), domains: Count::default(), prefixes: Count::default() });
    pins.name(Kind::Model, 0, &model.name, Node::Model(Arc::clone(&model)));
    model
}

impl Index {
    /// The member of a replica that isn't retired.
    pub(crate) fn find_member(&self, pins: &Pins<'_>, tenant: &str, model: &str, replica: &str) -> Option<Arc<Member>> {
        if let Some(last) = &self.last_member
            && is_same(&last.replica, replica)
            && is_same(&last.domain.model, model)
            && is_same(&last.domain.tenant.name, tenant)
        {
            return Some(Arc::clone(last));
        }
        let domain = pins.tables.domain(tenant, model, &pins.names)?;
        pins.tables.member(domain.id, replica, &pins.names).cloned()
    }

    /// The member of a replica, made if need be; `None` when 32 bits are used up. The caller gives a new one entries
    /// or stats.
    pub(crate) fn ensure_member(
        &mut self,
        pins: &Pins<'_>,
        tenant: &str,
        model: &str,
        replica: &str,
    ) -> Option<Arc<Member>> {
        if let Some(member) = self.find_member(pins, tenant, model, replica) {
            self.last_member = Some(Arc::clone(&member));
            return Some(member);
        }
        let member = self.new_member(pins, tenant, model, replica)?;
        pins.name(Kind::Member, member.domain.id, &member.replica, Node::Member(Arc::clone(&member)));
        self.domains[member.domain.at].roster.seat(member.seat, Some(&member));
        self.totals.members += 1;
        if !member.domain.tenant.reserved {
            self.totals.bytes += formula::member_bytes(tenant, model, replica);
        }
        Some(member)
    }

    /// A member that no name leads to yet.
    pub(crate) fn new_member(
        &mut self,
        pins: &Pins<'_>,
        tenant: &str,
        model: &str,
        replica: &str,
    ) -> Option<Arc<Member>> {
        let at = self.members.next()?;
        let domain = self.ensure_domain(pins, tenant, model)?;
        let seat = self.new_seat(domain.at, at)?;
        let member = Arc::new(Member {
            at,
            seat,
            domain: Arc::clone(&domain),
            replica: replica.into(),
            retired: false.into(),
            stats: None.into(),
            pressure: Default::default(),
        });
        let is_lfu = self.tenants[domain.tenant.at].is_lfu;
        self.members.insert(MemberState::new(Arc::clone(&member), digest::member(tenant, model, replica), is_lfu))?;
        self.domains[domain.at].members += 1;
        Some(member)
    }

    /// A seat for a member: spans name their holders by it.
    fn new_seat(&mut self, domain: u32, member: u32) -> Option<u32> {
        self.free_seats();
        let domain = &mut self.domains[domain];
        if let Some(seat) = domain.free_seats.pop() {
            domain.seats[seat as usize] = member;
            return Some(seat);
        }
        let seat = u32::try_from(domain.seats.len()).ok().filter(|&seat| seat < MAX_SEATS)?;
        domain.seats.push(member);
        Some(seat)
    }

    /// The member in each seat of each domain.
    pub(crate) fn seats(&self) -> BTreeMap<u64, Vec<u32>> {
        self.domains.iter().map(|(_, domain)| (domain.id, domain.seats.clone())).collect()
    }

    /// Frees the seats of members that no reader can take for somebody else's any more.
    fn free_seats(&mut self) {
        if self.left_seats.is_empty() {
            return;
        }
        let until = self.store.look();
        while let Some(&(stamp, at, id, seat)) = self.left_seats.front()
            && stamp < until
        {
            self.left_seats.pop_front();
            if let Some(domain) = self.domains.get_mut(at).filter(|domain| domain.id == id) {
                domain.free_seats.push(seat);
            }
        }
    }

    fn ensure_domain(&mut self, pins: &Pins<'_>, tenant: &str, model: &str) -> Option<Arc<Domain>> {
        if let Some(domain) = pins.tables.domain(tenant, model, &pins.names) {
            return Some(Arc::clone(domain));
        }
        let at = self.domains.next()?;
        let tenant = self.ensure_tenant(pins, tenant)?;
        let sums = (!tenant.reserved).then(|| ensure_model(pins, model));
        let model = sums.as_ref().map_or_else(|| model.into(), |sums| Arc::clone(&sums.name));
        let domain = Arc::new(Domain {
            id: self.new_id(),
            at,
            tenant: Arc::clone(&tenant),
            model,
            entries: Count::default(),
            prefixes: Count::default(),
        });
        let roster = Arc::new(Roster::default());
        let node = Node::Domain(Arc::clone(&domain), Arc::clone(&roster));
        pins.name(Kind::Domain, tenant.id, &domain.model, node);
        if let Some(sums) = &sums {
            sums.domains.add(1);
        }
        let (seats, free_seats) = (Vec::new(), Vec::new());
        self.domains.insert(DomainState {
            id: domain.id,
            roster,
            model: sums,
            members: 0,
            partitions: 0,
            seats,
            free_seats,
        })?;
        self.tenants[tenant.at].domains += 1;
        Some(domain)
    }

    fn ensure_tenant(&mut self, pins: &Pins<'_>, name: &str) -> Option<Arc<Tenant>> {
        if let Some(tenant) = pins.tables.tenant(name, &pins.names) {
            return Some(Arc::clone(tenant));
        }
        let at = self.tenants.next()?;
        let tenant = Arc::new(Tenant {
            id: self.new_id(),
            at,
            name: name.into(),
            reserved: name == RESERVED_TENANT,
            entries: Count::default(),
            prefixes: Count::default(),
        });
        self.tenants.insert(TenantState {
            shared: Arc::clone(&tenant),
            ttl: TtlClass::of(&self.policies, name),
            is_lfu: settings::is_lfu(&self.policies, name),
            domains: 0,
            prefixes: None,
            retired: BTreeSet::new(),
        })?;
        pins.name(Kind::Tenant, 0, &tenant.name, Node::Tenant(Arc::clone(&tenant)));
        Some(tenant)
    }

    /// A partition of a domain, made if need be. The caller gives a new one an entry.
    pub(crate) fn ensure_partition(
        &mut self,
        pins: &Pins<'_>,
        domain: &Arc<Domain>,
        scheme: &str,
        adapter: &str,
    ) -> Option<Arc<Partition>> {
        if let Some(last) = &self.last_partition
            && Arc::ptr_eq(&last.domain, domain)
            && is_same(&last.scheme, scheme)
            && is_same(&last.adapter, adapter)
        {
            return Some(Arc::clone(last));
        }
        let partition = self.find_partition(pins, domain, scheme, adapter)?;
        self.last_partition = Some(Arc::clone(&partition));
        Some(partition)
    }

    fn find_partition(
        &mut self,
        pins: &Pins<'_>,
        domain: &Arc<Domain>,
        scheme: &str,
        adapter: &str,
    ) -> Option<Arc<Partition>> {
        let scope = match pins.tables.scope(domain.id, scheme, &pins.names) {
            Some(scope) => Arc::clone(scope),
            None => self.new_scope(pins, domain, scheme)?,
        };
        if let Some(partition) = pins.tables.partition(scope.id, adapter, &pins.names) {
            return Some(Arc::clone(partition));
        }
        let at = self.partitions.next()?;
        let partition = Arc::new(Partition {
            id: self.new_id(),
            at,
            domain: Arc::clone(domain),
            scheme: Arc::clone(&scope.scheme),
            adapter: adapter.into(),
        });
        pins.name(Kind::Partition, scope.id, &partition.adapter, Node::Partition(Arc::clone(&partition)));
        self.partitions.insert(PartitionState {
            shared: Arc::clone(&partition),
            scope: scope.at,
            base: digest::partition(scheme, adapter),
            entries: 0,
        })?;
        self.scopes[scope.at].partitions += 1;
        self.domains[domain.at].partitions += 1;
        Some(partition)
    }

    fn new_scope(&mut self, pins: &Pins<'_>, domain: &Domain, scheme: &str) -> Option<Arc<Scope>> {
        let at = self.scopes.next()?;
        let scope = Arc::new(Scope {
            id: self.new_id(),
            at,
            scheme: scheme.into(),
            entries: Count::default(),
            serving: Default::default(),
            servers: Count::default(),
        });
        pins.name(Kind::Scope, domain.id, &scope.scheme, Node::Scope(Arc::clone(&scope)));
        self.scopes.insert(ScopeState { shared: Arc::clone(&scope), domain: domain.id, partitions: 0 })?;
        Some(scope)
    }

    /// Forgets a partition without entries, and its scope if that was the last.
    pub(crate) fn drop_partition(&mut self, pins: &Pins<'_>, at: u32) {
        let Some(partition) = self.partitions.remove(at) else { return };
        self.last_partition = None;
        if let Some(domain) = self.domains.get_mut(partition.shared.domain.at) {
            domain.partitions -= 1;
        }
        let scope = &mut self.scopes[partition.scope];
        pins.forget(Kind::Partition, scope.shared.id, &partition.shared.adapter);
        scope.partitions -= 1;
        if scope.partitions == 0 {
            pins.forget(Kind::Scope, scope.domain, &scope.shared.scheme);
            self.scopes.remove(partition.scope);
        }
    }

    /// Takes a member's name away: it has nothing left, or it is being retired.
    pub(crate) fn unname_member(&mut self, pins: &Pins<'_>, member: &Member) {
        self.last_member = None;
        pins.forget(Kind::Member, member.domain.id, &member.replica);
        self.domains[member.domain.at].roster.seat(member.seat, None);
        self.totals.members -= 1;
        let (tenant, model) = (&member.domain.tenant, &member.domain.model);
        if !tenant.reserved {
            self.totals.bytes -= formula::member_bytes(&tenant.name, model, &member.replica);
        }
    }

    /// Forgets a member without entries and stats that has no name any more, and what it was the last of.
    pub(crate) fn drop_member(&mut self, pins: &Pins<'_>, at: u32) {
        let Some(member) = self.members.remove(at) else { return };
        let shared = &member.shared.domain;
        self.left_seats.push_back((self.store.stamp(), shared.at, shared.id, member.shared.seat));
        let domain = &mut self.domains[shared.at];
        domain.members -= 1;
        if domain.members > 0 {
            return;
        }
        pins.forget(Kind::Domain, shared.tenant.id, &shared.model);
        if let Some(model) = &domain.model {
            model.domains.sub(1);
            if model.domains.get() == 0 {
                pins.forget(Kind::Model, 0, &shared.model);
            }
        }
        self.domains.remove(shared.at);
        let tenant = &mut self.tenants[shared.tenant.at];
        tenant.domains -= 1;
        if tenant.domains == 0 {
            pins.forget(Kind::Tenant, 0, &shared.tenant.name);
            self.tenants.remove(shared.tenant.at);
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
