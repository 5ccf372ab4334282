//! Which models are listed by name: those that the index holds, and drained ones at 0 until there are too many. Pure;
//! time is the number of the scrape.

use super::MAX_LABEL_VALUES;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The models seen so far.
#[derive(Debug, Default)]
pub struct Roster {
    models: BTreeMap<Arc<str>, Listed>,
    scrape: u64,
}

#[derive(Debug)]
struct Listed {
    prefixes: u64,
    /// The last scrape that saw the model in the index.
    seen: u64,
}

impl Roster {
    /// Takes in what the index holds now. Beyond the limit the longest drained go first, then those of fewest
    /// prefixes.
    pub fn update(&mut self, held: &[(Arc<str>, u64)]) {
        self.scrape += 1;
        for listed in self.models.values_mut() {
            listed.prefixes = 0;
        }
        for (model, prefixes) in held {
            self.models.insert(model.clone(), Listed { prefixes: *prefixes, seen: self.scrape });
        }
        let excess = self.models.len().saturating_sub(MAX_LABEL_VALUES);
        if excess > 0 {
            let ranked = self.models.iter().map(|(model, listed)| (listed.seen, listed.prefixes, model.clone()));
            let leaving: Vec<_> = ranked.collect::<BTreeSet<_>>().into_iter().take(excess).collect();
            for (_, _, model) in leaving {
                self.models.remove(&model);
            }
        }
    }

    /// Each listed model with its distinct prefixes, sorted.
    pub fn listed(&self) -> Vec<(Arc<str>, u64)> {
        self.models.iter().map(|(model, listed)| (model.clone(), listed.prefixes)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(range: std::ops::Range<u32>) -> Vec<(Arc<str>, u64)> {
        range.map(|i| (format!("m{i:04}").into(), u64::from(i) + 1)).collect()
    }

    #[test]
    fn a_drained_model_shows_0() {
        let mut roster = Roster::default();
        roster.update(&held(0..2));
        roster.update(&held(1..2));
        assert_eq!(roster.listed(), [("m0000".into(), 0), ("m0001".into(), 2)]);
    }

    #[test]
    fn the_longest_drained_is_dropped_first() {
        let mut roster = Roster::default();
        roster.update(&held(0..10));
        roster.update(&held(10..20));
        roster.update(&held(20..1_005));
        let listed = roster.listed();
        assert_eq!(listed.len(), MAX_LABEL_VALUES);
        assert_eq!(listed.first().map(|(model, n)| (model.as_ref(), *n)), Some(("m0005", 0)));
        roster.update(&held(0..3_000));
        assert_eq!(roster.listed().len(), MAX_LABEL_VALUES);
    }
}
