//! Where each match of a lookup comes: best score first, equal ones by replica id. What a match is worth is decided in
//! `search`. Matches are laid out by replica first, as many of them are worth the same and are then in order already; what is
//! sorted is one number each.

use crate::lookup::rank::Aging;
use crate::store::runs::Match;

/// Up to so many matches are put in order by counting.
const FEW: usize = 20;
/// One in so many may be out of order before all are sorted.
const MAX_STRAYS: usize = 8;
/// From so many on, they are put in order by digits.
const MANY: usize = 512;
const DIGIT_BITS: u32 = 8;
const DIGITS: usize = 1 << DIGIT_BITS;
/// As many members as a word has bits for.
const GROUP: usize = u64::BITS as usize;

/// What is ranked of a match, and told of it.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// What is left of its worth at its age.
    pub(crate) fresh: f32,
    /// The coldest tier of the run.
    pub(crate) coldness: u32,
    length: Length,
}

/// Blocks of a run in the high half, its tokens in the low one: mostly many rows have the same.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
struct Length(u64);

impl Length {
    fn new(depth: u32, tokens: i32) -> Self {
        Self(u64::from(depth) << 32 | u64::from(tokens as u32))
    }

    fn tokens(self) -> i32 {
        self.0 as i32
    }
}

impl Row {
    /// Tokens of the run.
    pub(crate) fn tokens(&self) -> i32 {
        self.length.tokens()
    }

    /// Blocks of the run.
    pub(crate) fn depth(&self) -> u32 {
        (self.length.0 >> 32) as u32
    }
}

/// What matches of so many tokens are worth.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Worth {
    /// They are not ranked.
    Nothing,
    /// All of them have a score of this height.
    Same(u32),
    /// Each has a score of its own, of which this is a factor.
    Each(f32),
}

/// The ranking of one lookup's matches, with its buffers.
#[derive(Default)]
pub(crate) struct Ranking {
    /// By order, in whole groups. Of those that take part, what is ranked.
    rows: Vec<Row>,
    /// A bit for each member, in groups: those that take part.
    bits: Vec<u64>,
    /// The groups that somebody of takes part, and how many do.
    touched: Vec<u32>,
    admitted: usize,
    /// Of each match that is ranked, its score and its member's order in one number, best first.
    places: Vec<u64>,
    /// Places that came out of order.
    strays: Vec<u64>,
    spare: Vec<u64>,
}

impl Ranking {
    /// Begins a ranking among so many members.
    pub(crate) fn begin(&mut self, members: usize) {
        for group in self.touched.drain(..) {
            if let Some(bits) = self.bits.get_mut(group as usize) {
                *bits = 0;
            }
        }
        self.admitted = 0;
        let groups = members.div_ceil(GROUP);
        if self.bits.len() < groups {
            self.bits.resize(groups, 0);
            self.rows.resize(groups * GROUP, Row::default());
        }
    }

    /// Lets the first matches that have as many blocks, and so many tokens, take part, `orders` being those of the seats; returns
    /// how many these are, and how many of them have a member. Apart, so that the loop has the registers to itself.
    #[inline(never)]
    pub(crate) fn admit(&mut self, matches: &[Match], tokens: i32, aging: &Aging, orders: &[u32]) -> (usize, u32) {
        let Self { rows, bits, touched, admitted, .. } = self;
        let rows = &mut rows[..];
        let depth = matches.first().map_or(0, |found| found.depth);
        let length = Length::new(depth, tokens);
        // The bits of one group, until another's turn comes.
        let (mut group, mut set) = (0, 0);
        let (mut alike, mut missing) = (matches.len(), 0);
        for (at, found) in matches.iter().enumerate() {
            if found.depth != depth {
                alike = at;
                break;
            }
            // A seat is empty when its member is retired or newer than the roster: nobody has its order.
            let Some(&order) = orders.get(found.seat as usize) else {
                missing += 1;
                continue;
            };
            let Some(row) = rows.get_mut(order as usize) else {
                missing += 1;
                continue;
            };
            *row = Row { fresh: aging.freshness_of_live(found.seen_us), coldness: found.coldness, length };
            if order / u64::BITS != group {
                touch(bits, touched, group, set);
                (group, set) = (order / u64::BITS, 0);
            }
            set |= 1 << (order % u64::BITS);
        }
        touch(bits, touched, group, set);
        *admitted += alike - missing;
        (alike, (alike - missing) as u32)
    }

