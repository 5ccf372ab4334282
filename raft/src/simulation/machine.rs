//! openraft's state machine over the real index, with snapshots on a simulated disk. Records, manifests and digests of
//! snapshots are made and checked by the real code.

use super::SimConfig;
use super::disk::{Disk, Taken};
use super::executor;
use super::world::{Plant, World};
use crate::core::{Core, Cut, CutError, Start};
use crate::generation;
use crate::record;
use crate::types::{Entry, LogId, Payload, Proposal, SnapshotMeta, StoredMembership, log_id, log_pos};
use futures::{Stream, StreamExt};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RaftSnapshotBuilder};
use prefixd_storage::LogPos;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The cluster's id; there is one.
pub(super) const CLUSTER: u128 = 0xC1;
/// Entries that one slice of a snapshot walks.
const SLICE_ENTRIES: usize = 3;
/// After a snapshot that could not be written.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Entries that may change under a snapshot in the making.
const PREIMAGE_ENTRIES: usize = 16;

/// The state machine of one node.
#[derive(Clone)]
pub(super) struct SimMachine {
    pub(super) node: u64,
    pub(super) core: Core,
    pub(super) disk: Arc<Disk>,
    pub(super) world: Arc<World>,
    pub(super) hash_seed: u64,
}

/// Where a node starts from when it was given a snapshot.
pub(super) fn start_from(taken: &Taken, hash_seed: u64) -> io::Result<Start> {
    let index = generation::load(taken.records(), &taken.manifest, hash_seed)?;
    let meta = generation::meta(&taken.manifest)?;
    Ok(Start {
        index,
        applied: meta.last_log_id.as_ref().map(log_pos),
        membership_at: meta.last_membership.log_id().as_ref().map(log_pos),
        membership: meta.last_membership.membership().clone(),
    })
}

impl SimMachine {
    /// The planted bug: this node's own clock goes into the state.
    fn misread_clock(&self, entry: &mut Entry) {
        if self.world.plan.plant == Plant::ClockInApply
            && let Payload::Normal(proposal) = &entry.payload
            && let Ok(mut stamped) = record::decode_command(&proposal.0)
        {
            stamped.stamp_us = self.world.wall_us(self.node);
            entry.payload = Payload::Normal(Proposal(record::encode_command(&stamped).unwrap()));
        }
    }

    fn snapshot(&self, taken: Arc<Taken>) -> io::Result<SnapshotOf<SimConfig, Arc<Taken>>> {
        Ok(openraft::Snapshot { meta: generation::meta(&taken.manifest)?, snapshot: taken })
    }
}

impl RaftStateMachine<SimConfig> for SimMachine {
    type SnapshotData = Arc<Taken>;
    type SnapshotBuilder = SimBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let summary = self.core.published.summary();
        let membership = StoredMembership::new(summary.membership_at.map(log_id), summary.membership);
        Ok((summary.applied.map(log_id), membership))
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<SimConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let applied: Mutex<Vec<LogPos>> = Mutex::default();
        let tapped = entries.map(|item| {
            let (mut entry, responder) = item?;
            let pos = log_pos(&entry.log_id);
            self.world.truth.lock().unwrap().commit(&self.world, self.node, pos, &record::body(&entry.payload)?);
            self.misread_clock(&mut entry);
            applied.lock().unwrap().push(pos);
            Ok((entry, responder))
        });
        crate::machine::apply::<SimConfig, _>(&self.core, tapped).await?;
        let mut truth = self.world.truth.lock().unwrap();
        for pos in applied.into_inner().unwrap() {
            if let Some(digest) = self.core.published.digest_at(pos.index) {
                truth.digest(&self.world, self.node, pos.index, digest);
            }
        }
        let published = self.core.published.view.load().published();
        truth.time(&self.world, self.node, published.applied_index, published.time_us);
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SimBuilder {
        let cut = self.core.begin_cut(PREIMAGE_ENTRIES).await;
        SimBuilder { machine: self.clone(), cut: Some(cut) }
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMeta, taken: Arc<Taken>) -> Result<(), io::Error> {
        let start = start_from(&taken, self.hash_seed)?;
        if !self.disk.generations().first().is_some_and(|latest| Arc::ptr_eq(latest, &taken)) {
            self.disk.publish(&self.world, taken.clone()).await?;
        }
        self.core.install(start).await?;
        self.world.count("snapshot installed", self.node, (taken.last(), 0));
        let mut truth = self.world.truth.lock().unwrap();
        truth.digest(&self.world, self.node, taken.last(), self.core.published.summary().digest);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<SimConfig, Arc<Taken>>>, io::Error> {
        let latest = self.disk.generations().first().cloned();
        latest.map(|taken| self.snapshot(taken)).transpose()
    }
}

/// Takes one snapshot beside apply.
pub(super) struct SimBuilder {
    machine: SimMachine,
    cut: Option<io::Result<Cut>>,
}

impl SimBuilder {
    async fn records(&self, cut: &Cut) -> io::Result<Option<Vec<Vec<u8>>>> {
        let mut records = Vec::new();
        loop {
            let slice = match self.machine.core.slice_soon(cut, SLICE_ENTRIES).await {
                Ok(slice) => slice,
                Err(CutError::Overflow) => return Ok(None),
                Err(error) => return Err(io::Error::other(format!("{error:?}"))),
            };
            for record in &slice.records {
                records.push(generation::encode_record(record)?);
            }
            if slice.done {
                return Ok(Some(records));
            }
            executor::sleep(executor::between(Duration::ZERO, Duration::from_millis(4))).await;
        }
    }
}

impl RaftSnapshotBuilder<SimConfig> for SimBuilder {
    type SnapshotData = Arc<Taken>;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<SimConfig, Arc<Taken>>, io::Error> {
        let (world, node) = (self.machine.world.clone(), self.machine.node);
        let mut cut = self.cut.take();
        let mut preimage_entries = PREIMAGE_ENTRIES;
        loop {
            let begun = match cut.take() {
                Some(begun) => begun?,
                None => self.machine.core.begin_cut(preimage_entries).await?,
            };
            let records = self.records(&begun).await;
            self.machine.core.end_cut(&begun).await;
            if self.machine.core.life.is_cancelled() {
                return Err(io::Error::other("this Raft has ended"));
            }
            let records = match records {
                Ok(Some(records)) => records,
                Ok(None) => {
                    world.count("snapshot overtaken", node, (0, 0));
                    preimage_entries *= 2;
                    continue;
                }
                // A snapshot was installed amid the walk, which ended it: another is begun, as the product does it.
                Err(_) => {
                    executor::sleep(RETRY_PAUSE).await;
                    continue;
                }
            };
            let manifest = generation::manifest(CLUSTER, &begun, records.len() as u64)?;
            let taken = Arc::new(Taken { manifest, records });
            generation::check(taken.records(), begun.digest)?;
            if self.machine.disk.publish(&world, taken.clone()).await.is_err() {
                // The log is whole, so the node goes on and tries again.
                executor::sleep(RETRY_PAUSE).await;
                continue;
            }
            world.count("snapshot taken", node, (taken.last(), 0));
            return self.machine.snapshot(taken);
        }
    }
}
