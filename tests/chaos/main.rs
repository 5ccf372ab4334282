//! Whole nodes as real processes, killed for real. Each cluster has loopback addresses of its own, so that tests run
//! beside each other without fixed ports. Rounds are few by default; PREFIXD_CHAOS=long runs the rounds of
//! docs/RELIABILITY.md and judges percentiles, PREFIXD_CHAOS_ROUNDS and PREFIXD_CHAOS_SEED override either.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on says so by panicking")]

mod addresses;
mod clocks;
mod cluster;
mod controller;
mod damage;
mod disk;
mod evictions;
mod failed_sync;
mod figures;
mod founding;
mod full_at_start;
mod kills;
mod lagging;
mod load;
mod lost_disks;
mod members;
mod mix;
mod moved;
mod named;
mod namespaces;
mod network;
mod oracle;
mod partitions;
mod pauses;
mod policies;
mod policy_file;
mod power_loss;
mod proxy;
mod recovering;
mod recovering_tls;
mod replaying;
mod restoring;
mod rolling;
mod said;
mod shim;
mod small_disks;
mod still_disks;
mod watcher;
