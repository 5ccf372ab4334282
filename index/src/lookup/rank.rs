//! The arithmetic of ranking, in f32 as it reaches the wire. Pure functions of what was matched and reported; which
//! replicas are ranked is decided in the view.

use super::config::RankConfig;

/// How entries age at a time, under a TTL.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Aging {
    now_us: u64,
    ttl_us: u64,
    /// The same, but at least 1: under a TTL of 0 only what has no age is alive.
    life_us: u64,
    /// That as what is divided by.
    life: f32,
}

impl Aging {
    pub(crate) fn new(now_us: u64, ttl_us: u64) -> Self {
        let life_us = ttl_us.max(1);
        Self { now_us, ttl_us, life_us, life: life_us as f32 }
    }

    /// The TTL in microseconds.
    pub(crate) fn ttl_us(&self) -> u64 {
        self.ttl_us
    }

    /// 1 for what was just seen, 0 for what is as old as the TTL or older, falling linearly between. Never 0 below the TTL.
    #[inline]
    pub(crate) fn freshness(&self, seen_us: u64) -> f32 {
        if seen_us >= self.now_us {
            return 1.0;
        }
        let age_us = self.now_us - seen_us;
        if age_us >= self.ttl_us { 0.0 } else { (self.ttl_us - age_us) as f32 / self.life }
    }

    /// The same of what is known not to be stale, see [`Aging::oldest_us`].
    #[inline]
    pub(crate) fn freshness_of_live(&self, seen_us: u64) -> f32 {
        // What is left of its life, which is all of it for what was seen just now.
        seen_us.min(self.now_us).wrapping_sub(self.now_us.wrapping_sub(self.life_us)) as f32 / self.life
    }

    /// The earliest last-seen of what still matches: its freshness is above 0.
    pub(crate) fn oldest_us(&self) -> u64 {
        self.now_us.saturating_sub(self.ttl_us.saturating_sub(1))
    }
}

/// What is left of a score under a replica's pressure.
pub(crate) fn pressure_factor(weight: f32, pressure: f32) -> f32 {
    let factor = 1.0 - weight * pressure;
    if factor.is_nan() { 1.0 } else { factor.clamp(0.0, 1.0) }
}

/// The preference for the fresh under a tight TTFT objective; `decay` is freshness or recency.
pub(crate) fn slo_bias(config: &RankConfig, ttft_ms: i32, decay: f32) -> f32 {
    biased(slo_weight(config, ttft_ms), decay)
}

/// How much a TTFT objective prefers the fresh: not at all, unless it is tight.
pub(crate) fn slo_weight(config: &RankConfig, ttft_ms: i32) -> f32 {
    if 0 < ttft_ms && ttft_ms < config.slo_tight_ttft_ms { config.slo_tight_bias } else { 0.0 }
}

/// The [`slo_bias`] of a weight.
pub(crate) fn biased(weight: f32, decay: f32) -> f32 {
    1.0 + decay * weight
}

/// How much a match tells when `matching` of `total` replicas match as well.
pub(crate) fn distinguishing_power(matching: usize, total: usize) -> f32 {
    if total <= 1 {
        1.0
    } else if matching >= total {
        0.0
    } else {
        1.0 - matching as f32 / total as f32
    }
}

/// 1 for a payload of now, 0 at `max_age_us`; a maximum of 0 has no recency.
pub(crate) fn recency(now_us: u64, payload_us: u64, max_age_us: u64) -> f32 {
    if max_age_us == 0 { 0.0 } else { Aging::new(now_us, max_age_us).freshness(payload_us) }
}

/// The tier of a run from its blocks' tiers: how cold one is, the coldest being what the run can promise. Tiers above
/// 3 are colder than 3 and a negative one is colder than all.
pub(crate) fn coldness(tier: i32) -> u32 {
    // Reinterpreted, a negative tier is above every positive one; among negative ones the order doesn't matter.
    tier as u32
}

/// The tier on the wire from a [`coldness`]: 1 to 3, else unspecified.
pub(crate) fn reported_tier(coldness: u32) -> i32 {
    if coldness <= 3 { coldness as i32 } else { 0 }
}

/// A score that sorts: never NaN, never a negative zero.
pub(crate) fn sortable(score: f32) -> f32 {
    if score.is_nan() { 0.0 } else { score + 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_falls_to_zero_at_the_ttl() {
        // (now, seen, ttl, freshness)
        let rows = [
            (100, 100, 10, 1.0),
            (100, 200, 10, 1.0),
            (100, 95, 10, 0.5),
            (100, 90, 10, 0.0),
            (100, 0, 10, 0.0),
            (100, 99, 0, 0.0),
            (100, 100, 0, 1.0),
            (9, 0, 10, 0.1),
            (u64::MAX, u64::MAX - 10, 10, 0.0),
            (0, 0, u64::MAX, 1.0),
        ];
        for (now, seen, ttl, expected) in rows {
            let aging = Aging::new(now, ttl);
            assert_eq!(aging.freshness(seen), expected, "{now} {seen} {ttl}");
            assert_eq!(seen >= aging.oldest_us(), expected > 0.0, "{now} {seen} {ttl}");
            if expected > 0.0 {
                assert_eq!(aging.freshness_of_live(seen), expected, "{now} {seen} {ttl}");
            }
        }
        let ttl = 1_800_000_000;
        assert!(Aging::new(ttl, ttl).freshness(1) > 0.0, "one microsecond below the TTL is not stale");
    }

    #[test]
    fn pressure_is_clamped_both_ways() {
        for (weight, pressure, expected) in
            [(1.0, 0.9, 0.1), (1.0, 2.0, 0.0), (1.0, -0.5, 1.0), (0.0, 1.0, 1.0), (2.0, 0.25, 0.5), (1.0, 0.0, 1.0)]
        {
            assert!((pressure_factor(weight, pressure) - expected).abs() < 1e-6, "{weight} {pressure}");
        }
        assert_eq!(pressure_factor(f32::INFINITY, 0.0), 1.0);
    }

    #[test]
    fn the_bias_needs_a_tight_objective() {
        let config = RankConfig::default();
        for (ttft, decay, expected) in
            [(0, 1.0, 1.0), (-1, 1.0, 1.0), (1, 1.0, 2.0), (199, 0.5, 1.5), (200, 1.0, 1.0), (500, 1.0, 1.0)]
        {
            assert_eq!(slo_bias(&config, ttft, decay), expected, "{ttft}");
        }
    }

    #[test]
    fn power_is_one_alone_and_zero_for_all() {
        for (matching, total, expected) in
            [(0, 0, 1.0), (1, 1, 1.0), (1, 2, 0.5), (2, 2, 0.0), (3, 2, 0.0), (1, 4, 0.75)]
        {
            assert_eq!(distinguishing_power(matching, total), expected, "{matching} of {total}");
        }
    }

    #[test]
    fn colder_tiers_win_and_odd_ones_are_unspecified() {
        assert!(coldness(1) < coldness(2) && coldness(3) < coldness(4) && coldness(i32::MAX) < coldness(-1));
        for (tier, expected) in [(1, 1), (2, 2), (3, 3), (4, 0), (-1, 0), (i32::MIN, 0), (0, 0)] {
            assert_eq!(reported_tier(coldness(tier)), expected);
        }
    }

    #[test]
    fn recency_is_off_without_a_maximum() {
        for (now, payload, max, expected) in [(10, 10, 0, 0.0), (10, 10, 5, 1.0), (10, 5, 5, 0.0), (12, 10, 4, 0.5)] {
            assert_eq!(recency(now, payload, max), expected);
        }
    }
}
