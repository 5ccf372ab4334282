//! How long a run is, what it draws its chances from, and what it says at its end. Every scenario prints one line that
//! begins with `CHAOS`; docs/RELIABILITY.md is made of such lines.

use rand::SeedableRng;
use rand::rngs::StdRng;
use std::time::Duration;

/// Upper election timeout by default: the T of the pass rules.
pub const T: Duration = Duration::from_secs(2);

/// PREFIXD_CHAOS=long: many rounds, and ratios and percentiles are judged.
pub fn is_long() -> bool {
    std::env::var("PREFIXD_CHAOS").is_ok_and(|mode| mode == "long")
}

/// How many rounds a scenario runs: PREFIXD_CHAOS_ROUNDS, else what the mode says.
pub fn rounds_of(default: u32, long: u32) -> u32 {
    let asked = std::env::var("PREFIXD_CHAOS_ROUNDS").ok();
    let of_mode = if is_long() { long } else { default };
    asked.map_or(of_mode, |text| text.parse().expect("PREFIXD_CHAOS_ROUNDS is a number"))
}

/// The chances of one scenario: from PREFIXD_CHAOS_SEED, else from a seed of its own, printed at once. What chance
/// decides is repeated by the seed; what the scheduler decides is not.
pub fn chances(scenario: &str) -> (u64, StdRng) {
    let asked = std::env::var("PREFIXD_CHAOS_SEED").ok();
    let seed = asked.map_or_else(rand::random, |text| text.parse().expect("PREFIXD_CHAOS_SEED is a number"));
    println!("{scenario}: PREFIXD_CHAOS_SEED={seed}");
    (seed, StdRng::seed_from_u64(seed))
}

/// Durations of one kind.
#[derive(Clone, Debug, Default)]
pub struct Figures(Vec<Duration>);

impl Figures {
    pub fn push(&mut self, one: Duration) {
        self.0.push(one);
    }

    pub fn extend(&mut self, more: impl IntoIterator<Item = Duration>) {
        self.0.extend(more);
    }

    pub fn all(self) -> Vec<Duration> {
        self.0
    }

    /// The value that this many percent don't exceed; zero of nothing.
    pub fn percentile(&self, percent: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }

    pub fn max(&self) -> Duration {
        self.percentile(100.0)
    }

    /// For people: median, p99 and worst.
    pub fn line(&self) -> String {
        let ms = |percent| self.percentile(percent).as_secs_f64() * 1e3;
        let places = if self.max() < Duration::from_millis(100) { 1 } else { 0 };
        format!(
            "p50 {:.places$} ms, p99 {:.places$} ms, max {:.places$} ms (n={})",
            ms(50.0),
            ms(99.0),
            ms(100.0),
            self.0.len()
        )
    }
}

/// Holds a percentile to its rule in a long run. A default run shares its machine with whatever else is tested there,
/// so it only holds the worst to ten times what was measured on a quiet one.
pub fn judge(what: &str, figures: &Figures, rules: &[(f64, Duration)], measured_median: Duration) {
    if is_long() {
        for (percent, limit) in rules {
            let found = figures.percentile(*percent);
            assert!(found <= *limit, "{what}: p{percent} is {found:?}, the rule is {limit:?}");
        }
    } else {
        let (found, limit) = (figures.max(), measured_median * 10);
        assert!(found <= limit, "{what}: the worst is {found:?}, ten times the measured median is {limit:?}");
    }
}

#[test]
fn percentiles_are_those_of_the_nearest_rank() {
    let figures = Figures((1..=200).map(Duration::from_millis).collect());
    assert_eq!(figures.percentile(50.0), Duration::from_millis(100));
    assert_eq!(figures.percentile(99.0), Duration::from_millis(198));
    assert_eq!(figures.max(), Duration::from_millis(200));
    assert_eq!(Figures::default().max(), Duration::ZERO);
}
