//! A client of the public contract that knows every node: a call goes to one node and, while its deadline lasts, on to
//! the next when that one can't answer. It owns connections, retries and the memory of which node failed; it must never
//! retry what a node refused for good, nor outlive the caller's deadline. Start at [`Client`]; the order in which nodes
//! are tried is in `health`, when to try again in `retry`, hash chains in [`Chain`].

mod chain;
mod client;
mod config;
mod error;
mod health;
mod retry;
mod secure;

pub use chain::Chain;
pub use client::{Answer, Client};
pub use config::Config;
pub use error::Error;
