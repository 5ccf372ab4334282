//! Deadlines of a call: the caller's, from the grpc-timeout header, and the tenant's.

use std::time::{Duration, Instant};
use tonic::metadata::MetadataMap;

/// When the call must be answered: the caller's timeout, counted from when its headers arrived. A header that isn't
/// one is ignored, as gRPC does.
pub(super) fn of_caller(metadata: &MetadataMap, arrived: Instant) -> Option<Instant> {
    let timeout = parse(metadata.get("grpc-timeout")?.to_str().ok()?)?;
    arrived.checked_add(timeout)
}

/// The tighter of two deadlines.
pub(super) fn tighter(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// True when there is a deadline and it is past.
pub(super) fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// At most eight digits and a unit, as in the gRPC protocol.
fn parse(header: &str) -> Option<Duration> {
    let (digits, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    Some(match unit {
        "n" => Duration::from_nanos(n),
        "u" => Duration::from_micros(n),
        "m" => Duration::from_millis(n),
        "S" => Duration::from_secs(n),
        "M" => Duration::from_secs(n * 60),
        "H" => Duration::from_secs(n * 3_600),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_the_protocol_says() {
        for (header, ms) in [("100m", 100), ("1S", 1_000), ("2M", 120_000), ("1H", 3_600_000), ("5000u", 5), ("0n", 0)]
        {
            assert_eq!(parse(header).map(|d| d.as_millis()), Some(ms), "{header}");
        }
        for wrong in ["", "m", "1", "-1m", "1.5S", "123456789m", "1x", "1 S", "é", "1é"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_tighter_deadline_counts() {
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        for (one, other, tight) in [
            (None, None, None),
            (Some(now), None, Some(now)),
            (None, Some(now), Some(now)),
            (Some(later), Some(now), Some(now)),
        ] {
            assert_eq!(tighter(one, other), tight);
        }
        assert!(is_past(Some(now)) && !is_past(Some(later)) && !is_past(None));
    }
}
