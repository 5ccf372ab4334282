//! Tables for what must hold at the edges, and random walks for what must hold always.

use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;

const SECOND: u64 = 1_000_000;
/// A wall clock of 2024.
const WALL: u64 = 1_700_000_000 * SECOND;

#[test]
fn moves_with_the_monotonic_clock_and_slews_by_one_percent() {
    let mut stamper = Stamper::new(WALL, 0);
    stamper.elected(Some(WALL), 0);
    // (mono, wall minus true time, expected cluster time minus true time)
    let rows = [
        (SECOND, 0, 0),
        (2 * SECOND, 5_000, 5_000),
        (3 * SECOND, 3_600 * SECOND as i64, 15_000),
        (4 * SECOND, 3_600 * SECOND as i64, 25_000),
        (5 * SECOND, -(3_600 * SECOND as i64), 15_000),
        (6 * SECOND, 10_000, 10_000),
        (6 * SECOND, -5, 10_000),
    ];
    for (mono, off, expected) in rows {
        let stamp = stamper.stamp((WALL + mono).saturating_add_signed(off), mono);
        assert_eq!(stamp as i64 - (WALL + mono) as i64, expected, "at {mono} with a wall clock off by {off}");
    }
}

#[test]
fn a_wall_clock_of_any_value_is_taken() {
    for wall in [0, 1, u64::MAX] {
        let mut stamper = Stamper::new(0, 7);
        stamper.elected(Some(wall), 7);
        let first = stamper.stamp(wall, 7);
        assert_eq!(first, wall);
        assert!(stamper.stamp(0, u64::MAX) >= first);
        stamper.skew_us(u64::MAX, u64::MAX);
        stamper.skew_us(0, u64::MAX);
    }
}

#[test]
fn frequent_stamps_slew_as_far_as_rare_ones() {
    let mut often = Stamper::new(WALL, 0);
    often.elected(None, 0);
    for mono in (0..=SECOND).step_by(7) {
        let stamp = often.stamp(WALL * 2, mono);
        // Its own stamps come back in between.
        often.applied(stamp, mono);
        often.applied(stamp, mono + 3);
    }
    let gained = often.stamp(WALL * 2, SECOND + 100) - (WALL + SECOND + 100);
    assert_eq!(gained, (SECOND + 100) / 100);
}

#[test]
fn only_an_election_steps_and_only_forward() {
    let mut stamper = Stamper::default();
    stamper.applied(WALL, 10);
    // Not a leader: no median moves it, stamps that were applied do, back as well.
    stamper.median(WALL * 2, 10);
    assert_eq!(stamper.skew_us(WALL, 10), 0);
    stamper.applied(WALL - 5, 11);
    assert_eq!(stamper.skew_us(WALL, 11), 5);
    // Elected with a median that came later: one step, the second does nothing.
    stamper.elected(None, 12);
    assert!(stamper.wants_median());
    assert_eq!(stamper.stamp(WALL, 12), WALL - 4);
    stamper.median(WALL + 77, 12);
    assert!(!stamper.wants_median());
    assert_eq!(stamper.stamp(WALL, 12), WALL + 77);
    stamper.median(WALL + 999, 12);
    assert_eq!(stamper.stamp(WALL, 12), WALL + 77);
    // Never down.
    stamper.deposed();
    stamper.elected(Some(WALL - SECOND), 12);
    assert_eq!(stamper.stamp(WALL, 12), WALL + 77);
    // Own stamps that come back late don't hold a leader's clock back; a higher one pushes it.
    stamper.applied(WALL, 500);
    assert_eq!(stamper.stamp(WALL + 565, 500), WALL + 565);
    stamper.applied(WALL + SECOND, 501);
    assert_eq!(stamper.stamp(WALL + 565, 501), WALL + SECOND);
}

#[test]
fn median_takes_a_quorum() {
    let rows: [(&[u64], usize, Option<u64>); 9] = [
        (&[5], 1, Some(5)),
        (&[], 1, None),
        (&[], 0, None),
        (&[5], 2, None),
        (&[5], 3, None),
        (&[9, 5], 3, Some(5)),
        (&[9, 5, 7], 3, Some(7)),
        (&[u64::MAX, 5, 7, 6], 5, Some(6)),
        (&[0, 0, u64::MAX], 5, Some(0)),
    ];
    for (walls, voters, expected) in rows {
        assert_eq!(median_wall_us(walls, voters), expected, "{walls:?} of {voters}");
    }
}

