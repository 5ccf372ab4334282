//! The named things of the index as readers see them: tenants, models, (tenant, model) domains, scopes, adapter
//! partitions, and the replicas in a domain. The writer keeps the counts; `at` is the writer's own slot for each.

use super::pressure::Pressure;
use super::tables::{Kind, NameRef, Tables};
use crate::delta::Stats;
use arc_swap::{ArcSwap, ArcSwapOption};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a name stands for.
#[derive(Clone)]
pub(crate) enum Node {
    Tenant(Arc<Tenant>),
    Model(Arc<Model>),
    Domain(Arc<Domain>, Arc<Roster>),
    Scope(Arc<Scope>),
    Partition(Arc<Partition>),
    Member(Arc<Member>),
}

/// A count that one thread writes and others read.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// For the single writer alone.
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    /// For the single writer alone.
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// For the single writer alone.
    pub(crate) fn sub(&self, n: u64) {
        self.0.store(self.get().saturating_sub(n), Ordering::Relaxed);
    }
}

/// True for equal names. Names are short: a call for each costs more than comparing them here.
#[inline]
pub(crate) fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // The last eight bytes overlap with those before, and once they are the same it is up to what is before them.
    match (a.split_last_chunk::<8>(), b.split_last_chunk::<8>()) {
        (Some((a_head, a_tail)), Some((b_head, b_tail))) => {
            let (a_parts, b_parts) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
            let odd = |a: &[u8; 8], b: &[u8; 8]| u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b);
            a_head.len() == b_head.len()
                && a_parts.iter().zip(b_parts).fold(odd(a_tail, b_tail), |all, (a, b)| all | odd(a, b)) == 0
        }
        (None, None) => a.len() == b.len() && a.iter().zip(b).fold(0, |odd, (a, b)| odd | (a ^ b)) == 0,
        _ => false,
    }
}

/// A tenant that holds entries or stats.
pub(crate) struct Tenant {
    pub(crate) id: u64,
    pub(crate) at: u32,
    pub(crate) name: Arc<str>,
    pub(crate) reserved: bool,
    /// Visible entries.
    pub(crate) entries: Count,
    /// Distinct prefixes, those of dead entries included.
    pub(crate) prefixes: Count,
}

/// A model that some tenant holds entries or stats of.
pub(crate) struct Model {
    pub(crate) name: Arc<str>,
    /// How many domains there are of it, the reserved tenant's left out.
    pub(crate) domains: Count,
    /// Distinct prefixes over all tenants but the reserved one.
    pub(crate) prefixes: Count,
}

/// A (tenant, model).
pub(crate) struct Domain {
    pub(crate) id: u64,
    pub(crate) at: u32,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) model: Arc<str>,
    /// Visible entries.
    pub(crate) entries: Count,
    /// Distinct prefixes, those of dead entries included.
    pub(crate) prefixes: Count,
}

/// The members of a domain. Apart from the domain, which members refer back to.
#[derive(Default)]
pub(crate) struct Roster {
    /// Those with stats, sorted by replica.
    pub(crate) reporting: ArcSwap<Vec<Arc<Member>>>,
    /// Those that aren't retired.
    pub(crate) seats: ArcSwap<Seats>,
    /// How many have stats. While nobody has, lookups needn't ask anybody.
    pub(crate) reporters: Count,
}

/// The members of a domain that aren't retired, by seat and by replica.
#[derive(Clone, Default)]
pub(crate) struct Seats {
    /// Ascending by replica: equal scores go by that, and comparing positions in here is cheaper.
    seated: Vec<Seated>,
    /// Of each seat, where its member is in `seated`, or `NOBODY`.
    orders: Vec<u32>,
}

/// A member in its seat.
#[derive(Clone)]
pub(crate) struct Seated {
    pub(crate) member: Arc<Member>,
    /// The member's, one step nearer.
    pub(crate) replica: Arc<str>,
}

/// What an empty seat has for an order.
const NOBODY: u32 = u32::MAX;

impl Seats {
    /// How many are seated.
    pub(crate) fn len(&self) -> usize {
        self.seated.len()
    }

    /// Of each seat, how many of the seated have a smaller replica id than the one in it; more than there are if it is empty.
    #[inline]
    pub(crate) fn orders(&self) -> &[u32] {
        &self.orders
    }

    /// The same of one seat, `None` if it is empty.
    fn order(&self, seat: u32) -> Option<u32> {
        self.orders.get(seat as usize).copied().filter(|&order| order != NOBODY)
    }

    /// Who has an order.
    #[inline]
    pub(crate) fn at(&self, order: u32) -> Option<&Seated> {
        self.seated.get(order as usize)
    }

    /// Who is in a seat.
    pub(crate) fn in_seat(&self, seat: u32) -> Option<&Seated> {
        self.at(self.order(seat)?)
    }

