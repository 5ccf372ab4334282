//! What became of a call that has no answer, read off its status and told so that a person knows where to look: at the
//! time that it had, at the way to the peer, or at what the peer said. tonic puts all three into one type and says them
//! in its own words. Every text about a failed call is made here; whether to try again is not decided here.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use tonic::{Code, ConnectError, Status, TimeoutExpired};

/// What tonic's server says when the caller's deadline has passed; the code is CANCELLED, and no source comes along.
const CUT_OFF: &str = "Timeout expired";

/// Which port a call was meant for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// InferenceCache, for gateways and producers.
    Grpc,
    /// For nodes and operators.
    Node,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grpc => "the gRPC port (--grpc-addr, 9090 by default)",
            Self::Node => "the node port (--node-addr, 9091 by default)",
        })
    }
}

/// What a status says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The time that the caller gave was over.
    Deadline,
    /// There was no connection; why not.
    Unreachable(String),
    /// There was one, and it broke or did not carry gRPC; what was seen.
    Broken(String),
    /// What came is no message of the kind that was asked for.
    Unreadable(String),
    /// The peer speaks gRPC and has no such call.
    UnknownCall,
    /// The peer's own word.
    Answered {
        /// Its code.
        code: Code,
        /// Its reason; may be empty.
        message: String,
    },
}

impl Failure {
    /// Reads a status. One that a peer sent has no source, one that arose on this side has.
    pub fn of(status: &Status) -> Self {
        let sources = || causes(status.source());
        let innermost = || sources().last().map_or_else(|| status.message().to_owned(), ToString::to_string);
        let code = status.code();
        if sources().any(|cause| cause.is::<ConnectError>()) {
            return Self::Unreachable(innermost());
        }
        if sources().any(|cause| cause.is::<TimeoutExpired>() || cause.is::<Late>()) {
            return Self::Deadline;
        }
        if sources().any(|cause| cause.is::<prost::DecodeError>()) {
            return Self::Unreadable(innermost());
        }
        match (status.source().is_some(), code) {
            (true, _) => Self::Broken(innermost()),
            (false, Code::Cancelled) if status.message() == CUT_OFF => Self::Deadline,
            (false, Code::Unimplemented) if status.message().is_empty() => Self::UnknownCall,
            (false, _) => Self::Answered { code, message: status.message().to_owned() },
        }
    }

    /// Why a connection could not be made.
    pub fn of_connecting(error: &(dyn Error + 'static)) -> Self {
        Self::Unreachable(causes(Some(error)).last().map_or_else(String::new, ToString::to_string))
    }

    /// The end of a sentence that begins with the peer's name, for somebody who meant to reach that port.
    pub fn told(&self, port: Port) -> String {
        match self {
            Self::Deadline => "did not answer before the deadline of the call".into(),
            Self::Unreachable(why) if why.contains("corrupt message") => {
                format!("can't be reached: no TLS is spoken there ({why}); is this {port}, and has it a certificate?")
            }
            Self::Unreachable(why) => format!("can't be reached: {why}"),
            Self::Broken(why) => {
                format!("broke the connection off ({why}); is this {port}, and do both sides speak TLS, or neither?")
            }
            Self::Unreadable(why) => format!("sent an answer that can't be read ({why}); is this {port}?"),
            Self::UnknownCall => format!("does not know this call (Unimplemented); is this {port}?"),
            Self::Answered { code, message } if message.is_empty() => {
                format!("answered {code:?} and gave no reason; is this {port}?")
            }
            Self::Answered { code, message } => format!("answered {code:?}: {message}"),
        }
    }
}

/// Reads a status and tells it: [`Failure::of`], [`Failure::told`].
pub fn told(status: &Status, port: Port) -> String {
    Failure::of(status).told(port)
}

/// The status of a call that its caller has given up because its time was over.
pub fn late() -> Status {
    let mut status = Status::deadline_exceeded("the deadline of the call has passed");
    status.set_source(Arc::new(Late));
    status
}

#[derive(Debug)]
struct Late;

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the deadline of the call has passed")
    }
}

impl Error for Late {}

/// An error and what lies beneath it. What an [`io::Error`] was made of is not its source.
fn causes<'a>(outermost: Option<&'a (dyn Error + 'static)>) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(outermost, |&error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(code: Code, error: impl Error + Send + Sync + 'static) -> Status {
        let mut status = Status::new(code, "transport error");
        status.set_source(Arc::new(error));
        status
    }

    #[test]
    fn each_kind_of_failure_is_told_in_its_own_words() {
        let refused = io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens");
        let not_tls = io::Error::other("received corrupt message of type InvalidContentType");
        let garbage = <String as prost::Message>::decode(&[0xff_u8; 3][..]).unwrap_err();
        let rows = [
            (late(), "did not answer before the deadline"),
            (Status::from_error(Box::new(TimeoutExpired(()))), "did not answer before the deadline"),
            (Status::cancelled(CUT_OFF), "did not answer before the deadline"),
            (Status::cancelled("not now"), "answered Cancelled: not now"),
            (Status::from_error(Box::new(ConnectError(refused.into()))), "can't be reached: nobody listens"),
            (Status::from_error(Box::new(ConnectError(not_tls.into()))), "can't be reached: no TLS is spoken there"),
            (here(Code::Unknown, io::Error::other("reset")), "broke the connection off (reset); is this the gRPC port"),
            (here(Code::InvalidArgument, garbage), "sent an answer that can't be read"),
            (Status::unimplemented(""), "does not know this call (Unimplemented); is this the gRPC port"),
            (Status::unimplemented("later"), "answered Unimplemented: later"),
            (Status::unavailable("no leader"), "answered Unavailable: no leader"),
            (Status::deadline_exceeded("too long"), "answered DeadlineExceeded: too long"),
            (Status::unknown(""), "answered Unknown and gave no reason; is this the gRPC port"),
        ];
        for (status, start) in rows {
            let told = told(&status, Port::Grpc);
            assert!(told.starts_with(start), "{status:?}: {told}");
        }
        assert!(told(&Status::unimplemented(""), Port::Node).contains("the node port (--node-addr"));
    }
}
