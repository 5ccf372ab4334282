use super::run::{Outcome, run};
use super::world::{Invariant, Plan, Plant, Tally};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds of an ordinary run of the tests.
const SEEDS: u64 = 1_000;
/// Seeds within which a planted bug must be found.
const PLANTED_SEEDS: u64 = 4_000;
/// What must have happened in every so many seeds, or the rest shows nothing.
const HAPPENINGS: [&str; 40] = [
    "a disk is lost",
    "a lost disk is replaced",
    "a node is added",
    "a node is promoted by order",
    "a node is removed",
    "acknowledged",
    "not acknowledged",
    "audit",
    "clock jump",
    "crash",
    "credits",
    "disk full",
    "disk stall",
    "failed sync",
    "forward unanswered",
    "joiner becomes a voter",
    "leader",
    "leader cut off, others restarted",
    "leader hands over to be taken out",
    "log opened anew",
    "message held up",
    "message lost",
    "partition",
    "policy offered",
    "policy pushed",
    "power loss of all",
    "process ended by its disk",
    "purge",
    "repeat skipped",
    "seen to be taken by a limit",
    "slow link",
    "snapshot installed",
    "snapshot taken",
    "snapshot without room",
    "sweep",
    "torn append",
    "transfer",
    "truncation",
    "unsynced write lost",
    "update over a limit",
];
const HAPPENINGS_SEEDS: u64 = 200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn plan(seed: u64, plant: Plant) -> Plan {
    Plan { seed, plant, sees_disks: true, is_loud: false }
}

/// Runs seeds on all processors, each once, until `judge` says that it has seen enough.
fn for_each(seeds: Range<u64>, plan: impl Fn(u64) -> Plan + Sync, judge: impl Fn(Outcome) -> bool + Sync) {
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get().min(16));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if judge(run(plan(seed))) {
                        next.store(seeds.end, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// `PREFIXD_SIM_SEEDS` runs more seeds, `PREFIXD_SIM_SEED` one, with all that happens.
#[test]
fn nothing_breaks_whatever_happens() {
    let (seeds, is_loud) = match number("PREFIXD_SIM_SEED") {
        Some(seed) => (seed..seed + 1, true),
        None => (0..number("PREFIXD_SIM_SEEDS").unwrap_or(SEEDS), false),
    };
    let (total, broken) = (Mutex::new(Tally::default()), Mutex::new(Vec::new()));
    let planned = |seed| Plan { is_loud, ..plan(seed, Plant::Nothing) };
    for_each(seeds.clone(), planned, |outcome| {
        total.lock().unwrap().add(&outcome.tally);
        let mut broken = broken.lock().unwrap();
        broken.extend(outcome.broken.map(|(invariant, said)| format!("seed {}: {invariant}: {said}", outcome.seed)));
        broken.len() >= 20
    });
    let (total, broken) = (total.into_inner().unwrap(), broken.into_inner().unwrap());
    let count = seeds.end - seeds.start;
    println!("{count} seeds: {:#?}", total.0);
    assert!(broken.is_empty(), "see one again by PREFIXD_SIM_SEED=seed: {broken:#?}");
    if count >= HAPPENINGS_SEEDS {
        let missing: Vec<_> = HAPPENINGS.iter().filter(|what| total.of(what) < count / HAPPENINGS_SEEDS).collect();
        assert!(missing.is_empty(), "hardly ever in {count} seeds: {missing:?}");
    }
}

#[test]
fn one_seed_is_one_history() {
    for seed in 0..8 {
        let (first, second) = (run(plan(seed, Plant::Nothing)), run(plan(seed, Plant::Nothing)));
        assert_eq!(first, second, "seed {seed}");
    }
    assert_ne!(run(plan(1, Plant::Nothing)).trace, run(plan(2, Plant::Nothing)).trace);
}

/// Asserts that a bug makes one of these invariants break; `sees_disks` lets the judge look where no client could.
fn is_caught(plant: Plant, sees_disks: bool, expected: &[Invariant]) {
    let found = Mutex::new(Vec::new());
    for_each(
        0..PLANTED_SEEDS,
        |seed| Plan { sees_disks, ..plan(seed, plant) },
        |outcome| {
            let Some((invariant, said)) = outcome.broken else { return false };
            println!("{plant:?}, seed {}: {invariant}: {said}", outcome.seed);
            found.lock().unwrap().push(invariant);
            expected.contains(&invariant)
        },
    );
    let found = found.into_inner().unwrap();
    assert!(found.iter().any(|invariant| expected.contains(invariant)), "{plant:?} broke {found:?}");
}

#[test]
fn an_acknowledgement_before_the_sync_is_caught() {
    // A leader that meets a follower with less than it acknowledged stops, and says so: that counts.
    let seen_outside = [Invariant::Committed, Invariant::Acknowledged, Invariant::Alive];
    is_caught(Plant::EarlyAcknowledgement, false, &seen_outside);
    is_caught(Plant::EarlyAcknowledgement, true, &[Invariant::OnQuorum]);
}

#[test]
fn a_vote_that_is_not_persisted_is_caught() {
    is_caught(Plant::ForgottenVote, true, &[Invariant::Vote]);
}

/// What anybody could see of it, without a look at disks.
#[test]
fn a_vote_that_is_not_persisted_is_caught_by_what_comes_of_it() {
    is_caught(Plant::ForgottenVote, false, &[Invariant::OneLeader, Invariant::Committed, Invariant::Acknowledged]);
}

#[test]
fn a_failed_sync_that_is_taken_for_a_good_one_is_caught() {
    is_caught(Plant::FailedSyncForgotten, true, &[Invariant::OnQuorum]);
}

#[test]
fn a_clock_read_in_apply_is_caught() {
    is_caught(Plant::ClockInApply, false, &[Invariant::Digest]);
}

#[test]
fn a_retry_that_resurrects_an_evicted_entry_is_caught() {
    is_caught(Plant::RetryUnderAnotherNumber, false, &[Invariant::Resurrected]);
}
