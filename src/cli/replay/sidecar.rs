//! The engines' sidecars: each reports its engine's stores and evictions to prefixd, in the engine's order. One task an
//! engine; its queue is bounded, and steps that wait in it are sent together as long as none of them contradicts
//! another. The replay learns what is acknowledged and can wait for the blocks that matter to its next lookup.

use bytes::Bytes;
use futures::StreamExt;
use prefixd_client::Client;
use prefixd_proto::inferencecache as pb;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tokio::sync::mpsc;

/// Steps that may wait for one engine.
const QUEUED_STEPS_MAX: usize = 64;
/// Steps that are sent together.
const BATCH_STEPS_MAX: usize = 32;
/// Events of one engine in flight at once: the contract has one event a call, so only concurrency can batch them.
const EVENTS_IN_FLIGHT_MAX: usize = 32;
/// How often a report or an event is tried, beyond the client's own retries.
const TRIES_MAX: u32 = 4;
const PAUSE_BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// Whose cache is reported.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The tenant; one of its own for each replay.
    pub tenant_id: String,
    /// The model.
    pub model_id: String,
    /// The hash domain.
    pub hash_scheme: String,
}

/// What one request did to one engine's cache.
#[derive(Debug)]
pub struct Step {
    /// The blocks that the engine now has of the prompt, from its head, so that each stored block's parents are named;
    /// those it had before are refreshed thereby.
    pub chain: Vec<u64>,
    /// The tokens of each.
    pub token_counts: Vec<i32>,
    /// How many at the head of the chain were cached before.
    pub hit_blocks: usize,
    /// The blocks that went.
    pub evicted: Vec<u64>,
}

/// All sidecars of a replay.
pub struct Sidecars {
    queues: Vec<mpsc::Sender<Step>>,
    acks: mpsc::Receiver<Ack>,
    /// Blocks whose holders change by what is not acknowledged yet, each with the number of such steps.
    pending: HashMap<u64, usize>,
    steps_in_flight: usize,
    errors: u64,
}

/// A step is through.
struct Ack {
    changed: Vec<u64>,
    errors: u64,
}

impl Step {
    /// The blocks whose holders this changes.
    fn changed(&self) -> Vec<u64> {
        self.chain[self.hit_blocks..].iter().chain(&self.evicted).copied().collect()
    }
}

/// The name under which an engine reports.
pub fn replica_id(engine: usize) -> String {
    format!("engine-{engine}")
}

/// The engine that reports under this name.
pub fn engine_of(replica_id: &str) -> Option<usize> {
    replica_id.strip_prefix("engine-")?.parse().ok()
}

/// A block's hash on the wire.
pub fn block_hash(id: u64) -> Bytes {
    Bytes::copy_from_slice(&id.to_be_bytes())
}

impl Sidecars {
    /// Starts one sidecar for each engine.
    pub fn start(client: &Client, scope: &Scope, engines: usize) -> Self {
        let (ack_sender, acks) = mpsc::channel(engines * BATCH_STEPS_MAX);
        let queues = (0..engines)
            .map(|engine| {
                let (sender, queue) = mpsc::channel(QUEUED_STEPS_MAX);
                let sidecar = Sidecar { client: client.clone(), scope: scope.clone(), replica_id: replica_id(engine) };
                tokio::spawn(sidecar.run(queue, ack_sender.clone()));
                sender
            })
            .collect();
        Self { queues, acks, pending: HashMap::new(), steps_in_flight: 0, errors: 0 }
    }

    /// Hands a step to an engine's sidecar; waits while its queue is full. Dropped while it waits, it did nothing.
    pub async fn submit(&mut self, engine: usize, step: Step) {
        let changed = step.changed();
        if changed.is_empty() {
            return;
        }
        let queue = self.queues[engine].clone();
        loop {
            tokio::select! {
                permit = queue.reserve() => {
                    let Ok(permit) = permit else {
                        self.errors += 1; // its task is gone, which only a bug can cause
                        return;
                    };
                    permit.send(step);
                    self.steps_in_flight += 1;
                    for id in changed {
                        *self.pending.entry(id).or_default() += 1;
                    }
                    return;
                }
                Some(ack) = self.acks.recv() => self.note(ack),
            }
        }
    }

    /// Waits until nothing that is on its way would change who holds one of these blocks.
    pub async fn settle(&mut self, blocks: &[u64]) {
        while blocks.iter().any(|id| self.pending.contains_key(id)) && self.wait().await {}
    }

    /// Takes what is acknowledged by now, without waiting.
    pub fn catch_up(&mut self) {
        while let Ok(ack) = self.acks.try_recv() {
            self.note(ack);
        }
    }

    /// Waits until everything is acknowledged or given up; returns how many reports and events were given up.
    pub async fn finish(mut self) -> u64 {
        self.queues.clear();
        while self.steps_in_flight > 0 && self.wait().await {}
        self.errors
    }

    async fn wait(&mut self) -> bool {
        match self.acks.recv().await {
            Some(ack) => {
                self.note(ack);
                true
            }
            None => false,
        }
    }

    fn note(&mut self, ack: Ack) {
        self.steps_in_flight -= 1;
        self.errors += ack.errors;
        for id in ack.changed {
            if let Some(count) = self.pending.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    self.pending.remove(&id);
                }
            }
        }
    }
}

struct Sidecar {
    client: Client,
    scope: Scope,
    replica_id: String,
}

