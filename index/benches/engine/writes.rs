//! Applies: what is stored, refreshed and removed, in runs and one a call, at the cap, in sweeps and clears, and what
//! memory does when the content turns over.

use super::meter::{cpu_seconds, resident_bytes, say};
use super::sets::{A, B, Log, Set, chain, event, evicted, exact, hash, update};
use prefixd_index::command::Command;
use prefixd_index::delta::{Delta, EventKind};
use prefixd_index::limits::DIGEST_RING;
use std::time::Duration;

/// Applies deltas that were made beforehand, `batch` a command; says the rate of `units`.
fn timed(log: &mut Log, name: &str, deltas: Vec<Delta>, batch: usize, units: u64) {
    let commands: Vec<Command> = deltas.chunks(batch).map(|deltas| log.command(deltas.to_vec())).collect();
    log.longest = Duration::ZERO;
    let (seconds, _applied) = cpu_seconds(|| log.replay(commands));
    say(name, units as f64 / seconds, "blocks per CPU-s");
    say(&format!("{name}, longest apply"), log.longest.as_secs_f64() * 1e6, "us");
}

/// New chains, the same refreshed, and evicted from their tails.
pub fn stores() {
    for set in [A, B] {
        let mut log = Log::new(0);
        let reports: Vec<_> = set.reports().collect();
        let blocks: u64 = reports.iter().map(|(_, hashes)| hashes.len() as u64).sum();
        let updates = || reports.iter().map(|(replica, hashes)| update(*replica, vec![chain(hashes)])).collect();
        timed(&mut log, &format!("store {}, new", set.name), updates(), 8, blocks);
        timed(&mut log, &format!("store {}, refreshed", set.name), updates(), 8, blocks);
        let events = reports.iter().flat_map(|(r, hashes)| hashes.iter().rev().map(|hash| evicted(*r, hash)));
        timed(&mut log, &format!("store {}, evicted by events", set.name), events.collect(), 512, blocks);
    }
    // Each new block takes the place of an old one: the difference to stores alone is what removal costs.
    let own = |n: u64| (0..64).map(|at| hash(n | 1 << 40, at, 8)).collect::<Vec<_>>();
    at_the_cap("store at the cap, each evicts one", own);
    let of_families = |n: u64| Set { chains: u64::MAX, ..A }.hashes(n | 1 << 40);
    at_the_cap("store at the cap, half of each shared", of_families);
}

fn at_the_cap(name: &str, hashes: impl Fn(u64) -> Vec<Vec<u8>>) {
    let mut log = Log::filled(&A);
    let entries = log.index.totals().entries;
    log.apply(Command::ClusterMeta(prefixd_index::command::ClusterMeta { max_entries: entries, ..Default::default() }));
    let fresh = (0..8_192).map(|n| update(A.replica(n | 1 << 40), vec![chain(&hashes(n))]));
    timed(&mut log, name, fresh.collect(), 8, 8_192 * 64);
}

/// Blocks that come as single entries: 64 in order an update, or one an update.
pub fn one_a_call() {
    let entries = |hashes: &[Vec<u8>]| (1i32..).zip(hashes).map(|(at, hash)| exact(hash, at * 16)).collect();
    let reports: Vec<_> = A.reports().collect();
    let blocks = A.chains * 64;
    let mut log = Log::new(0);
    let before = resident_bytes();
    let deltas = reports.iter().map(|(replica, hashes)| update(*replica, entries(hashes))).collect();
    timed(&mut log, "one an entry, 64 in order an update", deltas, 8, blocks);
    let bytes = resident_bytes().saturating_sub(before) as f64 / log.index.totals().entries as f64;
    say("one an entry, resident bytes an entry", bytes, "bytes, with the bench's own");
    let mut log = Log::new(0);
    let single = |(replica, hashes): &(u64, Vec<Vec<u8>>)| {
        let replica = *replica;
        let each = (1i32..).zip(hashes.clone()).map(move |(at, hash)| update(replica, vec![exact(&hash, at * 16)]));
        each.collect::<Vec<_>>()
    };
    let deltas: Vec<Delta> = reports.iter().take(8_192).flat_map(single).collect();
    timed(&mut log, "one an update", deltas, 512, 8_192 * 64);
}

