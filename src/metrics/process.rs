//! What the operating system says of this process, to hold against what the index says of itself.

use super::sample::gauge;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;

/// Bytes of this process in memory, as the kernel counts them; `None` where it doesn't say.
pub fn resident_bytes() -> Option<u64> {
    resident(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, resident: Option<u64>, entries: u64) -> fmt::Result {
    let resident = resident.unwrap_or(0) as f64;
    gauge(encoder, "prefixd_process_resident_bytes", "Memory of the process, as the kernel counts it", resident)?;
    let per_entry = if entries == 0 { 0.0 } else { resident / entries as f64 };
    gauge(encoder, "prefixd_process_bytes_per_entry", "That memory by entry of the index", per_entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_word_is_read() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    1234 kB\nThreads:\t1\n"), Some(1_234 << 10));
        for wrong in ["", "VmRSS:\n", "VmRSS: 12 MB\n", "VmRSS: -1 kB\n", "VmRSS: 99999999999999999999 kB"] {
            assert_eq!(resident(wrong), None, "{wrong}");
        }
        assert!(resident_bytes().is_none_or(|bytes| bytes > 1 << 20));
    }
}
