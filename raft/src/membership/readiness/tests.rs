//! Readiness as tables: (ms since start, applied, leader's commit, learner) => ready or a part of the reason.

use super::*;

type Row = (u64, u64, Option<u64>, bool, Result<(), &'static str>);

fn run(committed: u64, rows: &[Row]) {
    let limits = ReadinessLimits { leader_wait: Duration::from_secs(4), max_lag_entries: 100 };
    let mut readiness = Readiness::new(limits, committed);
    for (at, row) in rows.iter().enumerate() {
        let (ms, applied, leader_commit, learner, expected) = *row;
        let observed = Observed { since_start: Duration::from_millis(ms), applied, leader_commit, learner };
        let verdict = readiness.observe(&observed);
        match expected {
            Ok(()) => assert_eq!(verdict, Verdict { ready: true, reason: String::new() }, "row {at} of {rows:?}"),
            Err(part) => {
                assert!(!verdict.ready && verdict.reason.contains(part), "row {at} of {rows:?}: {verdict:?}");
            }
        }
    }
}

#[test]
fn first_time() {
    // A new cluster of one: ready with its own election.
    run(
        0,
        &[
            (0, 0, None, false, Err("no leader")),
            (10, 0, Some(1), false, Err("0 of 1")),
            (12, 1, Some(1), false, Ok(())),
        ],
    );
    // A restart: what the own disk says was committed comes first, then the leader's word.
    run(
        50,
        &[
            (0, 10, None, false, Err("10 of 50")),
            (100, 50, None, false, Err("ready without one in 3900 ms")),
            (200, 50, Some(80), false, Err("50 of 80")),
            (300, 80, Some(95), false, Ok(())),
        ],
    );
    // The leader may know less than this disk does.
    run(50, &[(0, 20, Some(30), false, Err("20 of 50")), (1, 50, Some(50), false, Ok(()))]);
    // Its first word is the target, so that a busy cluster can't outrun the node.
    run(
        0,
        &[
            (0, 0, Some(10), false, Err("0 of 10")),
            (1, 10, Some(5_000), false, Ok(())),
            (2, 10, Some(5_000), false, Err("lags 4990")),
        ],
    );
    // Without a leader: after two election timeouts.
    run(50, &[(3_999, 50, None, false, Err("in 1 ms")), (4_000, 50, None, false, Ok(()))]);
    run(50, &[(4_000, 49, None, false, Err("49 of 50")), (9_000, 50, None, false, Ok(()))]);
    // A leader that is heard after the wait, while still loading, counts.
    run(
        50,
        &[
            (5_000, 10, None, false, Err("10 of 50")),
            (6_000, 50, Some(60), false, Err("50 of 60")),
            (6_001, 60, None, false, Ok(())),
        ],
    );
}

#[test]
fn learner() {
    run(
        0,
        &[
            (0, 0, None, true, Err("this learner has not heard")),
            (60_000, 0, None, true, Err("this learner has not heard")),
            (60_001, 0, Some(500), true, Err("this learner has applied 0 of 500")),
            (60_002, 500, Some(510), true, Ok(())),
        ],
    );
    // Promoted before it has caught up: the target stands.
    run(0, &[(0, 0, Some(500), true, Err("0 of 500")), (9_000, 400, Some(500), false, Err("400 of 500"))]);
}

#[test]
fn hysteresis() {
    run(
        0,
        &[
            (0, 10, Some(10), false, Ok(())),
            (1, 10, Some(110), false, Ok(())),
            (2, 10, Some(111), false, Err("lags 101 log entries behind, more than 100; ready again at 50")),
            (3, 60, Some(111), false, Err("lags 51")),
            (4, 61, Some(111), false, Ok(())),
            (5, 61, Some(161), false, Ok(())),
            // The leader is gone: what it said last still counts, and an old answer doesn't lower it.
            (6, 61, None, false, Ok(())),
            (7, 61, Some(162), false, Err("lags 101")),
            (8, 100, Some(120), false, Err("lags 62")),
            (9, 112, None, false, Ok(())),
        ],
    );
}
