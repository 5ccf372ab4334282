//! What a policy came to, as JSON and as a row of the table.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The figures of one policy. Those about lookups are null for a policy that makes none.
#[derive(Debug, Default, Serialize)]
pub struct Outcome {
    /// prefixd, perfect, round-robin or random.
    pub name: &'static str,
    /// Blocks cached where they were asked for, over all blocks asked for; a partial block is a block.
    pub block_hit_ratio: f64,
    /// The same in tokens.
    pub token_hit_ratio: f64,
    /// Prompt tokens routed to the busiest engine, over the mean.
    pub busiest_over_mean: f64,
    /// Hints for blocks that the engine never held: must be 0.
    pub wrong_hints: u64,
    /// Hints for blocks that the engine held and has since evicted.
    pub stale_hints: u64,
    /// The median of what a lookup took, as the client saw it, in microseconds.
    pub lookup_p50_us: Option<u64>,
    /// What 99 of 100 lookups stayed under, likewise.
    pub lookup_p99_us: Option<u64>,
    /// Lookups over the whole duration, waits for acknowledgements included.
    pub lookups_per_s: Option<f64>,
    /// How often each reason code was given; ERROR for lookups that failed.
    pub reason_codes: BTreeMap<String, u64>,
    /// The seed of the random policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Reports and events that were not acknowledged in spite of retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report_errors: Option<u64>,
    /// How long it took, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed_s: Option<f64>,
}

/// All policies of one replay.
#[derive(Debug, Serialize)]
pub struct Outcomes {
    /// prefixd first.
    pub policies: Vec<Outcome>,
}

impl Outcomes {
    /// The table, and below it what has no column.
    pub fn table(&self) -> String {
        let dash = || "-".to_owned();
        let mut rows = vec![
            [
                "policy",
                "block hits",
                "token hits",
                "busiest/mean",
                "wrong hints",
                "stale hints",
                "lookups/s",
                "p50 us",
                "p99 us",
            ]
            .map(str::to_owned),
        ];
        rows.extend(self.policies.iter().map(|policy| {
            let counted = |hints: u64| if policy.reason_codes.is_empty() { dash() } else { hints.to_string() };
            [
                policy.name.to_owned(),
                format!("{:.3}", policy.block_hit_ratio),
                format!("{:.3}", policy.token_hit_ratio),
                format!("{:.3}", policy.busiest_over_mean),
                counted(policy.wrong_hints),
                counted(policy.stale_hints),
                policy.lookups_per_s.map_or_else(dash, |rate| format!("{rate:.0}")),
                policy.lookup_p50_us.map_or_else(dash, |us| us.to_string()),
                policy.lookup_p99_us.map_or_else(dash, |us| us.to_string()),
            ]
        }));
        let mut text = crate::cli::table::render(&rows);
        for policy in &self.policies {
            self.notes(policy, &mut text);
        }
        text
    }

    fn notes(&self, policy: &Outcome, text: &mut String) {
        let mut note = |line: String| {
            // Writing to a String can't fail.
            let _ = writeln!(text, "{line}");
        };
        if !policy.reason_codes.is_empty() {
            let codes: Vec<String> = policy.reason_codes.iter().map(|(code, n)| format!("{code} {n}")).collect();
            note(format!("\n{}: {}", policy.name, codes.join(", ")));
        }
        if let Some(perfect) = self.policies.iter().find(|other| other.name == "perfect" && policy.name == "prefixd") {
            let share = 100.0 * policy.block_hit_ratio / perfect.block_hit_ratio.max(f64::MIN_POSITIVE);
            note(format!("{}: {share:.1}% of the block hits of perfect knowledge", policy.name));
        }
        if let Some(errors) = policy.report_errors.filter(|&errors| errors > 0) {
            note(format!("{}: {errors} reports or events were never acknowledged", policy.name));
        }
        if let Some(elapsed_s) = policy.elapsed_s {
            note(format!("{}: took {elapsed_s:.1} s", policy.name));
        }
        if let Some(seed) = policy.seed {
            note(format!("{}: seed {seed}", policy.name));
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn outcomes() -> Outcomes {
        let prefixd = Outcome {
            name: "prefixd",
            block_hit_ratio: 0.3,
            reason_codes: BTreeMap::from([("PREFIX_MATCH".into(), 4)]),
            lookup_p50_us: Some(120),
            lookups_per_s: Some(99.6),
            report_errors: Some(0),
            ..Outcome::default()
        };
        let perfect = Outcome { name: "perfect", block_hit_ratio: 0.4, ..Outcome::default() };
        Outcomes { policies: vec![prefixd, perfect] }
    }

    #[test]
    fn json_has_every_promised_key() {
        let json = serde_json::to_value(outcomes()).unwrap();
        let first = &json["policies"][0];
        for key in [
            "name",
            "block_hit_ratio",
            "token_hit_ratio",
            "busiest_over_mean",
            "wrong_hints",
            "stale_hints",
            "lookup_p50_us",
            "lookup_p99_us",
            "lookups_per_s",
            "reason_codes",
        ] {
            assert!(first.get(key).is_some(), "{key}");
        }
        assert_eq!(first["reason_codes"]["PREFIX_MATCH"], 4);
        assert!(json["policies"][1]["lookup_p50_us"].is_null());
    }

    #[test]
    fn the_table_shows_what_there_is_and_the_share_of_perfect() {
        let table = outcomes().table();
        assert!(table.contains("75.0% of the block hits"), "{table}");
        assert!(table.contains("PREFIX_MATCH 4"), "{table}");
        assert!(!table.contains("never acknowledged"), "{table}");
        let perfect = table.lines().find(|line| line.starts_with("perfect")).unwrap();
        assert_eq!(perfect.matches(" -").count(), 5, "{table}");
    }
}
