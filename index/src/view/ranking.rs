//! Where each match of a lookup comes: best score first, equal ones by replica id. What a match is worth is decided in
//! `search`. Matches mostly come in nearly the right order, as many of them are worth the same, and are put in order by
//! one number each.

use super::names::{Seated, Seats};
use crate::store::runs::Match;

/// Up to so many matches are put in order by counting.
const FEW: usize = 20;
/// One in so many may be out of order before all are sorted.
const MAX_STRAYS: usize = 8;
/// From so many on, they are put in order by digits.
const MANY: usize = 512;
const DIGIT_BITS: u32 = 8;
const DIGITS: usize = 1 << DIGIT_BITS;

/// The ranking of one lookup's matches, with its buffers.
#[derive(Default)]
pub(crate) struct Ranking {
    /// Of each match that is ranked, its score and its member's order in one number, best first.
    places: Vec<u64>,
    /// Places that came out of order.
    strays: Vec<u64>,
    spare: Vec<u64>,
    /// By order, one more than the number of the match, for those that have one.
    matches: Vec<u32>,
    /// What takes part, the order in the high half and the number of the match in the low one. While most members have a
    /// match they are looked through instead.
    admitted: Vec<u64>,
    are_most: bool,
}

impl Ranking {
    /// Begins the ranking of at most so many matches.
    pub(crate) fn begin(&mut self, matches: usize, seats: &Seats) {
        if self.matches.len() < seats.len() {
            self.matches.resize(seats.len(), 0);
        }
        self.admitted.clear();
        self.admitted.reserve(matches);
        self.are_most = matches > FEW && matches >= seats.len() / 4;
        if self.are_most {
            self.matches.iter_mut().take(seats.len()).for_each(|at| *at = 0);
        }
    }

    /// Lets the match numbered `at`, whose member has that order, take part; false when nobody has it.
    #[inline]
    pub(crate) fn admit(&mut self, at: u32, order: u32) -> bool {
        let Some(place) = self.matches.get_mut(order as usize) else { return false };
        *place = at + 1;
        if !self.are_most {
            self.admitted.push((u64::from(order) << 32) | u64::from(at));
        }
        true
    }

    /// All have been admitted.
    pub(crate) fn end(&mut self, seats: &Seats) {
        if !self.are_most {
            return;
        }
        let by_order = self.matches.get(..seats.len()).unwrap_or(&self.matches);
        self.admitted.resize(by_order.len(), 0);
        let mut len = 0;
        for (order, &at) in (0u64..).zip(by_order) {
            // What nobody has is overwritten by the next.
            if let Some(place) = self.admitted.get_mut(len) {
                *place = (order << 32) | u64::from(at.wrapping_sub(1));
            }
            len += usize::from(at > 0);
        }
        self.admitted.truncate(len);
    }

    /// Ranks what was admitted and `height` gives a height, the one of a sortable score. Apart, so that the loop has the
    /// registers to itself.
    #[inline(never)]
    pub(crate) fn rank(&mut self, matches: &[Match], mut height: impl FnMut(&Match, u32) -> Option<u32>) {
        let Self { places, strays, spare, admitted, .. } = self;
        places.clear();
        places.resize(admitted.len(), 0);
        strays.clear();
        let (mut last, mut len) = (0, 0);
        for &both in &*admitted {
            let (at, order) = (both as u32, (both >> 32) as u32);
            let Some(found) = matches.get(at as usize) else { continue };
            let Some(height) = height(found, order) else { continue };
            let place = (u64::from(height) << 32) | u64::from(order);
            if place >= last
                && let Some(next) = places.get_mut(len)
            {
                (last, *next) = (place, place);
                len += 1;
            } else {
                strays.push(place);
            }
        }
        places.truncate(len);
        if strays.len() > admitted.len() / MAX_STRAYS {
            places.append(strays);
            sort(places, spare);
        } else if !strays.is_empty() {
            merge(places, strays);
        }
    }

    /// The numbers of all matches that were admitted.
    pub(crate) fn admitted(&self) -> impl Iterator<Item = u32> {
        self.admitted.iter().map(|&both| both as u32)
    }

    /// The best score.
    pub(crate) fn best(&self) -> Option<f32> {
        self.places.first().map(|&place| score_of(place))
    }

    /// The places of what is ranked, best first.
    pub(crate) fn places(&self) -> &[u64] {
        &self.places
    }

    /// What is in a place: the match, its member and its score.
    #[inline]
    pub(crate) fn in_place<'r>(
        &self,
        place: u64,
        matches: &'r [Match],
        seats: &'r Seats,
    ) -> Option<(&'r Match, &'r Seated, f32)> {
        let order = place as u32;
        let at = *self.matches.get(order as usize)? as usize;
        Some((matches.get(at.wrapping_sub(1))?, seats.at(order)?, score_of(place)))
    }
}

