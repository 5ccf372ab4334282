//! What must hold, judged against the committed log: the first node that applies an index says what it holds, all
//! others must agree, and a model of sessions, updates and evictions, small enough to be read, says what follows.

use super::executor;
use super::node::Member;
use super::world::{Invariant, WALL_AT_START_US, World};
use crate::record;
use openraft::async_runtime::watch::WatchReceiver;
use prefixd_index::command::{Batch, ClusterMeta, Command, Stamped};
use prefixd_index::delta::{Delta, EventKind};
use prefixd_index::view::LookupScratch;
use prefixd_index::{LookupRequest, Prompt, RankConfig};
use prefixd_storage::LogPos;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Hashes that clients report.
pub(super) const HASHES: u8 = 6;
/// Tokens of an entry: these and the number of its update, so that a lookup tells which update it shows.
pub(super) const BASE_TOKENS: i32 = 100;
/// Between looks at everything.
const LOOK: Duration = Duration::from_millis(80);
/// Looks after which a node that has applied nothing new is compared again.
const IDLE_LOOKS: u64 = 12;
/// How near to its expiry an entry may be shown or not.
const EXPIRY_SLACK_US: u64 = 2_000;

/// What a client does.
#[derive(Clone, Debug)]
pub(super) enum Deed {
    Add(Vec<u8>),
    Evict(u8),
    Clear,
}

/// An update as its client knows it.
struct Issued {
    client: u64,
    /// The process that took it in.
    stream: u32,
    effects: Vec<u64>,
}

/// What a key holds by the log.
#[derive(Copy, Clone, Debug)]
struct Shown {
    update: u64,
    seen_us: u64,
}

/// All of it.
pub(super) struct Truth {
    nodes: u64,
    /// As the log has it: clients are served before the first leader has said how long entries live.
    ttl_us: u64,
    committed: BTreeMap<u64, (u64, u64)>,
    digests: BTreeMap<u64, u128>,
    times: BTreeMap<u64, u64>,
    leaders: BTreeMap<u64, u64>,
    clocks: BTreeMap<u32, u64>,
    /// The index at which the view of a process was compared.
    compared: BTreeMap<u32, u64>,
    time_us: u64,
    sessions: BTreeMap<u128, u64>,
    entries: BTreeMap<(u64, u8), Shown>,
    issued: BTreeMap<u64, Issued>,
    last_of_stream: BTreeMap<(u64, u32), u64>,
}

pub(super) fn replica(client: u64) -> String {
    format!("r{client}")
}

pub(super) fn tenant(client: u64) -> &'static str {
    ["t0", "t1"][usize::try_from(client % 2).unwrap()]
}

fn client_of(replica: &str) -> u64 {
    replica[1..].parse().unwrap()
}

pub(super) fn hash_bytes(hash: u8) -> Vec<u8> {
    vec![hash; 8]
}

impl Truth {
    pub(super) fn new(nodes: u64) -> Self {
        Self {
            nodes,
            ttl_us: ClusterMeta::default().default_ttl_us,
            committed: BTreeMap::new(),
            digests: BTreeMap::new(),
            times: BTreeMap::new(),
            leaders: BTreeMap::new(),
            clocks: BTreeMap::new(),
            compared: BTreeMap::new(),
            time_us: 0,
            sessions: BTreeMap::new(),
            entries: BTreeMap::new(),
            issued: BTreeMap::new(),
            last_of_stream: BTreeMap::new(),
        }
    }

    /// The last index that anybody has applied.
    pub(super) fn latest(&self) -> u64 {
        self.committed.last_key_value().map_or(0, |(index, _)| *index)
    }

    /// A node speaks as the leader of a term.
    pub(super) fn leads(&mut self, world: &World, term: u64, node: u64) {
        let known = *self.leaders.entry(term).or_insert_with(|| {
            world.count("leader", node, (term, 0));
            node
        });
        world.holds(Invariant::OneLeader, known == node, || format!("{known} and {node} both lead term {term}"));
    }

    /// A node is about to apply an entry.
    pub(super) fn commit(&mut self, world: &World, node: u64, pos: LogPos, body: &[u8]) {
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        let held = (pos.term, hasher.finish());
        world.note("apply", node, (pos.index, held.1));
        if let Some(known) = self.committed.get(&pos.index) {
            world.holds(Invariant::Committed, *known == held, || {
                format!(
                    "node {node} applies index {} of term {}, others had another of term {}",
                    pos.index, pos.term, known.0
                )
            });
            return;
        }
        if world.plan.sees_disks {
            let kept = world.disks.iter().filter(|disk| disk.keeps(pos)).count() as u64;
            world.holds(Invariant::OnQuorum, kept > self.nodes / 2, || {
                format!("node {node} applies {pos:?}, which {kept} disks of {} hold", self.nodes)
            });
        }
        let latest = self.latest();
        world.holds(Invariant::Committed, latest == 0 || pos.index == latest + 1, || {
            format!("node {node} applies index {} while {latest} was the last", pos.index)
        });
        self.committed.insert(pos.index, held);
        if let Ok(stamped) = record::decode_command(body) {
            self.apply(world, pos.index, &stamped);
        }
    }