    /// Ranks what was admitted, by what matches of so many tokens are worth, and by the height of one's own score. Apart, as
    /// above.
    #[inline(never)]
    pub(crate) fn rank(&mut self, worth_of: impl Fn(i32) -> Worth, height: impl Fn(&Row, u32, f32) -> u32) {
        let Self { rows, bits, touched, admitted, places, strays, spare } = self;
        touched.sort_unstable();
        places.clear();
        places.resize(*admitted, 0);
        strays.clear();
        let mut line = Line { room: places.iter_mut(), last: 0, strays };
        // Of the last match, as the next one mostly is as long; the first one is as long as none.
        let (mut length, mut worth) = (Length::new(0, 0), Worth::Nothing);
        for &group in &*touched {
            let rows = rows.as_chunks::<GROUP>().0.get(group as usize);
            let (Some(rows), Some(&bits)) = (rows, bits.get(group as usize)) else { continue };
            let mut left = bits;
            while left != 0 {
                let bit = left.trailing_zeros();
                let row = &rows[bit as usize % GROUP];
                if row.length != length {
                    (length, worth) = (row.length, worth_of(row.tokens()));
                }
                let order = group * u64::BITS + bit;
                match worth {
                    Worth::Same(height) => {
                        left = line.put_alike(rows, left, length, place(height, group * u64::BITS));
                        continue;
                    }
                    Worth::Each(power) => line.put(place(height(row, order, power), order)),
                    Worth::Nothing => {}
                }
                left &= left - 1;
            }
        }
        let kept = *admitted - line.room.len();
        places.truncate(kept);
        if strays.len() > *admitted / MAX_STRAYS {
            places.append(strays);
            sort(places, spare);
        } else if !strays.is_empty() {
            merge(places, strays);
        }
    }

    /// What was admitted, in no order.
    pub(crate) fn admitted(&self) -> impl Iterator<Item = &Row> {
        let groups = self.rows.as_chunks::<GROUP>().0;
        let touched = self.touched.iter().map(|&group| group as usize);
        let touched = touched.filter_map(move |group| Some((groups.get(group)?, *self.bits.get(group)?)));
        touched
            .flat_map(|(rows, bits)| (0u32..).zip(rows).filter(move |(bit, _)| bits >> bit & 1 == 1))
            .map(|(_, row)| row)
    }

    /// The best score.
    pub(crate) fn best(&self) -> Option<f32> {
        self.places.first().map(|&place| score_of(place))
    }

    /// The places of what is ranked, best first.
    pub(crate) fn places(&self) -> &[u64] {
        &self.places
    }

    /// What is in a place: the match, the order of its member, and its score.
    #[inline]
    pub(crate) fn in_place(&self, place: u64) -> Option<(&Row, u32, f32)> {
        let order = place as u32;
        Some((self.rows.get(order as usize)?, order, score_of(place)))
    }
}

/// Notes who of a group takes part.
#[inline(never)]
fn touch(bits: &mut [u64], touched: &mut Vec<u32>, group: u32, set: u64) {
    let Some(bits) = bits.get_mut(group as usize).filter(|_| set != 0) else { return };
    if *bits == 0 {
        touched.push(group);
    }
    *bits |= set;
}

/// Places as they come.
struct Line<'r> {
    room: std::slice::IterMut<'r, u64>,
    last: u64,
    strays: &'r mut Vec<u64>,
}

