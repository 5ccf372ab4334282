//! This disk's word: the identity and the promise on it, and the one place where either changes.
//!
//! Every change is made under one lock, durable before it is visible, and only if the disk still stands where the
//! decision saw it: a promise made to a peer between a look and an act makes the act void. After a failed write the
//! content of the disk is unknown, so nothing is written any more and the process must end.

use super::decide::{DiskState, Place};
use super::peers::{PromiseAnswer, Standing};
use super::promise::Promise;
use crate::face::BootstrapMode;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Why the disk could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the identity or the promise of this node can't be kept: {0}")]
pub struct DiskFailure(pub String);

impl DiskFailure {
    /// From what the disk's own error says.
    pub fn new(error: impl fmt::Display) -> DiskFailure {
        DiskFailure(error.to_string())
    }
}

/// The identity file and the promise file. Calls block for an fsync or two; each write is durable on return.
pub trait Disk: Send + Sync + 'static {
    /// What the disk holds.
    fn read(&self) -> Result<DiskState, DiskFailure>;

    /// Writes the promise; none is there.
    fn make_promise(&self, promise: &Promise) -> Result<(), DiskFailure>;

    /// Removes the promise.
    fn clear_promise(&self) -> Result<(), DiskFailure>;

    /// Writes the cluster id into the identity; none is there.
    fn adopt(&self, cluster_id: u128) -> Result<(), DiskFailure>;
}

/// The only writer of a [`Disk`]. Shared between the loop that establishes this node and the calls of its peers.
pub struct Founder<D> {
    disk: D,
    /// Held through every change; the text of the failure after which there are no more changes.
    writing: Mutex<Option<DiskFailure>>,
    state: watch::Sender<DiskState>,
}

impl<D: Disk> Founder<D> {
    /// Reads the disk. Blocks.
    pub fn open(disk: D) -> Result<Founder<D>, DiskFailure> {
        let state = watch::Sender::new(disk.read()?);
        Ok(Founder { disk, writing: Mutex::new(None), state })
    }

    /// What the disk holds. Never blocks on IO.
    pub fn state(&self) -> DiskState {
        self.state.borrow().clone()
    }

    /// The failed write after which this disk is not written any more; the process must end.
    pub fn failure(&self) -> Option<DiskFailure> {
        self.lock().clone()
    }

    /// Wakes when the disk's state changes, and when a write fails.
    pub fn watch(&self) -> watch::Receiver<DiskState> {
        self.state.subscribe()
    }

    /// Where this disk stands, for a node whose Raft does not run: answers to peers before it is established.
    pub fn standing(&self) -> Standing {
        let state = self.state();
        match (state.cluster_id, state.promise) {
            (Some(cluster_id), found) => {
                let members = found.filter(|found| found.cluster_id() == cluster_id);
                let members = members.map(|found| found.as_members()).unwrap_or_default();
                Standing::Member { cluster_id, members, leader: None }
            }
            (None, Some(promise)) => Standing::Promised(promise),
            (None, None) => Standing::Empty,
        }
    }

    /// Answers a peer that asks for a promise. Blocks for the fsync of the promise.
    pub fn answer(&self, place: &Place, asked: &Promise) -> PromiseAnswer {
        let refused = |reason: String, held| PromiseAnswer::Refused { reason, held };
        let failure = self.lock();
        if let Some(failure) = &*failure {
            return refused(failure.to_string(), None);
        }
        let state = self.state();
        if let Some(reason) = refusal(place, &state, asked) {
            return refused(reason, state.promise);
        }
        if state.promise.is_some() {
            return PromiseAnswer::Promised;
        }
        match self.write_promise(failure, state, asked) {
            Ok(_) => PromiseAnswer::Promised,
            Err(failure) => refused(failure.to_string(), None),
        }
    }

    /// Makes a promise of this node's own accord, if the disk is still as `seen`. False if it isn't. Blocks.
    pub fn promise(&self, seen: &DiskState, promise: &Promise) -> Result<bool, DiskFailure> {
        let Some(failure) = self.lock_if(seen)? else { return Ok(false) };
        self.write_promise(failure, seen.clone(), promise)
    }

    /// Takes the promise back, if the disk is still as `seen`. False if it isn't. Blocks.
    pub fn drop_promise(&self, seen: &DiskState) -> Result<bool, DiskFailure> {
        let Some(failure) = self.lock_if(seen)? else { return Ok(false) };
        let next = DiskState { promise: None, ..seen.clone() };
        self.finish(failure, self.disk.clear_promise(), next)
    }

    /// Adopts the cluster, if the disk is still as `seen`. False if it isn't. Blocks.
    pub fn adopt(&self, seen: &DiskState, cluster_id: u128) -> Result<bool, DiskFailure> {
        let Some(failure) = self.lock_if(seen)? else { return Ok(false) };
        let next = DiskState { cluster_id: Some(cluster_id), ..seen.clone() };
        self.finish(failure, self.disk.adopt(cluster_id), next)
    }

    /// Forgets the promise of a member: to be called once Raft is initialised. Blocks.
    pub fn founded(&self) -> Result<(), DiskFailure> {
        let seen = self.state();
        if seen.cluster_id.is_some() && seen.promise.is_some() {
            self.drop_promise(&seen)?;
        }
        Ok(())
    }

    fn write_promise(
        &self,
        failure: MutexGuard<'_, Option<DiskFailure>>,
        seen: DiskState,
        promise: &Promise,
    ) -> Result<bool, DiskFailure> {
        let next = DiskState { promise: Some(promise.clone()), ..seen };
        self.finish(failure, self.disk.make_promise(promise), next)
    }

    fn finish(
        &self,
        mut failure: MutexGuard<'_, Option<DiskFailure>>,
        written: Result<(), DiskFailure>,
        next: DiskState,
    ) -> Result<bool, DiskFailure> {
        if let Err(error) = written {
            *failure = Some(error.clone());
            drop(failure);
            // Wakes who waits, so that the failure is found.
            self.state.send_modify(|_| {});
            return Err(error);
        }
        self.state.send_replace(next);
        Ok(true)
    }

    fn lock_if(&self, seen: &DiskState) -> Result<Option<MutexGuard<'_, Option<DiskFailure>>>, DiskFailure> {
        let failure = self.lock();
        if let Some(failure) = &*failure {
            return Err(failure.clone());
        }
        let unchanged = *self.state.borrow() == *seen;
        Ok(unchanged.then_some(failure))
    }

    fn lock(&self) -> MutexGuard<'_, Option<DiskFailure>> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why this disk must not make that promise, if so.
fn refusal(place: &Place, state: &DiskState, asked: &Promise) -> Option<String> {
    let Place { name, peer_names, bootstrap } = place;
    if let Some(cluster_id) = state.cluster_id {
        return Some(format!("{name} is a member of cluster {cluster_id:032x} already"));
    }
    if *bootstrap != BootstrapMode::Peers {
        return Some(format!("{name} was not started with --bootstrap=peers"));
    }
    if !asked.names().eq(peer_names.iter().map(String::as_str)) {
        return Some(format!("{name} was started with other --peers ({})", peer_names.join(",")));
    }
    if asked.node_id_of(name) != Some(state.node_id) {
        return Some(format!("{name} is the disk {:016x}, which that list does not name", state.node_id));
    }
    let held = state.promise.as_ref().filter(|held| *held != asked)?;
    Some(format!("{name} has promised to found {held}"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]
mod tests;
