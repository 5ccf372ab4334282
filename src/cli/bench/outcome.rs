//! What came of a bench: counts, latencies, and how they are shown.

use super::pace::Pace;
use crate::cli::table;
use hdrhistogram::Histogram;
use prefixd_client::Error;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// Quantiles that are shown, with their names.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Calls that were measured.
pub struct Tally {
    latency_us: Histogram<u64>,
    done: u64,
    failed: u64,
    first_error: Option<String>,
}

impl Default for Tally {
    fn default() -> Self {
        // Three digits, any length: it resizes itself. `new` fails only on more than five.
        let mut latency_us = Histogram::new(3).expect("3 digits are allowed");
        latency_us.auto(true);
        Self { latency_us, done: 0, failed: 0, first_error: None }
    }
}

impl Tally {
    /// Counts a call; one that was not answered counts even if it began before the measured time.
    pub fn record(&mut self, is_measured: bool, took: Duration, result: Result<u64, Error>) {
        match result {
            Ok(done) if is_measured => {
                self.done += done;
                // It grows with what it gets; a saturating record would not.
                let _ = self.latency_us.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
            }
            Ok(_) => {}
            Err(error) => self.fail(error.to_string()),
        }
    }

    /// Counts a call without an answer.
    pub fn fail(&mut self, error: String) {
        self.failed += 1;
        self.first_error.get_or_insert(error);
    }

    /// Takes another connection's calls in.
    pub fn add(&mut self, other: Self) {
        // Both resize themselves, so there is nothing that does not fit.
        let _ = self.latency_us.add(&other.latency_us);
        self.done += other.done;
        self.failed += other.failed;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

/// One kind of calls.
pub struct Side {
    /// The calls.
    pub tally: Tally,
    /// How they were asked for.
    pub pace: Pace,
    /// By how many microseconds the clock was late at most; open load only.
    pub late_us: Option<u64>,
}

impl Side {
    fn per_second(&self, n: u64) -> f64 {
        n as f64 / self.pace.length.as_secs_f64()
    }

    fn quantiles_us(&self) -> [(&'static str, u64); QUANTILES.len()] {
        QUANTILES.map(|(name, quantile)| (name, self.tally.latency_us.value_at_quantile(quantile)))
    }

    fn json(&self) -> Value {
        let calls = self.tally.latency_us.len();
        let latency_us: serde_json::Map<_, _> =
            self.quantiles_us().map(|(name, us)| (name.to_owned(), json!(us))).into_iter().collect();
        json!({
            "calls": calls,
            "calls_per_s": self.per_second(calls),
            "failed": self.tally.failed,
            "asked_per_s": (self.pace.rate > 0.0).then_some(self.pace.rate),
            "in_flight_per_connection": self.pace.in_flight,
            "seconds": self.pace.length.as_secs_f64(),
            "latency_us": latency_us,
            "clock_late_us_max": self.late_us,
        })
    }
}

/// What came of both kinds.
pub struct Outcome {
    /// Lookups, if any were asked for; done is how many matched.
    pub lookups: Option<Side>,
    /// Reports, if any were asked for; done is blocks.
    pub reports: Option<Side>,
    /// Blocks of a chain.
    pub blocks: u64,
}

impl Outcome {
    /// Whether every call was answered.
    pub fn is_whole(&self) -> bool {
        self.sides().all(|(_, side)| side.tally.failed == 0)
    }

    fn sides(&self) -> impl Iterator<Item = (&'static str, &Side)> {
        let sides = [("lookup", &self.lookups), ("report", &self.reports)];
        sides.into_iter().filter_map(|(name, side)| Some((name, side.as_ref()?)))
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let mut all = json!({"blocks_per_chain": self.blocks});
        for (name, side) in self.sides() {
            let mut shown = side.json();
            match name {
                "lookup" => shown["matched"] = json!(side.tally.done),
                _ => shown["blocks_per_s"] = json!(side.per_second(side.tally.done)),
            }
            all[name] = shown;
        }
        all
    }

    /// For people.
    pub fn table(&self) -> String {
        let header = ["", "asked/s", "calls/s", "p50 us", "p99 us", "p99.9 us", "max us", "failed"].map(str::to_owned);
        let mut rows = vec![header];
        for (name, side) in self.sides() {
            let [p50, p99, p999, max] = side.quantiles_us().map(|(_, us)| us.to_string());
            let asked = if side.pace.rate > 0.0 { format!("{:.0}", side.pace.rate) } else { "all".into() };
            let calls = format!("{:.0}", side.per_second(side.tally.latency_us.len()));
            rows.push([name.into(), asked, calls, p50, p99, p999, max, side.tally.failed.to_string()]);
        }
        let mut text = table::render(&rows);
        for (name, side) in self.sides() {
            // Writing to a string does not fail.
            let _ = match name {
                "lookup" => {
                    let calls = side.tally.latency_us.len().max(1);
                    let share = 100.0 * side.tally.done as f64 / calls as f64;
                    writeln!(text, "lookups of {} blocks, {share:.1}% matched", self.blocks)
                }
                _ => writeln!(text, "{:.0} blocks/s acknowledged", side.per_second(side.tally.done)),
            };
            if let Some(late_us) = side.late_us {
                let _ = writeln!(text, "the {name} clock was late by {late_us} us at most: that is in the latencies");
            }
            if let Some(error) = &side.tally.first_error {
                let _ = writeln!(text, "a {name} failed: {error}");
            }
        }
        text
    }
}