    fn put(&mut self, seat: u32, member: Option<&Arc<Member>>) {
        let at = seat as usize;
        if let Some(gone) = self.order(seat) {
            self.seated.remove(gone as usize);
            self.orders[at] = NOBODY;
            let behind = self.orders.iter_mut().filter(|order| **order != NOBODY && **order > gone);
            behind.for_each(|order| *order -= 1);
        }
        if let Some(member) = member {
            // There are fewer seats than 32 bits count.
            let new = self.seated.partition_point(|held| held.replica < member.replica) as u32;
            let replica = Arc::clone(&member.replica);
            self.seated.insert(new as usize, Seated { member: Arc::clone(member), replica });
            let behind = self.orders.iter_mut().filter(|order| **order != NOBODY && **order >= new);
            behind.for_each(|order| *order += 1);
            if self.orders.len() <= at {
                self.orders.resize(at + 1, NOBODY);
            }
            self.orders[at] = new;
        }
        while self.orders.last() == Some(&NOBODY) {
            self.orders.pop();
        }
    }
}

impl Roster {
    /// Says who is in a seat. For the single writer alone.
    pub(crate) fn seat(&self, seat: u32, member: Option<&Arc<Member>>) {
        let mut seats = (**self.seats.load()).clone();
        seats.put(seat, member);
        self.seats.store(Arc::new(seats));
    }
}

/// A (tenant, model, hash scheme).
pub(crate) struct Scope {
    pub(crate) id: u64,
    pub(crate) at: u32,
    pub(crate) scheme: Arc<str>,
    /// Visible entries.
    pub(crate) entries: Count,
    /// The members with a visible entry here, sorted by replica.
    pub(crate) serving: ArcSwap<Vec<Arc<Member>>>,
    /// How many these are.
    pub(crate) servers: Count,
}

/// A (tenant, model, hash scheme, adapter).
pub(crate) struct Partition {
    pub(crate) id: u64,
    pub(crate) at: u32,
    pub(crate) domain: Arc<Domain>,
    pub(crate) scheme: Arc<str>,
    pub(crate) adapter: Arc<str>,
}

impl Partition {
    /// The order of keys, as far as a partition of the same tenant decides it.
    pub(crate) fn key_order(&self, other: &Self) -> std::cmp::Ordering {
        if std::ptr::eq(self, other) {
            return std::cmp::Ordering::Equal;
        }
        let models = self.domain.model.cmp(&other.domain.model);
        models.then_with(|| self.scheme.cmp(&other.scheme)).then_with(|| self.adapter.cmp(&other.adapter))
    }
}

/// A replica in a domain, from its first report until it is cleared or has nothing left. Cleared ones live on unseen
/// until their entries are purged; a new report makes a new member.
pub(crate) struct Member {
    pub(crate) at: u32,
    /// Its number in the domain, by which spans name it.
    pub(crate) seat: u32,
    pub(crate) domain: Arc<Domain>,
    pub(crate) replica: Arc<str>,
    /// True once cleared: its entries are dead.
    pub(crate) retired: AtomicBool,
    /// Its stats, if it reported any.
    pub(crate) stats: ArcSwapOption<Report>,
    /// What lookups need of them.
    pub(crate) pressure: Pressure,
}

impl Member {
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }
}

/// A stats payload with its times.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Report {
    pub(crate) stats: Stats,
    pub(crate) payload_us: u64,
    pub(crate) liveness_us: u64,
}

macro_rules! typed_lookup {
    ($name:ident, $kind:ident, $type:ty) => {
        pub(crate) fn $name<'g>(
            &self,
            parent: u64,
            name: &str,
            guard: &'g impl papaya::Guard,
        ) -> Option<&'g Arc<$type>> {
            match self.names.get(&NameRef { kind: Kind::$kind, parent, name }, guard) {
                Some(Node::$kind(node)) => Some(node),
                _ => None,
            }
        }
    };
}

impl Tables {
    typed_lookup!(scope, Scope, Scope);
    typed_lookup!(partition, Partition, Partition);
    typed_lookup!(member, Member, Member);

    pub(crate) fn tenant<'g>(&self, name: &str, guard: &'g impl papaya::Guard) -> Option<&'g Arc<Tenant>> {
        match self.names.get(&NameRef { kind: Kind::Tenant, parent: 0, name }, guard) {
            Some(Node::Tenant(tenant)) => Some(tenant),
            _ => None,
        }
    }

    pub(crate) fn model<'g>(&self, name: &str, guard: &'g impl papaya::Guard) -> Option<&'g Arc<Model>> {
        match self.names.get(&NameRef { kind: Kind::Model, parent: 0, name }, guard) {
            Some(Node::Model(model)) => Some(model),
            _ => None,
        }
    }

    /// The domain of a tenant's name and a model's.
    pub(crate) fn domain<'g>(
        &self,
        tenant: &str,
        model: &str,
        guard: &'g impl papaya::Guard,
    ) -> Option<&'g Arc<Domain>> {
        self.roster(tenant, model, guard).map(|(domain, _)| domain)
    }

    /// A domain with its members.
    pub(crate) fn roster<'g>(
        &self,
        tenant: &str,
        model: &str,
        guard: &'g impl papaya::Guard,
    ) -> Option<(&'g Arc<Domain>, &'g Arc<Roster>)> {
        let tenant = self.tenant(tenant, guard)?;
        match self.names.get(&NameRef { kind: Kind::Domain, parent: tenant.id, name: model }, guard) {
            Some(Node::Domain(domain, roster)) => Some((domain, roster)),
            _ => None,
        }
    }
}
