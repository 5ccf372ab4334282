//! The small file system that some tests fill up to the last byte: one test at a time, or each would run out of the room that
//! the other took.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

static TAKEN: Mutex<()> = Mutex::new(());

/// The file system that PREFIXD_SMALL_DISK names, for as long as the guard lives; `None`, and a line about it, without one.
pub(crate) fn take() -> Option<(PathBuf, MutexGuard<'static, ()>)> {
    let Some(path) = std::env::var_os("PREFIXD_SMALL_DISK").map(PathBuf::from) else {
        println!("skipped: PREFIXD_SMALL_DISK does not name a small file system");
        return None;
    };
    Some((path, TAKEN.lock().unwrap_or_else(PoisonError::into_inner)))
}
