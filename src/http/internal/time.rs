//! RFC 3339 in UTC, as the controller reads it. Pure arithmetic on the proleptic Gregorian calendar.

const US_PER_SECOND: u64 = 1_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

/// The time that stands for "never".
pub(super) const ZERO: &str = "0001-01-01T00:00:00Z";

/// Microseconds since the Unix epoch; 0 is [`ZERO`]. The fraction is left out when it is 0.
pub(crate) fn rfc3339(us: u64) -> String {
    if us == 0 {
        return ZERO.into();
    }
    let (seconds, fraction) = (us / US_PER_SECOND, us % US_PER_SECOND);
    let (year, month, day) = civil(seconds / SECONDS_PER_DAY);
    let second = seconds % SECONDS_PER_DAY;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let fraction = match fraction {
        0 => String::new(),
        us => format!(".{us:06}").trim_end_matches('0').to_owned(),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// The date of a day counted from 1970-01-01. Years begin in March here, so that the leap day is the last of a year;
/// an era is 400 years, or 146,097 days.
fn civil(days_since_epoch: u64) -> (u64, u64, u64) {
    let days = days_since_epoch + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_are_shown() {
        for (us, text) in [
            (0, ZERO),
            (1, "1970-01-01T00:00:00.000001Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00Z"),
            (951_868_800_000_000, "2000-03-01T00:00:00Z"),
            (1_735_689_599_500_000, "2024-12-31T23:59:59.5Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(us), text);
        }
        assert!(rfc3339(u64::MAX).ends_with('Z'));
    }
}
