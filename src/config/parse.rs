//! Text to values, one small parser a kind of setting. A parser's error says what is allowed, never what was given:
//! the caller names the flag, the value and where it came from.

use crate::auth::review::ReviewUrl;
use prefixd_raft::{BootstrapMode, Peer};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// A value, or what would have been one.
pub type Parsed<T> = Result<T, String>;

const DURATION_UNITS: [(&str, f64); 6] =
    [("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3_600.0), ("d", 86_400.0)];
const BYTE_UNITS: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];

/// Any text that isn't empty.
pub fn text(given: &str) -> Parsed<String> {
    if given.is_empty() { Err("some text".into()) } else { Ok(given.into()) }
}

/// A path.
pub fn path(given: &str) -> Parsed<PathBuf> {
    if given.is_empty() { Err("a path".into()) } else { Ok(given.into()) }
}

/// Nothing, when the text is empty, else what `parse` makes of it.
pub fn optional<T>(parse: impl Fn(&str) -> Parsed<T>) -> impl Fn(&str) -> Parsed<Option<T>> {
    move |given| if given.is_empty() { Ok(None) } else { parse(given).map(Some) }
}

/// true or false.
pub fn switch(given: &str) -> Parsed<bool> {
    match given {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("true or false".into()),
    }
}

/// A whole number in a range.
pub fn whole(range: RangeInclusive<u64>) -> impl Fn(&str) -> Parsed<u64> {
    move |given| {
        let allowed = || format!("a whole number from {} to {}", range.start(), range.end());
        given.replace('_', "").parse().ok().filter(|n| range.contains(n)).ok_or_else(allowed)
    }
}

/// A whole number that fits an i32, from 0 up.
pub fn tokens(given: &str) -> Parsed<i32> {
    let n = whole(0..=i32::MAX as u64)(given)?;
    i32::try_from(n).map_err(|_| "a whole number".into())
}

/// A finite decimal number in a range.
pub fn real(range: RangeInclusive<f32>) -> impl Fn(&str) -> Parsed<f32> {
    move |given| {
        let allowed = || format!("a number from {} to {}", range.start(), range.end());
        given.parse().ok().filter(|n: &f32| n.is_finite() && range.contains(n)).ok_or_else(allowed)
    }
}

/// A duration with its unit, such as 30m, 500ms or 1h30m; a bare 0 is allowed where the range has it.
pub fn duration(range: RangeInclusive<Duration>) -> impl Fn(&str) -> Parsed<Duration> {
    move |given| {
        let allowed = || {
            let (low, high) = (show_duration(*range.start()), show_duration(*range.end()));
            format!("a duration with its unit (us, ms, s, m, h, d) from {low} to {high}, such as 30m, 500ms or 1h30m")
        };
        read_duration(given).filter(|d| range.contains(d)).ok_or_else(allowed)
    }
}

/// A number of bytes with or without a unit, such as 8MiB.
pub fn bytes(range: RangeInclusive<u64>) -> impl Fn(&str) -> Parsed<usize> {
    move |given| {
        let allowed =
            || format!("a number of bytes from {} to {}, such as 8MiB, 64KiB or 1000", range.start(), range.end());
        let unit = BYTE_UNITS.iter().find_map(|(name, size)| Some((given.strip_suffix(name)?, *size)));
        let (digits, size) = unit.unwrap_or((given, 1));
        let n = digits.trim().replace('_', "").parse::<u64>().ok().and_then(|n| n.checked_mul(size));
        n.filter(|n| range.contains(n)).and_then(|n| usize::try_from(n).ok()).ok_or_else(allowed)
    }
}

/// An address to bind: ip:port, or localhost:port.
pub fn bind_addr(given: &str) -> Parsed<SocketAddr> {
    let numeric = given.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    numeric.as_deref().unwrap_or(given).parse().map_err(|_| {
        "an address to bind as ip:port, such as 127.0.0.1:9090, 0.0.0.0:9090, [::]:9090 or localhost:0".into()
    })
}

/// An address to dial: host:port.
pub fn host_port(given: &str) -> Parsed<String> {
    let good = given.rsplit_once(':').is_some_and(|(host, port)| {
        let is_odd = |c: char| matches!(c, '/' | ',' | '=') || c.is_whitespace() || c.is_control();
        !host.is_empty() && !host.contains(is_odd) && port.parse::<u16>().is_ok_and(|p| p != 0)
    });
    if good { Ok(given.into()) } else { Err("an address to dial as host:port".into()) }
}

/// The members as name=host:port, separated by commas; empty for none.
pub fn peers(given: &str) -> Parsed<Vec<Peer>> {
    let one = |item: &str| {
        let refused = |why: &str| format!("members as name=host:port, separated by commas; of {item:?}, {why}");
        let (name, addr) = item.trim().split_once('=').ok_or_else(|| refused("there is no '='"))?;
        let name = member_name(name).map_err(|allowed| refused(&format!("the name must be {allowed}")))?;
        let addr = host_port(addr).map_err(|allowed| refused(&format!("the address must be {allowed}")))?;
        Ok(Peer { name, addr })
    };
    if given.is_empty() { Ok(Vec::new()) } else { given.split(',').map(one).collect() }
}

/// A member's name: what a host name may hold, so that it is safe in lists, labels and paths.
pub fn member_name(given: &str) -> Parsed<String> {
    let good = (1..=253).contains(&given.len())
        && given.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if good { Ok(given.into()) } else { Err("a name of letters, digits, '-', '_' and '.'".into()) }
}

/// How a node with an empty disk becomes a member.
pub fn bootstrap(given: &str) -> Parsed<BootstrapMode> {
    match given {
        "solo" => Ok(BootstrapMode::Solo),
        "peers" => Ok(BootstrapMode::Peers),
        "never" => Ok(BootstrapMode::Never),
        _ => Err("solo, peers or never".into()),
    }
}

/// One of a few words.
pub fn word(words: &'static [&'static str]) -> impl Fn(&str) -> Parsed<&'static str> {
    move |given| words.iter().copied().find(|word| *word == given).ok_or_else(|| words.join(" or "))
}

