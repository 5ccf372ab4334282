//! The gateway of the simulation: it turns hints and load into one engine. Pure, and the same for every policy that has
//! hints, so that a comparison compares what was known and not how it was used.
//!
//! Load is the prompt tokens routed to an engine so far: deterministic, and blind to service times that a trace does
//! not tell. The rules, in order:
//! 1. An engine that was never used is next. Without this every prompt that shares a system prompt follows the first.
//! 2. The best hint among engines within the load bound; ties go to the least loaded.
//! 3. The least loaded engine; ties go to the first.

/// Tokens by which an engine may exceed the load bound: about one very long prompt. The mean means little early on.
const SLACK_TOKENS: f64 = 131_072.0;

/// One engine that may have part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hint {
    /// The engine.
    pub engine: usize,
    /// Higher is better; 0 or less is no reason to prefer it.
    pub score: f64,
}

/// Routes requests to engines.
pub struct Gateway {
    routed_tokens: Vec<u64>,
    /// Load over the mean load up to which hints are followed; 0 follows them always.
    load_bound: f64,
}

impl Gateway {
    /// A gateway in front of idle engines.
    pub fn new(engines: usize, load_bound: f64) -> Self {
        Self { routed_tokens: vec![0; engines], load_bound }
    }

    /// The engine for the next request. Hints for engines that don't exist are passed over.
    pub fn choose(&self, hints: &[Hint]) -> usize {
        if let Some(unused) = self.routed_tokens.iter().position(|&tokens| tokens == 0) {
            return unused;
        }
        hints
            .iter()
            .filter(|hint| hint.score > 0.0 && self.is_within_bound(hint.engine))
            .min_by(|a, b| {
                b.score.total_cmp(&a.score).then_with(|| self.load_key(a.engine).cmp(&self.load_key(b.engine)))
            })
            .map_or_else(|| self.least_loaded(), |hint| hint.engine)
    }

    /// Takes note that an engine got a prompt of so many tokens.
    pub fn routed(&mut self, engine: usize, tokens: u64) {
        self.routed_tokens[engine] += tokens;
    }

    /// The load of the busiest engine over the mean; 1 is perfect balance.
    pub fn busiest_over_mean(&self) -> f64 {
        let busiest = self.routed_tokens.iter().max().copied().unwrap_or(0);
        if busiest == 0 { 1.0 } else { busiest as f64 / self.mean_tokens() }
    }

    fn least_loaded(&self) -> usize {
        (0..self.routed_tokens.len()).min_by_key(|&engine| self.load_key(engine)).unwrap_or(0)
    }

    fn load_key(&self, engine: usize) -> (u64, usize) {
        (self.routed_tokens[engine], engine)
    }

    fn is_within_bound(&self, engine: usize) -> bool {
        self.routed_tokens.get(engine).is_some_and(|&tokens| {
            self.load_bound == 0.0 || tokens as f64 <= self.load_bound * self.mean_tokens() + SLACK_TOKENS
        })
    }

    fn mean_tokens(&self) -> f64 {
        self.routed_tokens.iter().sum::<u64>() as f64 / self.routed_tokens.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(loads: &[u64]) -> Gateway {
        Gateway { routed_tokens: loads.to_vec(), load_bound: 1.25 }
    }

    fn hint(engine: usize, score: f64) -> Hint {
        Hint { engine, score }
    }

    #[test]
    fn each_rule_in_its_turn() {
        let cases: &[(&[u64], &[Hint], usize, &str)] = &[
            (&[5, 0, 0], &[hint(0, 9.0)], 1, "an unused engine comes before any hint"),
            (&[5, 6, 7], &[hint(1, 1.0), hint(2, 9.0)], 2, "the best hint, whatever the order"),
            (&[5, 7, 6], &[hint(1, 3.0), hint(2, 3.0)], 2, "of equal hints the least loaded"),
            (&[5, 6, 6], &[hint(2, 3.0), hint(1, 3.0)], 1, "and then the first"),
            (&[6, 5, 7], &[], 1, "without a hint the least loaded"),
            (&[5, 5, 7], &[hint(2, 0.0)], 0, "a hint of no worth is none"),
            (&[6, 5, 7], &[hint(9, 3.0)], 1, "an engine that doesn't exist is passed over"),
            (&[900_000, 1, 2], &[hint(0, 9.0)], 1, "a hint for an overloaded engine is not followed"),
            (&[900_000, 1, 2], &[hint(0, 9.0), hint(2, 1.0)], 2, "but the next one is"),
        ];
        for (loads, hints, expected, rule) in cases {
            assert_eq!(gateway(loads).choose(hints), *expected, "{rule}");
        }
    }

    #[test]
    fn a_bound_of_zero_follows_hints_always() {
        let gateway = Gateway { routed_tokens: vec![900_000, 1, 2], load_bound: 0.0 };
        assert_eq!(gateway.choose(&[hint(0, 9.0)]), 0);
    }

    #[test]
    fn balance_is_the_busiest_over_the_mean() {
        assert_eq!(gateway(&[2, 4, 6]).busiest_over_mean(), 1.5);
        assert_eq!(gateway(&[0, 0]).busiest_over_mean(), 1.0);
    }
}