/// Where a score stands: descending.
#[inline]
pub(crate) fn height(score: f32) -> u32 {
    let bits = score.to_bits();
    // As unsigned numbers these are in the order of `f32::total_cmp`.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

fn score_of(place: u64) -> f32 {
    let ascending = !((place >> 32) as u32);
    f32::from_bits(if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending })
}

/// Puts places in order.
fn sort(places: &mut Vec<u64>, spare: &mut Vec<u64>) {
    match places.len() {
        0..=FEW => sort_few(places, spare),
        len if len < MANY => places.sort_unstable(),
        _ => sort_by_digits(places, spare),
    }
}

/// The same by counting for each what comes before it: more comparisons, but none that the processor has to guess.
fn sort_few(places: &mut Vec<u64>, spare: &mut Vec<u64>) {
    spare.clear();
    spare.resize(places.len(), 0);
    for (at, &place) in places.iter().enumerate() {
        let (before, after) = places.split_at(at);
        let earlier = before.iter().map(|&other| usize::from(other <= place)).sum::<usize>();
        // Itself is not below itself.
        let later = after.iter().map(|&other| usize::from(other < place)).sum::<usize>();
        spare[earlier + later] = place;
    }
    std::mem::swap(places, spare);
}

/// Puts a few strays among places that are in order.
fn merge(places: &mut Vec<u64>, strays: &mut Vec<u64>) {
    if let [stray] = strays[..] {
        let at = places.partition_point(|&place| place < stray);
        places.insert(at, stray);
        return;
    }
    strays.sort_unstable();
    let mut kept = places.len();
    places.extend_from_slice(strays);
    // From the end on, so that nothing is overwritten before it has moved.
    let mut end = places.len();
    while let Some(&stray) = strays.last() {
        end -= 1;
        if kept > 0 && places[kept - 1] > stray {
            kept -= 1;
            places[end] = places[kept];
        } else {
            places[end] = stray;
            strays.pop();
        }
    }
}

/// The same by one digit after the other, beginning with the lowest that differs.
fn sort_by_digits(places: &mut Vec<u64>, spare: &mut Vec<u64>) {
    let digit = |place: u64, number: usize| (place >> (DIGIT_BITS as usize * number)) as usize % DIGITS;
    let mut counts = [[0u32; DIGITS]; (u64::BITS / DIGIT_BITS) as usize];
    for &place in &*places {
        for (number, counts) in counts.iter_mut().enumerate() {
            counts[digit(place, number)] += 1;
        }
    }
    for (number, counts) in counts.iter_mut().enumerate() {
        let first = places.first().map_or(0, |&place| digit(place, number));
        if counts[first] as usize == places.len() {
            continue;
        }
        let mut next = 0;
        for count in counts.iter_mut() {
            next += std::mem::replace(count, next);
        }
        spare.clear();
        spare.resize(places.len(), 0);
        for &place in &*places {
            let at = &mut counts[digit(place, number)];
            spare[*at as usize] = place;
            *at += 1;
        }
        std::mem::swap(places, spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Dice;

    fn place(score: f32, order: u32) -> u64 {
        (u64::from(height(score)) << 32) | u64::from(order)
    }

    #[test]
    fn places_are_in_the_order_of_scores_and_give_them_back() {
        let scores = [f32::NEG_INFINITY, -2.5, -f32::MIN_POSITIVE, 0.0, 1e-9, 64.0, 64.5, f32::MAX, f32::INFINITY];
        for (at, a) in scores.iter().enumerate() {
            assert_eq!(score_of(place(*a, 7)), *a);
            assert!(place(*a, 1) < place(*a, 2));
            assert!(scores[..at].iter().all(|b| place(*a, u32::MAX) < place(*b, 0)));
        }
    }

    #[test]
    fn every_way_of_sorting_is_one() {
        let mut dice = Dice(31);
        let (mut spare, mut strays) = (Vec::new(), Vec::new());
        for round in 0..600u64 {
            let len = dice.roll([21, 70, 700, 3_000][round as usize % 4]) as u32;
            let odd = [1, 3, 20, 10_000][round as usize / 4 % 4];
            let mut score = || if dice.one_in(odd) { dice.roll(1 << 20) as f32 / 7.0 - 900.0 } else { 5.0 };
            let mut places: Vec<u64> = (0..len).map(|order| place(score(), order * 3)).collect();
            let mut expected = places.clone();
            expected.sort();
            let mut merged = Vec::new();
            for &place in &places {
                let is_next = merged.last().is_none_or(|&last| last <= place);
                if is_next { merged.push(place) } else { strays.push(place) }
            }
            merge(&mut merged, &mut strays);
            assert_eq!(merged, expected, "round {round}");
            strays.clear();
            sort(&mut places, &mut spare);
            assert_eq!(places, expected, "round {round}");
        }
    }
}
