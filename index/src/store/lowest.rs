//! A set of numbers whose lowest is asked for: a bit for each, and over every 64 words a word that says which of them are
//! not 0, up to a single one. All calls take as many steps as there are levels.

const BITS: usize = u64::BITS as usize;

/// The set.
#[derive(Default)]
pub(super) struct Lowest {
    /// From the numbers themselves up to a level of one word; none for a set that has never had a number.
    levels: Vec<Vec<u64>>,
}

impl Lowest {
    /// The lowest number.
    pub(super) fn first(&self) -> Option<u32> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            let word = level.get(at).copied().filter(|&word| word != 0)?;
            at = at * BITS + word.trailing_zeros() as usize;
        }
        u32::try_from(at).ok().filter(|_| !self.levels.is_empty())
    }

    pub(super) fn insert(&mut self, number: u32) {
        self.make_room(number as usize / BITS + 1);
        let mut at = number as usize;
        for level in &mut self.levels {
            let (word, bit) = split(at);
            if let Some(of) = level.get_mut(word) {
                *of |= bit;
            }
            at = word;
        }
    }

    pub(super) fn remove(&mut self, number: u32) {
        let (word, bit) = split(number as usize);
        self.clear(word, bit);
    }

    /// Removes what is in the set just below `end`, all of it, and returns the end that this leaves.
    pub(super) fn cut(&mut self, end: u32) -> u32 {
        let mut end = end as usize;
        while let Some(last) = end.checked_sub(1) {
            let (word, _) = split(last);
            let Some(&of) = self.levels.first().and_then(|level| level.get(word)) else { break };
            let above = BITS - 1 - last % BITS;
            let run = (of << above).leading_ones() as usize;
            if run == 0 {
                break;
            }
            end -= run;
            self.clear(word, u64::MAX >> (BITS - run) << (end % BITS));
        }
        u32::try_from(end).unwrap_or(u32::MAX)
    }

    /// Clears bits of a word, and what levels above say of it.
    fn clear(&mut self, word: usize, bits: u64) {
        let (mut word, mut bits) = (word, bits);
        for level in &mut self.levels {
            let Some(of) = level.get_mut(word) else { return };
            *of &= !bits;
            if *of != 0 {
                return;
            }
            (word, bits) = split(word);
        }
    }

    /// Gives memory back that only numbers from `end` on need; none of them may be in the set.
    pub(super) fn shrink_to(&mut self, end: u32) {
        let mut words = (end as usize).div_ceil(BITS).max(1);
        for level in &mut self.levels {
            level.truncate(words);
            level.shrink_to_fit();
            words = words.div_ceil(BITS);
        }
    }

    fn make_room(&mut self, words: usize) {
        let mut words = words;
        for at in 0.. {
            match self.levels.get_mut(at) {
                Some(level) if level.len() < words => level.resize(words, 0),
                Some(level) => words = level.len(),
                None => {
                    // What is below has grown out of one word, or there was nothing.
                    let below = at.checked_sub(1).and_then(|at| self.levels.get(at));
                    let is_any = |words: &[u64]| words.iter().any(|word| *word != 0);
                    let first = below.map_or(0, |below| u64::from(below.first().is_some_and(|word| *word != 0)));
                    debug_assert!(below.is_none_or(|below| !is_any(below.get(1..).unwrap_or(&[]))));
                    let mut level = vec![0; words];
                    level[0] = first;
                    self.levels.push(level);
                }
            }
            if words == 1 {
                return;
            }
            words = words.div_ceil(BITS);
        }
    }
}

fn split(at: usize) -> (usize, u64) {
    (at / BITS, 1 << (at % BITS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Dice;
    use std::collections::BTreeSet;

    #[test]
    fn it_is_a_set() {
        for seed in 0..100 {
            let mut dice = Dice(seed);
            let (mut set, mut model) = (Lowest::default(), BTreeSet::new());
            let most = [3, 64, 65, 5_000, 300_000][seed as usize % 5];
            for step in 0..1_000 {
                let number = dice.roll(most) as u32;
                match dice.roll(5) {
                    0..2 => {
                        set.insert(number);
                        model.insert(number);
                    }
                    2 => {
                        set.remove(number);
                        model.remove(&number);
                    }
                    3 => {
                        if let Some(first) = model.pop_first() {
                            assert_eq!(set.first(), Some(first), "seed {seed}, step {step}");
                            set.remove(first);
                        }
                    }
                    _ if dice.one_in(2) => set.shrink_to(model.last().map_or(0, |last| last + 1)),
                    _ => {
                        let end = number + dice.roll(200) as u32;
                        (number..end).for_each(|number| set.insert(number));
                        model.extend(number..end);
                        let mut left = end;
                        while left.checked_sub(1).is_some_and(|last| model.remove(&last)) {
                            left -= 1;
                        }
                        assert_eq!(set.cut(end), left, "seed {seed}, step {step}");
                    }
                }
                assert_eq!(set.first(), model.first().copied(), "seed {seed}, step {step}");
            }
        }
    }
}
