//! Lookups: alone, two at a time, beside a writer, and with every one of many replicas answering.

use super::meter::{cpu_seconds, resident_bytes, say, say_spread};
use super::sets::{A, Dice, Log, NOW_US, Set, chain, evicted, hash, pressure, update};
use prefixd_index::{LookupRequest, LookupScratch, Prompt, RankConfig, View};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const QUERIES: usize = 4_096;

/// A random chain each, whole, cut somewhere, or padded with unknown blocks.
fn queries(set: &Set, seed: u64) -> Vec<Vec<Vec<u8>>> {
    let mut dice = Dice(seed);
    let query = |at: usize| {
        let mut hashes = set.hashes(dice.roll(set.chains));
        match dice.roll(3) {
            0 => hashes.truncate(1 + dice.roll(hashes.len() as u64) as usize),
            1 => hashes.extend((0..dice.roll(64)).map(|n| hash(1 << 50 | at as u64, n, set.width))),
            _ => {}
        }
        hashes
    };
    (0..QUERIES).map(query).collect()
}

struct Reader {
    view: View,
    config: RankConfig,
    scratch: LookupScratch,
    counts: Vec<i32>,
    /// True to take answers as they are lent.
    is_lent: bool,
}

impl Reader {
    fn new(view: View) -> Self {
        let counts = vec![16; 1_024];
        Self { view, config: RankConfig::default(), scratch: LookupScratch::default(), counts, is_lent: false }
    }

    fn look<const WIDTH: usize>(&mut self, hashes: &[[u8; WIDTH]], later_us: u64) -> usize {
        let request = LookupRequest {
            tenant: "tenant",
            model: "model",
            scheme: "vllm",
            adapter: "",
            prefix_hash: &[],
            prefix_token_count: 0,
            block_hashes: hashes,
            block_token_counts: &self.counts[..hashes.len()],
            token_ids: &[],
            prompt: Prompt::Absent,
            ttft_ms: 0,
        };
        if self.is_lent {
            let (view, now_us) = (&self.view, NOW_US + later_us);
            return view.with_answer(&request, now_us, &self.config, &mut self.scratch, |answer| {
                answer.scores().map(|score| black_box(score).matched_tokens as usize & 1 | 1).sum()
            });
        }
        let answer = self.view.lookup(&request, NOW_US + later_us, &self.config, &mut self.scratch);
        black_box(&answer).scores.len()
    }
}

/// Hashes side by side, as a request has them: what is measured is the index, not where the queries lie.
fn packed<const WIDTH: usize>(queries: Vec<Vec<Vec<u8>>>) -> Vec<Vec<[u8; WIDTH]>> {
    let pack = |hash: Vec<u8>| <[u8; WIDTH]>::try_from(hash).unwrap_or([0; WIDTH]);
    queries.into_iter().map(|query| query.into_iter().map(pack).collect()).collect()
}

/// (lookups, CPU-seconds) of one reader that goes on for `run`.
fn read(view: View, set: &Set, seed: u64, later_us: u64, is_lent: bool) -> (u64, f64) {
    let mut reader = Reader::new(view);
    reader.is_lent = is_lent;
    match set.width {
        32 => read_packed::<32>(reader, set, seed, later_us),
        _ => read_packed::<8>(reader, set, seed, later_us),
    }
}

/// How long a reader goes on.
const RUN: Duration = Duration::from_millis(1_500);

fn read_packed<const WIDTH: usize>(mut reader: Reader, set: &Set, seed: u64, later_us: u64) -> (u64, f64) {
    let queries = packed::<WIDTH>(queries(set, seed));
    for query in &queries {
        reader.look(query, later_us);
    }
    let (seconds, lookups) = cpu_seconds(|| {
        let (begun, mut lookups) = (Instant::now(), 0u64);
        while begun.elapsed() < RUN {
            for query in &queries {
                reader.look(query, later_us);
            }
            lookups += queries.len() as u64;
        }
        lookups
    });
    (lookups, seconds)
}