/// A million entries expire; each sweep takes a slice.
pub fn sweep() {
    let mut log = Log::filled(&A);
    let entries = log.index.totals().entries;
    log.later_us += 3_600_000_000;
    log.longest = Duration::ZERO;
    let (seconds, ()) = cpu_seconds(|| {
        while log.index.totals().entries > 0 {
            log.apply(Command::Sweep);
        }
    });
    say("sweep", entries as f64 / seconds, "entries per CPU-s");
    say("sweep, longest apply", log.longest.as_secs_f64() * 1e6, "us");
}

/// One replica with a million entries is cleared, then purged in slices.
pub fn clear() {
    let mut log = Log::new(0);
    // Kept to the end: what is freed here, the allocator would tidy up within the next apply.
    let reports: Vec<_> = A.reports().collect();
    for reports in reports.chunks(8) {
        log.deltas(reports.iter().map(|(_, hashes)| update(1, vec![chain(hashes)])).collect());
    }
    let entries = log.index.totals().entries;
    log.longest = Duration::ZERO;
    log.deltas(vec![event(1, EventKind::AllCleared)]);
    say("clear, its own apply", log.longest.as_secs_f64() * 1e6, "us");
    let (seconds, ()) = cpu_seconds(|| {
        while log.index.wants_sweep() {
            log.apply(Command::Sweep);
        }
    });
    say("clear, purged", entries as f64 / seconds, "entries per CPU-s");
    say("clear, longest apply", log.longest.as_secs_f64() * 1e6, "us");
    drop(reports);
}

/// Ten turnovers at a cap of 500,000 entries, each with chains of 1 to 256 blocks as they come.
pub fn turnover() {
    turn_over("turnover", [None; 11]);
}

/// The same with chains of one size in each turnover, and of another in the next.
pub fn turnover_of_sizes() {
    turn_over("turnover of sizes", [64, 9, 200, 30, 64, 120, 17, 250, 64, 9, 64].map(Some));
}

fn turn_over(name: &str, sizes: [Option<u64>; 11]) {
    const CAP: u64 = 500_000;
    let mut log = Log::new(CAP);
    // The ring of digests fills with applies, whatever they bring.
    (0..DIGEST_RING).for_each(|_| drop(log.deltas(Vec::new())));
    let mut number = 1u64 << 41;
    let mut first = 0.0;
    for (round, size) in sizes.into_iter().enumerate() {
        let mut stored = 0;
        while stored <= CAP {
            number += 1;
            let any_size = || u64::from(hash(number, u64::MAX, 8)[0]) + 1;
            let hashes: Vec<Vec<u8>> = (0..size.unwrap_or_else(any_size)).map(|at| hash(number, at, 8)).collect();
            stored += hashes.len() as u64;
            log.deltas(vec![update(number % 64, vec![chain(&hashes)])]);
        }
        let resident = resident_bytes() as f64 / 1e6;
        if round == 0 {
            first = resident;
        }
        let of_what = size.map_or_else(|| "1 to 256 blocks".to_owned(), |blocks| format!("{blocks} blocks"));
        say(&format!("{name} {round}, chains of {of_what}, resident"), resident, "MB");
        say(&format!("{name} {round}, of the first"), resident / first, "");
    }
}

/// Decode tails: 2,048 chains grow by a block in turn, each block a single entry, then all are reported whole.
pub fn tails() {
    let mut log = Log::new(0);
    let before = resident_bytes();
    let hashes = |chain: u64| (0..64).map(|at| hash(chain | 1 << 42, at, 8)).collect::<Vec<Vec<u8>>>();
    for at in 0..64u64 {
        for chains in (0..2_048u64).collect::<Vec<_>>().chunks(64) {
            let entries = chains.iter().map(|chain| exact(&hash(chain | 1 << 42, at, 8), at as i32 * 16 + 16));
            log.deltas(vec![update(chains[0] / 64, entries.collect())]);
        }
    }
    let bytes = |log: &Log| resident_bytes().saturating_sub(before) as f64 / log.index.totals().entries as f64;
    say("tails, grown block by block", bytes(&log), "resident bytes an entry");
    for chains in (0..2_048u64).collect::<Vec<_>>().chunks(8) {
        let entries = chains.iter().map(|at| chain(&hashes(*at)));
        log.deltas(vec![update(chains[0] / 64, entries.collect())]);
    }
    say("tails, reported whole", bytes(&log), "resident bytes an entry");
}
