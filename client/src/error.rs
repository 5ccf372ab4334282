//! What can go wrong with a call, told so that the caller knows whether the cluster, the request or the configuration
//! is at fault.

use std::sync::Arc;
use std::time::Duration;

/// Why a client could not be made or a call has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration names no node.
    #[error("no endpoint given: name at least one node, as host:port")]
    NoEndpoints,
    /// There is no tokio runtime to run the connections on.
    #[error("a client must be made within a tokio runtime")]
    NoRuntime,
    /// A node's address can't be used.
    #[error("endpoint {endpoint:?} is not usable: {reason}")]
    BadEndpoint {
        /// As it was given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A node answered that the call itself is at fault; another node would say the same, so none was asked.
    #[error("{endpoint} refused the call: {} ({:?})", status.message(), status.code())]
    Refused {
        /// The node that answered.
        endpoint: Arc<str>,
        /// Its answer.
        status: Box<tonic::Status>,
    },
    /// No node answered before the deadline or the limit on attempts. A write may or may not have been applied;
    /// repeating it is harmless.
    #[error(
        "no node answered within {:.1} s ({attempts} attempts); the last, {endpoint}, said: {} ({:?})",
        elapsed.as_secs_f64(),
        status.message(),
        status.code()
    )]
    Exhausted {
        /// How many calls were made.
        attempts: u32,
        /// From the first attempt until giving up.
        elapsed: Duration,
        /// The node that was asked last.
        endpoint: Arc<str>,
        /// What came of it.
        status: Box<tonic::Status>,
    },
    /// A write was answered, but not accepted.
    #[error("{endpoint} did not accept the write: {reason_code}")]
    NotAccepted {
        /// The node that answered.
        endpoint: Arc<str>,
        /// Its reason.
        reason_code: String,
    },
}

impl Error {
    /// Whether the same call may succeed later without any change to it.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Exhausted { .. })
    }
}