    fn apply(&mut self, world: &World, index: u64, stamped: &Stamped) {
        self.time_us = self.time_us.max(stamped.stamp_us);
        match &stamped.command {
            Command::Deltas(batches) => {
                for batch in batches {
                    let last = self.sessions.get(&batch.session).copied();
                    if last.is_some_and(|last| batch.sequence <= last) {
                        world.count("repeat skipped", 0, (index, batch.sequence));
                        continue;
                    }
                    self.sessions.insert(batch.session, batch.sequence);
                    self.take(world, index, batch);
                }
            }
            Command::Sweep => world.count("sweep", 0, (index, 0)),
            Command::Audit(_) => world.count("audit", 0, (index, 0)),
            Command::ClusterMeta(meta) => self.ttl_us = meta.default_ttl_us,
            _ => {}
        }
    }

    fn take(&mut self, world: &World, index: u64, batch: &Batch) {
        for delta in &batch.deltas {
            match delta {
                Delta::Update(update) => {
                    let client = client_of(&update.replica);
                    let id = update.stats.map_or(0, |stats| stats.cache_memory_bytes.unsigned_abs());
                    let hashes: Vec<u8> = update
                        .entries
                        .iter()
                        .flat_map(|entry| {
                            let exact = entry.exact.iter().map(|exact| exact.hash[0]);
                            let chain = entry.chain.iter().flat_map(|chain| chain.blocks().map(|(hash, _)| hash[0]));
                            exact.chain(chain).collect::<Vec<_>>()
                        })
                        .collect();
                    self.effect(world, index, id, &hashes);
                    for hash in hashes {
                        self.entries.insert((client, hash), Shown { update: id, seen_us: self.time_us });
                    }
                }
                Delta::Event(event) => {
                    let client = client_of(&event.replica);
                    match &event.kind {
                        EventKind::PrefixEvicted { hash, .. } => {
                            self.entries.remove(&(client, hash[0]));
                        }
                        EventKind::AllCleared => self.entries.retain(|(holder, _), _| *holder != client),
                        EventKind::ReplicaUpdated { .. } => {}
                    }
                }
            }
        }
    }

    /// An update takes effect: for the first time, and behind the earlier ones of its stream.
    fn effect(&mut self, world: &World, index: u64, id: u64, hashes: &[u8]) {
        let Some(issued) = self.issued.get_mut(&id) else { return };
        let client = issued.client;
        issued.effects.push(index);
        let is_repeated = issued.effects.len() > 1;
        let last = self.last_of_stream.entry((client, issued.stream)).or_default();
        let is_late = id < *last;
        let behind = *last;
        *last = behind.max(id);
        if !is_repeated && !is_late {
            return;
        }
        let gone = hashes.iter().find(|hash| !self.entries.contains_key(&(client, **hash)));
        let said =
            || format!("update {id} of client {client} takes effect at {:?}, after {behind} did", issued.effects);
        if let Some(gone) = gone {
            let said = format!("{}; hash {gone} was evicted in between", said());
            world.broke(Invariant::Resurrected, said);
        } else if world.plan.sees_disks {
            world.broke(Invariant::Once, said());
        }
    }

    /// A node's digest after an index.
    pub(super) fn digest(&mut self, world: &World, node: u64, index: u64, digest: u128) {
        let known = *self.digests.entry(index).or_insert(digest);
        world.holds(Invariant::Digest, known == digest, || {
            format!("node {node} has {digest:032x} at {index}, the first there had {known:032x}")
        });
    }

    /// The time of a node's state after an index.
    pub(super) fn time(&mut self, world: &World, node: u64, index: u64, time_us: u64) {
        let known = *self.times.entry(index).or_insert(time_us);
        world.holds(Invariant::Time, known == time_us, || {
            format!("node {node} is at {time_us} us at index {index}, the first there was at {known}")
        });
        let elapsed = u64::try_from(executor::elapsed().as_micros()).unwrap();
        let latest = WALL_AT_START_US + elapsed + elapsed / 80 + 200_000;
        world.holds(Invariant::Time, time_us <= latest, || {
            format!("node {node} is at {time_us} us at index {index}, {} us ahead", time_us - latest)
        });
    }

    /// A client sends an update to a node.
    pub(super) fn issue(&mut self, client: u64, stream: u32) -> u64 {
        let id = self.issued.len() as u64 + 1;
        self.issued.insert(id, Issued { client, stream, effects: Vec::new() });
        id
    }

