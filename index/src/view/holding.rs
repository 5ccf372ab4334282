//! How many matches of a lookup have how many tokens, which says how much one of them tells. There are few different
//! counts, as replicas mostly share the same few stretches. Pure.

/// How many matches there are of how many tokens.
#[derive(Default)]
pub(super) struct Holding {
    counts: [(i32, u32); FEW_COUNTS],
    len: usize,
    /// All matches.
    total: u32,
}

const FEW_COUNTS: usize = 8;

impl Holding {
    /// Takes note of so many matches of so many tokens.
    #[inline]
    pub(super) fn note(&mut self, tokens: i32, matches: u32) {
        if matches == 0 {
            return;
        }
        self.total += matches;
        let known = self.counts.iter().take(self.len).position(|(held, _)| *held == tokens);
        let at = known.unwrap_or(self.len);
        if let Some(of) = self.counts.get_mut(at) {
            *of = (tokens, of.1 + matches);
        }
        self.len = self.len.max(at + 1);
    }

    /// All matches.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// False when there are too many different counts.
    pub(super) fn is_whole(&self) -> bool {
        self.len <= FEW_COUNTS
    }

    /// Matches of at least so many tokens; `all` has the tokens of all, ascending, if there are too many different ones.
    pub(super) fn at_least(&self, least: i32, all: &[i32]) -> usize {
        if self.is_whole() {
            let enough = self.counts.iter().take(self.len).filter(|(held, _)| *held >= least);
            enough.map(|(_, count)| *count as usize).sum()
        } else {
            all.len() - all.partition_point(|&held| held < least)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Dice;

    #[test]
    fn it_counts_what_has_at_least_so_many_tokens() {
        let mut dice = Dice(12);
        for round in 0..200u64 {
            let (mut holding, mut all) = (Holding::default(), Vec::new());
            for _ in 0..dice.roll(20) {
                let (tokens, matches) = (dice.roll(2 + round / 10) as i32 - 1, dice.roll(5) as u32);
                holding.note(tokens, matches);
                all.extend((0..matches).map(|_| tokens));
            }
            all.sort_unstable();
            assert_eq!(holding.total() as usize, all.len());
            for least in -3..25 {
                let expected = all.iter().filter(|&&tokens| tokens >= least).count();
                assert_eq!(holding.at_least(least, &all), expected, "round {round}, {least}");
            }
        }
    }
}
