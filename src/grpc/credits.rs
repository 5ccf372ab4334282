//! Accesses of delivered entries in LFU tenants, on their way into the log. Lookups leave them here without ever
//! waiting: what comes while the buffer is full or in use is dropped, since counts only order evictions and a sample
//! orders them as well. Every few seconds what is here becomes commands.

use prefixd_index::command::{Command, Credit};
use prefixd_index::delta::PackedHashes;
use prefixd_raft::Node;
use std::collections::BTreeMap;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Between flushes.
const FLUSH_INTERVAL: Duration = Duration::from_secs(2);
/// Most hashes that wait for a flush.
const MAX_WAITING: usize = 65_536;
/// Most hashes of one command.
const MAX_HASHES_OF_A_COMMAND: usize = 16_384;

/// The buffer of one node.
#[derive(Debug, Default)]
pub(super) struct Credits {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    credits: Vec<Credit>,
    hashes: usize,
}

impl Credits {
    /// Leaves what one answer delivered.
    pub(super) fn leave(&self, credits: Vec<Credit>) {
        if credits.is_empty() {
            return;
        }
        let mut waiting = match self.waiting.try_lock() {
            Ok(waiting) => waiting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let hashes: usize = credits.iter().map(|credit| credit.hashes.len()).sum();
        if waiting.hashes + hashes <= MAX_WAITING {
            waiting.hashes += hashes;
            waiting.credits.extend(credits);
        }
    }

    /// Proposes what is here every few seconds until the node stops. What can't be committed is forgotten.
    pub(super) async fn run(&self, node: Node, stopping: CancellationToken) {
        let mut ticks = tokio::time::interval(FLUSH_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
            for command in commands(self.taken()) {
                if let Err(error) = node.propose(command).await {
                    tracing::debug!(%error, "access counts of a few seconds are lost");
                }
            }
        }
    }

    fn taken(&self) -> Vec<Credit> {
        let mut waiting = self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut *waiting).credits
    }
}

/// The same accesses in as few commands as their limit allows, each entry once.
fn commands(credits: Vec<Credit>) -> Vec<Command> {
    let mut by_entry: BTreeMap<_, BTreeMap<Vec<u8>, u32>> = BTreeMap::new();
    for Credit { tenant, model, scheme, adapter, replica, hashes, counts } in credits {
        let entries = by_entry.entry((tenant, model, scheme, adapter, replica)).or_default();
        for (hash, count) in hashes.iter().zip(counts) {
            let total = entries.entry(hash.to_vec()).or_default();
            *total = total.saturating_add(count);
        }
    }
    let mut commands = Vec::new();
    let (mut gathered, mut room) = (Vec::new(), MAX_HASHES_OF_A_COMMAND);
    for ((tenant, model, scheme, adapter, replica), entries) in by_entry {
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            let (hashes, counts): (Vec<_>, Vec<_>) = entries.by_ref().take(room).unzip();
            room -= hashes.len();
            // Hashes over 255 bytes can't be packed; none that is in the index is over 128.
            gathered.extend(PackedHashes::pack(&hashes).map(|hashes| Credit {
                tenant: tenant.clone(),
                model: model.clone(),
                scheme: scheme.clone(),
                adapter: adapter.clone(),
                replica: replica.clone(),
                hashes,
                counts,
            }));
            if room == 0 {
                commands.push(Command::AccessCredits(std::mem::take(&mut gathered)));
                room = MAX_HASHES_OF_A_COMMAND;
            }
        }
    }
    if !gathered.is_empty() {
        commands.push(Command::AccessCredits(gathered));
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credit(replica: &str, hashes: &[&str]) -> Credit {
        Credit {
            tenant: "t".into(),
            model: "m".into(),
            scheme: "s".into(),
            adapter: String::new(),
            replica: replica.into(),
            hashes: PackedHashes::pack(hashes).unwrap(),
            counts: vec![1; hashes.len()],
        }
    }

    /// (replica, hash, count) of all commands.
    fn flat(commands: &[Command]) -> Vec<(String, Vec<u8>, u32)> {
        let mut all = Vec::new();
        for command in commands {
            let Command::AccessCredits(credits) = command else { panic!("{command:?}") };
            for credit in credits {
                let pairs = credit.hashes.iter().zip(&credit.counts);
                all.extend(pairs.map(|(hash, count)| (credit.replica.clone(), hash.to_vec(), *count)));
            }
        }
        all
    }

    #[test]
    fn repeats_are_joined() {
        let commands = commands(vec![credit("b", &["x"]), credit("a", &["x", "yy"]), credit("a", &["yy"])]);
        assert_eq!(commands.len(), 1);
        let expected = [("a", "x", 1), ("a", "yy", 2), ("b", "x", 1)].map(|(r, h, n)| (r.into(), h.into(), n));
        assert_eq!(flat(&commands), expected);
        assert!(super::commands(Vec::new()).is_empty());
    }

    #[test]
    fn commands_and_the_buffer_are_bounded() {
        let hashes: Vec<String> = (0..MAX_HASHES_OF_A_COMMAND + 1).map(|i| format!("{i:08}")).collect();
        let hashes: Vec<&str> = hashes.iter().map(String::as_str).collect();
        let split = commands(vec![credit("a", &hashes), credit("b", &["x"])]);
        assert_eq!((split.len(), flat(&split).len()), (2, MAX_HASHES_OF_A_COMMAND + 2));
        let buffer = Credits::default();
        for _ in 0..10 {
            buffer.leave(vec![credit("a", &hashes)]);
        }
        assert_eq!(buffer.taken().len(), MAX_WAITING / hashes.len());
        assert!(buffer.taken().is_empty());
    }
}
