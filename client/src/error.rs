//! What can go wrong with a call, told so that the caller knows whether the cluster, the request or the configuration
//! is at fault.

use prefixd_proto::failure::{Port, told};
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
    #[error("{endpoint} {}", told(status, Port::Grpc))]
    Refused {
        /// The node that answered.
        endpoint: Arc<str>,
        /// Its answer.
        status: Box<tonic::Status>,
    },
    /// No node did it before the deadline or the limit on attempts. A write may or may not have been applied;
    /// repeating it is harmless.
    #[error(
        "given up after {:.1} s and {}: {endpoint} {}{}",
        elapsed.as_secs_f64(),
        counted(*attempts),
        told(status, Port::Grpc),
        before(earlier.as_ref())
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
        /// When the last attempt was cut off by the deadline: the last node before that did fail by itself, and how.
        earlier: Option<(Arc<str>, Box<tonic::Status>)>,
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

fn counted(attempts: u32) -> String {
    format!("{attempts} {}", if attempts == 1 { "attempt" } else { "attempts" })
}

fn before(earlier: Option<&(Arc<str>, Box<tonic::Status>)>) -> String {
    let said = |(endpoint, status): &(Arc<str>, Box<tonic::Status>)| {
        format!("; before that {endpoint} {}", told(status, Port::Grpc))
    };
    earlier.map(said).unwrap_or_default()
}
