//! What broke in a store, in a form that can be cloned to everybody who waits for it, and that tells a
//! full disk from a broken one: the node survives the first and must not survive the second.

use std::any::Any;
use std::fmt;
use std::io;

/// What kind of failure it was; decides what the node does about it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No room (ENOSPC, or a quota). The store can be opened again once there is room.
    DiskFull,
    /// Reading, writing or syncing failed. What is on disk is unknown until it is opened anew.
    Io,
    /// What was read is not what was written.
    Corrupt,
    /// Code panicked; nothing in memory can be relied upon.
    Panicked,
}

/// A failure that made a store unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// What was being done, with the file.
    pub operation: String,
    /// What the system, the engine or the panic said.
    pub detail: String,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, operation: impl Into<String>, detail: impl fmt::Display) -> Failure {
        Failure { kind, operation: operation.into(), detail: detail.to_string() }
    }

    pub(crate) fn io(operation: impl Into<String>, error: &io::Error) -> Failure {
        Failure::new(kind_of(error), operation, error)
    }

    pub(crate) fn panicked(operation: impl Into<String>, payload: &(dyn Any + Send)) -> Failure {
        Failure::new(FailureKind::Panicked, operation, panic_text(payload))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FailureKind::DiskFull => "disk full",
            FailureKind::Io => "I/O error",
            FailureKind::Corrupt => "corrupt data",
            FailureKind::Panicked => "panic",
        };
        write!(f, "{kind} during {}: {}", self.operation, self.detail)
    }
}

impl std::error::Error for Failure {}

/// Tells a full disk, and a file that ends too soon, from everything else that an I/O call may say.
pub(crate) fn kind_of(error: &io::Error) -> FailureKind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FailureKind::DiskFull,
        io::ErrorKind::UnexpectedEof => FailureKind::Corrupt,
        _ => FailureKind::Io,
    }
}

/// The text of a caught panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a text".to_owned()
    }
}
