//! Whole nodes as real processes, killed for real. Each cluster has loopback addresses of its own, so that tests run
//! beside each other without fixed ports. Rounds are few by default; PREFIXD_CHAOS_ROUNDS asks for more.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on says so by panicking")]

mod cluster;
mod controller;
mod disk;
mod evictions;
mod founding;
mod kills;
mod oracle;
mod policies;
mod policy_file;
mod rejoin;
mod replaying;
mod small_disks;
