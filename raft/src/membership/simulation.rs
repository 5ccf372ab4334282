//! Whole clusters in one thread: real loops, real decisions, with disks, messages and time made up from a seed.
//!
//! [`executor`] is the time, [`world`] the disks and the network, [`raft_sketch`] what is seen of Raft, [`scenarios`]
//! what goes wrong and what must hold. One seed is one history: a failure names it, and running it again shows the same.

mod executor;
mod raft_sketch;
mod scenarios;
mod world;