#[test]
fn readers_see_the_last_stamp_plus_the_time_since() {
    let clock = ClusterClock::new(0, 1_000);
    assert_eq!(clock.now_us(1_500), 500);
    clock.applied(WALL, 2_000);
    assert_eq!(clock.now_us(2_000), WALL);
    assert_eq!(clock.now_us(2_400), WALL + 400);
    // A stamp behind what was given out: time stands until it is reached.
    clock.applied(WALL + 100, 2_500);
    assert_eq!(clock.now_us(2_500), WALL + 400);
    assert_eq!(clock.now_us(2_800), WALL + 400);
    assert_eq!(clock.now_us(2_801), WALL + 401);
    // A monotonic clock read before the stamp was applied.
    assert_eq!(clock.now_us(2_000), WALL + 401);
}

/// Leaders come and go, wall clocks jump, entries are applied late: stamps never run backwards within a leadership,
/// move by 99 to 101 percent of the monotonic time outside of elections, and readers never see time go back.
#[test]
fn random_walks() {
    for seed in 0..300 {
        walk(seed);
    }
}

fn walk(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut mono = rng.random_range(0..SECOND);
    let mut stamper = Stamper::new(WALL, mono);
    let clock = ClusterClock::new(WALL, mono);
    let mut shown = 0;
    let mut last: Option<(u64, u64)> = None;
    let mut in_flight = std::collections::VecDeque::new();
    for step in 0..400 {
        mono += rng.random_range(0..SECOND / 10);
        let wall = (WALL + mono).saturating_add_signed(rng.random_range(-100 * SECOND as i64..100 * SECOND as i64));
        match rng.random_range(0..10) {
            0 => {
                stamper.elected(rng.random_bool(0.5).then_some(wall), mono);
                last = None;
            }
            1 => {
                stamper.median(wall, mono);
                last = None;
            }
            2..=5 => {
                let stamp = stamper.stamp(wall, mono);
                if let Some((stamp_before, mono_before)) = last {
                    let (gained, passed) = (stamp.checked_sub(stamp_before), mono - mono_before);
                    let within = gained.is_some_and(|gained| gained.abs_diff(passed) <= passed / 100 + 1);
                    assert!(within, "seed {seed} step {step}: {gained:?} in {passed}");
                }
                last = Some((stamp, mono));
                in_flight.push_back(stamp);
            }
            _ => {
                if let Some(stamp) = in_flight.pop_front() {
                    clock.applied(stamp, mono);
                    stamper.applied(stamp, mono);
                    // A follower follows; an entry of an earlier leadership may lie ahead of this one.
                    if !stamper.leads || last.is_some_and(|(highest, _)| stamp > highest) {
                        last = None;
                    }
                }
            }
        }
        let now = clock.now_us(mono - rng.random_range(0..100).min(mono));
        assert!(now >= shown, "seed {seed} step {step}: {now} after {shown}");
        shown = now;
    }
}

/// Many threads read while one applies: each sees time rise, and what one saw another doesn't undercut later.
#[test]
fn readers_on_many_threads() {
    let clock = Arc::new(ClusterClock::new(WALL, 0));
    let ticks = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (clock, ticks) = (Arc::clone(&clock), Arc::clone(&ticks));
            std::thread::spawn(move || {
                let mut last = 0;
                for _ in 0..50_000 {
                    let now = clock.now_us(ticks.fetch_add(1, Ordering::SeqCst));
                    assert!(now >= last, "{now} after {last}");
                    last = now;
                }
                last
            })
        })
        .collect();
    for back in 0..50_000_u64 {
        clock.applied(WALL + back % 1_000, ticks.load(Ordering::SeqCst));
    }
    let highest = readers.into_iter().map(|reader| reader.join().unwrap()).max().unwrap();
    assert!(clock.now_us(0) >= highest);
}
