//! When to try again: which answers another node may better, and how long to pause. Pure; randomness is an argument.

use prefixd_proto::failure::Failure;
use std::time::Duration;
use tonic::{Code, Status};

/// Whether another attempt can help. UNAVAILABLE and RESOURCE_EXHAUSTED are the contract's own words for "later";
/// anything that arose on this side of the wire (refused, reset, timed out) is the connection's fault.
pub(crate) fn is_retryable(status: &Status) -> bool {
    match Failure::of(status) {
        Failure::Deadline | Failure::Unreachable(_) | Failure::Broken(_) => true,
        Failure::Unreadable(_) | Failure::UnknownCall => false,
        Failure::Answered { code, .. } => {
            matches!(code, Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded)
        }
    }
}

/// The pause before attempt `attempt` (1 is the second call): full jitter under a bound that doubles each time.
/// `random` is uniform in 0..1.
pub(crate) fn pause(attempt: u32, base: Duration, max: Duration, random: f64) -> Duration {
    let bound = base.saturating_mul(1 << attempt.saturating_sub(1).min(20)).min(max);
    bound.mul_f64(random)
}

/// The time for one attempt of a read: an even share of what remains over the nodes left to ask in this round, so that
/// hanging nodes can't use up the time of a living one.
pub(crate) fn share(remaining: Duration, nodes_left: usize) -> Duration {
    remaining / u32::try_from(nodes_left.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_another_node_may_better_is_retried() {
        for code in [Code::Unavailable, Code::ResourceExhausted, Code::DeadlineExceeded] {
            assert!(is_retryable(&Status::new(code, "")), "{code:?}");
        }
        for code in [Code::InvalidArgument, Code::OutOfRange, Code::Unimplemented, Code::Internal, Code::Unknown] {
            assert!(!is_retryable(&Status::new(code, "")), "{code:?}");
        }
        assert!(is_retryable(&Status::from_error(Box::new(std::io::Error::other("reset")))));
    }

    #[test]
    fn pauses_double_and_are_bounded() {
        let (base, max) = (Duration::from_millis(5), Duration::from_millis(500));
        assert_eq!(pause(1, base, max, 1.0), Duration::from_millis(5));
        assert_eq!(pause(2, base, max, 1.0), Duration::from_millis(10));
        assert_eq!(pause(3, base, max, 0.5), Duration::from_millis(10));
        assert_eq!(pause(40, base, max, 1.0), max);
        assert_eq!(pause(u32::MAX, base, max, 0.0), Duration::ZERO);
    }

    #[test]
    fn the_last_node_gets_all_that_remains() {
        assert_eq!(share(Duration::from_secs(3), 3), Duration::from_secs(1));
        assert_eq!(share(Duration::from_secs(3), 1), Duration::from_secs(3));
        assert_eq!(share(Duration::from_secs(3), 0), Duration::from_secs(3));
    }
}