impl Line<'_> {
    #[inline]
    fn put(&mut self, place: u64) {
        if place >= self.last
            && let Some(next) = self.room.next()
        {
            (self.last, *next) = (place, place);
        } else {
            self.strays.push(place);
        }
    }

    /// Puts what `bits` has first of one length, all of one height, `first` being the place that the group's first member
    /// would have. Returns the bits that are left.
    #[inline(never)]
    fn put_alike(&mut self, rows: &[Row; GROUP], bits: u64, length: Length, first: u64) -> u64 {
        let next = first | u64::from(bits.trailing_zeros());
        if next < self.last {
            // A stray, as all the others will be.
            self.put(next);
            return bits & (bits - 1);
        }
        let (mut room, mut last) = (std::mem::take(&mut self.room), next);
        let mut left = bits;
        while left != 0 {
            let bit = left.trailing_zeros();
            if rows[bit as usize % GROUP].length != length {
                break;
            }
            left &= left - 1;
            last = first | u64::from(bit);
            match room.next() {
                Some(next) => *next = last,
                None => self.strays.push(last),
            }
        }
        (self.room, self.last) = (room, last);
        left
    }
}

/// The place of a score of some height, of the member that has that order.
#[inline]
fn place(height: u32, order: u32) -> u64 {
    (u64::from(height) << 32) | u64::from(order)
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
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::tests::Dice;

    fn place(score: f32, order: u32) -> u64 {
        super::place(height(score), order)
    }

    /// The orders of as many seats.
    fn shuffled(dice: &mut Dice, len: u32) -> Vec<u32> {
        let mut orders: Vec<u32> = (0..len).collect();
        for at in (1..orders.len()).rev() {
            orders.swap(at, dice.roll(at as u64 + 1) as usize);
        }
        orders
    }

    #[test]
    fn what_takes_part_is_ranked_by_score_and_order() {
        let mut dice = Dice(47);
        let mut ranking = Ranking::default();
        let aging = Aging::new(1_000, 1_000);
        for round in 0..400u64 {
            let members = 1 + dice.roll([20, 64, 65, 700][round as usize % 4]) as u32;
            let orders = shuffled(&mut dice, members);
            let odd = [1, 2, 10, 1_000][round as usize / 4 % 4];
            ranking.begin(members as usize);
            let mut expected = Vec::new();
            let mut matches = Vec::new();
            for seat in 0..members + 3 {
                if !dice.one_in(odd) {
                    let depth = 1 + if dice.one_in(5) { dice.roll(4) as u32 } else { 0 };
                    matches.push(Match { seat, coldness: seat, tokens: 0, depth, seen_us: 1 + dice.roll(1_200) });
                }
            }
            // 2 blocks are worth nothing, 3 the same each.
            let height_of = |row: &Row| height(row.fresh * row.tokens() as f32);
            let (mut rest, mut count) = (&matches[..], 0);
            while let Some(first) = rest.first() {
                let (alike, admitted) = ranking.admit(rest, first.depth as i32 * 16, &aging, &orders);
                assert_eq!(alike, rest.iter().take_while(|found| found.depth == first.depth).count());
                (rest, count) = (&rest[alike..], count + admitted);
            }
            for found in matches.iter().filter(|found| found.seat < members && found.depth != 2) {
                let (order, tokens) = (orders[found.seat as usize], found.depth as i32 * 16);
                let score = if found.depth == 3 { 0.0 } else { aging.freshness(found.seen_us) * tokens as f32 };
                expected.push((place(score, order), score, tokens, found.depth, found.coldness));
            }
            assert_eq!(count as usize, matches.iter().filter(|found| found.seat < members).count(), "round {round}");
            let mut tokens: Vec<i32> = ranking.admitted().map(Row::tokens).collect();
            let mut all: Vec<i32> = matches.iter().filter(|f| f.seat < members).map(|f| f.depth as i32 * 16).collect();
            tokens.sort_unstable();
            all.sort_unstable();
            assert_eq!(tokens, all, "round {round}");
            expected.sort_by_key(|row| row.0);
            let worth = |tokens| match tokens {
                32 => Worth::Nothing,
                48 => Worth::Same(height(0.0)),
                _ => Worth::Each(1.0),
            };
            ranking.rank(worth, |row, _, _| height_of(row));
            let ranked = ranking.places().iter().map(|&place| {
                let (row, order, score) = ranking.in_place(place).unwrap();
                assert_eq!(order, place as u32);
                (place, score, row.tokens(), row.depth(), row.coldness)
            });
            assert_eq!(ranked.collect::<Vec<_>>(), expected, "round {round}");
        }
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