/// A filter of the log, as `tracing_subscriber::EnvFilter` reads it.
pub fn log_level(given: &str) -> Parsed<String> {
    match tracing_subscriber::EnvFilter::try_new(given) {
        Ok(_) if !given.is_empty() => Ok(given.into()),
        _ => Err("error, warn, info, debug, trace or a filter such as info,prefixd=debug".into()),
    }
}

/// Words separated by commas; empty for none.
pub fn words(given: &str) -> Parsed<Vec<String>> {
    if given.is_empty() {
        return Ok(Vec::new());
    }
    let one = |word: &str| Some(word.trim().to_owned()).filter(|word| !word.is_empty());
    given.split(',').map(one).collect::<Option<_>>().ok_or_else(|| "words separated by commas".into())
}

/// Where a token reviewer is.
pub fn review_url(given: &str) -> Parsed<ReviewUrl> {
    ReviewUrl::parse(given).ok_or_else(|| "a URL such as https://kubernetes.default.svc".into())
}

/// An endpoint of an OTLP collector.
pub fn endpoint(given: &str) -> Parsed<String> {
    let good = given.strip_prefix("http://").is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', ':']));
    if good { Ok(given.into()) } else { Err("a gRPC endpoint such as http://127.0.0.1:4317".into()) }
}

fn read_duration(given: &str) -> Option<Duration> {
    if given == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = given;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        let scale = DURATION_UNITS.iter().find(|(name, _)| *name == unit)?.1;
        seconds += number.parse::<f64>().ok()? * scale;
        rest = next;
    }
    if given.is_empty() {
        return None;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

/// A duration in its largest whole unit.
pub fn show_duration(duration: Duration) -> String {
    let us = duration.as_micros();
    if us == 0 {
        return "0".into();
    }
    for (unit, size) in
        [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000)]
    {
        if us.is_multiple_of(size) {
            return format!("{}{unit}", us / size);
        }
    }
    format!("{us}us")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_shown() {
        let any = duration(Duration::ZERO..=Duration::from_secs(1 << 30));
        for (given, ms) in
            [("30m", 1_800_000), ("500ms", 500), ("1h30m", 5_400_000), ("0", 0), ("1.5s", 1_500), ("2d", 172_800_000)]
        {
            assert_eq!(any(given).map(|d| d.as_millis()), Ok(ms), "{given}");
        }
        for wrong in ["", "30", "m", "-1s", "1x", "1 s", "1.2.3s", "s1", "99999999999999999999d"] {
            assert!(any(wrong).is_err(), "{wrong}");
        }
        for shown in ["30m", "500ms", "90m", "0", "2d", "7us"] {
            assert_eq!(any(shown).map(show_duration), Ok(shown.to_owned()));
        }
    }

    #[test]
    fn bytes_take_units_and_keep_to_their_range() {
        let some = bytes(1..=8 << 20);
        for (given, n) in [("8MiB", 8 << 20), ("64KiB", 64 << 10), ("1000", 1000), ("5B", 5), ("1_000", 1000)] {
            assert_eq!(some(given), Ok(n), "{given}");
        }
        for wrong in ["0", "9MiB", "1GB", "MiB", "-1", "99999999999999999GiB"] {
            assert!(some(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_peers_and_names() {
        assert!(bind_addr("localhost:0").is_ok_and(|a| a.ip().is_loopback()));
        assert!(bind_addr("[::]:1").is_ok() && bind_addr("node0:1").is_err() && bind_addr("127.0.0.1").is_err());
        let two = peers("a=h1:9091, b=[::1]:9091").unwrap_or_default();
        assert_eq!(
            two.iter().map(|p| (p.name.as_str(), p.addr.as_str())).collect::<Vec<_>>(),
            [("a", "h1:9091"), ("b", "[::1]:9091")]
        );
        for wrong in ["a", "a=", "a=h", "a=h:0", "=h:1", "a=h:1,", "a b=h:1", "a=h:99999"] {
            assert!(peers(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_refuse_what_is_not_one() {
        assert_eq!(real(0.0..=1.0)("0.25"), Ok(0.25));
        for wrong in ["nan", "inf", "-0.1", "1.1", ""] {
            assert!(real(0.0..=1.0)(wrong).is_err(), "{wrong}");
        }
        assert!(tokens("2147483648").is_err() && tokens("-1").is_err() && tokens("64") == Ok(64));
    }
}
