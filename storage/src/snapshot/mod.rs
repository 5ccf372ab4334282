//! Snapshots: generations of opaque records, each whole or not there.
//!
//! A generation is a directory of its own with a sled database and a manifest. It is written under a
//! temporary name, read back, synced file by file and renamed; from then on none of its bytes changes.
//! Two generations are kept. What the records mean is for others; this module must never offer one whose
//! bytes are not those that were written. Start at `store`; `frames` holds the layout inside the
//! database, `engine` is the only place that touches sled.

mod engine;
mod error;
mod frames;
mod generation;
mod manifest;
mod store;
mod writer;

#[cfg(test)]
mod small_disk_tests;
#[cfg(test)]
mod tests;

pub use error::{SetAside, SnapshotError};
pub use frames::MAX_RECORD_BYTES;
pub use generation::{Generation, Records};
pub use manifest::SnapshotManifest;
pub use store::SnapshotStore;
pub use writer::{SealedSnapshot, SnapshotWriter};