    /// A node acknowledges an update.
    pub(super) fn acknowledge(&mut self, world: &World, id: u64, index: u64) {
        let effects = &self.issued[&id].effects;
        world.holds(Invariant::Acknowledged, effects.iter().any(|at| *at <= index), || {
            format!("update {id} was acknowledged at {index}; the log has it at {effects:?}")
        });
    }

    /// What a node that has applied everything shows must be what the log says.
    pub(super) fn compare(&mut self, world: &World, member: &Member, clients: u64, looks: u64) {
        let latest = self.latest();
        let is_idle = !looks.is_multiple_of(IDLE_LOOKS) && self.compared.get(&member.group) == Some(&latest);
        if member.core.published.applied_index() != latest || is_idle {
            return;
        }
        self.compared.insert(member.group, latest);
        let now_us = member.core.published.now_us();
        let view = member.core.published.view.load_full();
        let mut scratch = LookupScratch::default();
        for hash in 0..HASHES {
            for asked in 0..clients.min(2) {
                let shown = lookup(&view, tenant(asked), hash, now_us, &mut scratch);
                for client in (asked..clients).step_by(2) {
                    let held = self.entries.get(&(client, hash));
                    self.judge(world, member, (client, hash), held, shown.get(&client).copied(), now_us);
                }
            }
        }
        world.note("compared", member.id, (self.latest(), 0));
    }

    fn judge(
        &self,
        world: &World,
        member: &Member,
        (client, hash): (u64, u8),
        held: Option<&Shown>,
        shown: Option<i32>,
        now_us: u64,
    ) {
        let age_us = held.map_or(0, |held| now_us.saturating_sub(held.seen_us));
        if held.is_some() && age_us.abs_diff(self.ttl_us) < EXPIRY_SLACK_US {
            return;
        }
        let expected = held.filter(|_| age_us < self.ttl_us).map(|held| tokens(held.update));
        let may_be_evicted = world.shape.max_entries > 0 && shown.is_none();
        world.holds(Invariant::Visible, shown == expected || may_be_evicted, || {
            format!(
                "node {} at index {} shows {shown:?} for hash {hash} of client {client}, the log says {held:?}, \
                 {age_us} us ago",
                member.id,
                self.latest()
            )
        });
    }

    fn clock(&mut self, world: &World, member: &Member) {
        let now_us = member.core.published.now_us();
        let last = self.clocks.entry(member.group).or_default();
        world.holds(Invariant::Time, now_us >= *last, || {
            format!("node {}'s cluster time went from {last} to {now_us} us", member.id)
        });
        *last = now_us;
    }
}

/// The tokens of an update's entries.
pub(super) fn tokens(update: u64) -> i32 {
    BASE_TOKENS + i32::try_from(update).unwrap()
}

/// Which clients' replicas a lookup shows for a hash, with their tokens.
fn lookup(
    view: &prefixd_index::View,
    tenant: &str,
    hash: u8,
    now_us: u64,
    scratch: &mut LookupScratch,
) -> BTreeMap<u64, i32> {
    let config = RankConfig {
        minimum_matched_tokens: 0,
        routing_floor_score: 0.0,
        tenant_hot_max_age_us: 0,
        affinity_routing: false,
        ..RankConfig::default()
    };
    let hash = hash_bytes(hash);
    let request = LookupRequest::<&[u8]> {
        tenant,
        model: "m",
        scheme: "s",
        adapter: "",
        prefix_hash: &hash,
        prefix_token_count: 0,
        block_hashes: &[],
        block_token_counts: &[],
        token_ids: &[],
        prompt: Prompt::Absent,
        ttft_ms: 0,
    };
    let answer = view.lookup(&request, now_us, &config, scratch);
    answer.scores.iter().map(|score| (client_of(&score.replica), score.matched_tokens)).collect()
}

/// Looks at all nodes again and again.
pub(super) async fn watch(world: Arc<World>, clients: u64) {
    for looks in 1u64.. {
        executor::sleep(LOOK).await;
        for member in world.members() {
            let mut truth = world.truth.lock().unwrap();
            let (state, term, order) = {
                let metrics = member.raft.metrics();
                let metrics = metrics.borrow_watched();
                let index = |id: &Option<crate::types::LogId>| id.as_ref().map_or(0, |id| id.index());
                let order = [
                    index(&metrics.purged),
                    index(&metrics.snapshot),
                    index(&metrics.last_applied),
                    index(&metrics.local_committed),
                ];
                (metrics.state, metrics.current_term, order)
            };
            if state == openraft::ServerState::Leader {
                truth.leads(&world, term, member.id);
            }
            world.holds(Invariant::Positions, order.is_sorted(), || {
                format!("node {}: purged, snapshot, applied, committed: {order:?}", member.id)
            });
            truth.clock(&world, &member);
            truth.compare(&world, &member, clients, looks);
        }
    }
}
