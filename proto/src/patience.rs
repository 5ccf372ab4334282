//! How long a caller waits, as it says in the `grpc-timeout` header. tonic obeys the header and shows it to nobody.

use std::time::Duration;
use tonic::metadata::MetadataMap;

/// The caller's timeout, from when its headers arrived. A header that isn't one is ignored, as gRPC does.
pub fn of_caller(metadata: &MetadataMap) -> Option<Duration> {
    parse(metadata.get("grpc-timeout")?.to_str().ok()?)
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
}
