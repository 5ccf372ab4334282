//! The writer's records of slabs, by their numbers. A new slab gets the lowest number that is nobody's, so that the highest
//! fall free as the content turns over, and the room for them goes back.

use super::lowest::Lowest;

/// What the writer knows of a slab.
#[derive(Copy, Clone)]
pub(super) struct Record {
    /// Its first granule; 0 when the number is nobody's.
    pub(super) granule: u32,
    pub(super) partition: u32,
    /// Positions that somebody holds.
    pub(super) held: u32,
}

const VACANT: Record = Record { granule: 0, partition: 0, held: 0 };
/// Room for so many records more than half of those that there are is kept in any case.
const KEPT: usize = 2_048;

/// The records of all slabs.
#[derive(Default)]
pub(super) struct Records {
    places: Vec<Record>,
    /// Numbers below the end that are nobody's.
    free: Lowest,
    /// The domain of each partition, by the partition's number.
    domains: Vec<u64>,
}

impl Records {
    /// The domain of a slab's partition.
    pub(super) fn domain(&self, record: &Record) -> u64 {
        self.domains.get(record.partition as usize).copied().unwrap_or(0)
    }

    /// Notes the domain of a partition, whose number may have been another's of which nothing is left.
    pub(super) fn set_domain(&mut self, partition: u32, domain: u64) {
        let at = partition as usize;
        if self.domains.len() <= at {
            self.domains.resize(at + 1, 0);
        }
        if let Some(place) = self.domains.get_mut(at) {
            *place = domain;
        }
    }

    /// One above the highest number.
    pub(super) fn end(&self) -> u32 {
        // `next` never gives a higher one.
        u32::try_from(self.places.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn get(&self, number: u32) -> Option<&Record> {
        self.places.get(number as usize).filter(|record| record.granule != 0)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Record> {
        self.places.get_mut(number as usize).filter(|record| record.granule != 0)
    }

    /// The number of the next slab; `None` when 32 bits are used up.
    pub(super) fn next(&self) -> Option<u32> {
        self.free.first().or_else(|| Some(self.end()).filter(|&end| end < u32::MAX))
    }

    /// Gives [`Records::next`] to a slab.
    pub(super) fn insert(&mut self, record: Record) {
        match self.free.first() {
            Some(number) => {
                self.free.remove(number);
                if let Some(place) = self.places.get_mut(number as usize) {
                    *place = record;
                }
            }
            None => {
                // By an eighth at a time: little room lies idle, and it may be as much as there is of anything.
                if self.places.len() == self.places.capacity() {
                    self.places.reserve_exact((self.places.len() / 8).max(64));
                }
                self.places.push(record);
            }
        }
    }

    /// Makes a number nobody's.
    pub(super) fn remove(&mut self, number: u32) -> Option<Record> {
        let record = std::mem::replace(self.get_mut(number)?, VACANT);
        self.free.insert(number);
        let end = self.free.cut(self.end());
        self.places.truncate(end as usize);
        if self.places.capacity() > KEPT + self.places.len() * 3 / 2 {
            self.places.shrink_to(self.places.len() * 9 / 8);
            self.free.shrink_to(end);
        }
        Some(record)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::tests::Dice;
    use std::collections::BTreeMap;

    #[test]
    fn the_lowest_number_is_given_and_the_end_comes_back() {
        let (mut records, mut model, mut dice) = (Records::default(), BTreeMap::new(), Dice(8));
        for step in 1..60_000u32 {
            let is_growing = step % 30_000 < 16_000;
            if dice.roll(10) < if is_growing { 8 } else { 3 } {
                let number = records.next().unwrap();
                assert!((0..number).rev().take(50).all(|lower| model.contains_key(&lower)), "step {step}");
                records.insert(Record { granule: step, ..VACANT });
                assert!(model.insert(number, step).is_none());
            } else if let Some(&number) = model.keys().nth(dice.roll(model.len().max(1) as u64) as usize) {
                assert_eq!(records.remove(number).map(|record| record.granule), model.remove(&number));
                assert!(records.get(number).is_none() && records.remove(number).is_none());
            }
        }
        assert!(model.iter().all(|(number, granule)| records.get(*number).unwrap().granule == *granule));
        while let Some((number, _)) = model.pop_first() {
            records.remove(number);
        }
        assert!(records.end() == 0 && records.places.capacity() <= KEPT, "nothing is left");
    }
}