pub fn lookups(set: Set, readers: u64) {
    let before = resident_bytes();
    let log = Log::filled(&set);
    let totals = log.index.totals();
    let name = format!("lookup {}", set.name);
    if readers == 1 {
        let bytes = resident_bytes().saturating_sub(before) as f64;
        say(&format!("{name}, resident bytes an entry"), bytes / totals.entries as f64, "bytes");
        say(&format!("{name}, entries"), totals.entries as f64, "");
        say(&format!("{name}, prefixes"), totals.prefixes as f64, "");
    }
    let (view, later_us) = (log.index.view(), log.later_us);
    for (is_lent, how) in [(false, ""), (true, ", answers lent")] {
        let rates: Vec<(u64, f64)> = std::thread::scope(|threads| {
            let spawn = |seed| {
                let view = view.clone();
                threads.spawn(move || read(view, &set, seed, later_us, is_lent))
            };
            let threads: Vec<_> = (1..=readers).map(spawn).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let rate: f64 = rates.iter().map(|(lookups, seconds)| *lookups as f64 / seconds).sum();
        say(&format!("{name}, {readers} readers{how}"), rate, "lookups per CPU-s, summed");
    }
    if readers > 1 {
        return;
    }
    for (is_lent, how) in [(false, ""), (true, ", answers lent")] {
        match set.width {
            32 => spread::<32>(view.clone(), &set, later_us, (is_lent, how)),
            _ => spread::<8>(view.clone(), &set, later_us, (is_lent, how)),
        }
    }
}

/// How long single lookups take.
fn spread<const WIDTH: usize>(view: View, set: &Set, later_us: u64, (is_lent, how): (bool, &str)) {
    let name = format!("lookup {}{how}", set.name);
    let queries = packed::<WIDTH>(queries(set, 9));
    let mut reader = Reader::new(view);
    reader.is_lent = is_lent;
    let mut samples = Vec::new();
    let mut scores = 0;
    for query in queries.iter().cycle().take(200_000) {
        let begun = Instant::now();
        scores += reader.look(query, later_us);
        samples.push(begun.elapsed());
    }
    if !is_lent {
        say(&format!("{name}, scores an answer"), scores as f64 / samples.len() as f64, "");
    }
    say_spread(&name, samples);
}

/// A where every replica reports its pressure, as they do in service.
pub fn under_pressure() {
    let mut log = Log::filled(&A);
    log.deltas((0..A.replicas).map(pressure).collect());
    let (lookups, seconds) = read(log.index.view(), &A, 1, log.later_us, true);
    say("lookup A, all report pressure, answers lent", lookups as f64 / seconds, "lookups per CPU-s");
}

/// One chain of 64 blocks on 4,096 replicas, all of which answer.
pub fn many_replicas() {
    let set = Set { name: "4,096 replicas", replicas: 4_096, chains: 4_096, own: 8, family: 0, ..A };
    let (seconds, log) = cpu_seconds(|| Log::filled(&set));
    say("4,096 replicas, stored", log.index.totals().entries as f64 / seconds, "entries per CPU-s");
    let (lookups, seconds) = read(log.index.view(), &set, 3, log.later_us, true);
    say("4,096 replicas, lookup", lookups as f64 / seconds, "lookups per CPU-s");
}

/// A reader beside a writer that refreshes, replaces and evicts chains without a pause, and without it on what that leaves:
/// entries that were refreshed one by one are more work to rank than those of a fill, which are all equally old.
pub fn mixed() {
    let mut log = Log::filled(&A);
    let is_done = AtomicBool::new(false);
    let mut dice = Dice(5);
    let commands: Vec<_> = (0..16_384)
        .map(|_| {
            let at = dice.roll(A.chains);
            let (replica, hashes) = (A.replica(at), A.hashes(at));
            let tail = hashes.iter().rev().take(8).map(|hash| evicted(replica, hash));
            let deltas = match dice.roll(2) {
                0 => vec![update(replica, vec![chain(&hashes)])],
                _ => tail.collect(),
            };
            log.command(deltas)
        })
        .collect();
    log.replay(commands.clone());
    let (view, later_us) = (log.index.view(), log.later_us);
    let alone = read(view.clone(), &A, 1, later_us, true);
    let (beside, written) = std::thread::scope(|threads| {
        let reader = threads.spawn(|| read(view, &A, 1, later_us, true));
        let writer = threads.spawn(|| {
            cpu_seconds(|| {
                let mut applied = 0u64;
                for command in commands.iter().cycle() {
                    log.replay(vec![command.clone()]);
                    applied += 1;
                    if is_done.load(Ordering::Relaxed) {
                        break;
                    }
                }
                applied
            })
        });
        let beside = reader.join().unwrap_or_default();
        is_done.store(true, Ordering::Relaxed);
        (beside, writer.join().unwrap_or_default())
    });
    let rate = |(lookups, seconds): (u64, f64)| lookups as f64 / seconds;
    say("mixed, lookups alone", rate(alone), "lookups per CPU-s");
    say("mixed, lookups beside the writer", rate(beside), "lookups per CPU-s");
    say("mixed, kept beside the writer", rate(beside) / rate(alone), "of the rate alone");
    say("mixed, applies beside the reader", written.1 as f64 / written.0, "applies per CPU-s");
}
