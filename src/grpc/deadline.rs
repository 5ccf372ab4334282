//! Deadlines of a call: the caller's, from the grpc-timeout header, and the tenant's.

use prefixd_proto::patience;
use std::time::Instant;
use tonic::metadata::MetadataMap;

/// When the call must be answered: the caller's timeout, counted from when its headers arrived.
pub(super) fn of_caller(metadata: &MetadataMap, arrived: Instant) -> Option<Instant> {
    arrived.checked_add(patience::of_caller(metadata)?)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