impl Sidecar {
    async fn run(self, mut queue: mpsc::Receiver<Step>, acks: mpsc::Sender<Ack>) {
        let mut held_over = None;
        loop {
            let first = match held_over.take() {
                Some(step) => step,
                None => match queue.recv().await {
                    Some(step) => step,
                    None => return,
                },
            };
            let batch;
            (batch, held_over) = gather(first, &mut queue);
            let mut errors = self.send(&batch).await;
            for step in batch {
                let ack = Ack { changed: step.changed(), errors: std::mem::take(&mut errors) };
                if acks.send(ack).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Sends one batch and waits for every acknowledgement; returns how many were given up.
    async fn send(&self, batch: &[Step]) -> u64 {
        let updates: Vec<_> =
            batch.iter().filter(|step| step.chain.len() > step.hit_blocks).map(|step| self.update(step)).collect();
        let report = async {
            let has_updates = !updates.is_empty();
            u64::from(has_updates && !persistently(|| self.client.report(updates.clone())).await)
        };
        let evicted: Vec<u64> = batch.iter().flat_map(|step| step.evicted.iter().copied()).collect();
        let events = futures::stream::iter(evicted)
            .map(|id| async move {
                let event = self.evicted(id);
                u64::from(!persistently(|| self.client.publish(event.clone())).await)
            })
            .buffer_unordered(EVENTS_IN_FLIGHT_MAX)
            .fold(0, |sum, errors| async move { sum + errors });
        let (failed_reports, failed_events) = tokio::join!(report, events);
        failed_reports + failed_events
    }

    fn update(&self, step: &Step) -> pb::CacheStateUpdate {
        let entry = pb::PrefixEntry {
            block_hashes: step.chain.iter().map(|&id| block_hash(id)).collect(),
            block_token_counts: step.token_counts.clone(),
            tier: pb::CacheTier::T1 as i32,
            ..Default::default()
        };
        pb::CacheStateUpdate {
            replica_id: self.replica_id.clone(),
            model_id: self.scope.model_id.clone(),
            tenant_id: self.scope.tenant_id.clone(),
            hash_scheme: self.scope.hash_scheme.clone(),
            prefixes: vec![entry],
            ..Default::default()
        }
    }

    fn evicted(&self, id: u64) -> pb::CacheEvent {
        pb::CacheEvent {
            r#type: pb::cache_event::Type::PrefixEvicted as i32,
            replica_id: self.replica_id.clone(),
            model_id: self.scope.model_id.clone(),
            tenant_id: self.scope.tenant_id.clone(),
            prefix_hash: block_hash(id),
            ..Default::default()
        }
    }
}

/// Tries until it works or the tries are used up. What was not acknowledged may have been applied; repeating it is
/// harmless as long as the order holds, which it does: nothing later of this engine is sent before.
async fn persistently<T, Fut>(attempt: impl Fn() -> Fut) -> bool
where
    Fut: Future<Output = Result<T, prefixd_client::Error>>,
{
    for attempts_left in (0..TRIES_MAX).rev() {
        match attempt().await {
            Ok(_) => return true,
            Err(error) => {
                tracing::warn!(%error, attempts_left, "a sidecar was not acknowledged");
                if attempts_left == 0 || !error.is_transient() {
                    return false;
                }
                tokio::time::sleep(PAUSE_BETWEEN_TRIES).await;
            }
        }
    }
    false
}

/// Takes further steps from the queue as long as the whole may be sent at once, in any order; the one that may not is
/// held over.
fn gather(first: Step, queue: &mut mpsc::Receiver<Step>) -> (Vec<Step>, Option<Step>) {
    let mut held: HashSet<u64> = first.chain.iter().copied().collect();
    let mut evicted: HashSet<u64> = first.evicted.iter().copied().collect();
    let mut batch = vec![first];
    while batch.len() < BATCH_STEPS_MAX {
        let Ok(step) = queue.try_recv() else { break };
        if step.chain.iter().any(|id| evicted.contains(id)) || step.evicted.iter().any(|id| held.contains(id)) {
            return (batch, Some(step));
        }
        held.extend(&step.chain);
        evicted.extend(&step.evicted);
        batch.push(step);
    }
    (batch, None)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn step(chain: &[u64], hit_blocks: usize, evicted: &[u64]) -> Step {
        let token_counts = vec![512; chain.len()];
        Step { chain: chain.to_vec(), token_counts, hit_blocks, evicted: evicted.to_vec() }
    }

    #[test]
    fn steps_are_sent_together_until_one_contradicts() {
        let (sender, mut queue) = mpsc::channel(8);
        for queued in [step(&[1, 3], 1, &[7]), step(&[1, 4], 1, &[3]), step(&[5], 0, &[])] {
            sender.try_send(queued).unwrap();
        }
        let (batch, held_over) = gather(step(&[1, 2], 0, &[8]), &mut queue);
        assert_eq!(batch.len(), 2, "the third evicts what the second stored");
        let (batch, held_over) = gather(held_over.unwrap(), &mut queue);
        assert_eq!((batch.len(), held_over.is_none()), (2, true));
    }

    #[test]
    fn a_block_that_comes_back_waits_for_its_eviction() {
        let (sender, mut queue) = mpsc::channel(8);
        sender.try_send(step(&[1, 9], 1, &[])).unwrap();
        let (batch, held_over) = gather(step(&[1, 2], 0, &[9]), &mut queue);
        assert_eq!((batch.len(), held_over.is_some()), (1, true));
    }

    #[test]
    fn names_go_both_ways() {
        assert_eq!(engine_of(&replica_id(12)), Some(12));
        assert_eq!(engine_of("engine-x"), None);
        assert_eq!(engine_of("other"), None);
    }

    #[test]
    fn what_changes_is_what_was_stored_or_evicted() {
        assert_eq!(step(&[1, 2, 3], 2, &[8]).changed(), [3, 8]);
    }
}
