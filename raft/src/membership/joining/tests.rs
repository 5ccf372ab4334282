//! Finding the leader, with answers from a script.

use super::*;
use crate::face::BootstrapMode;
use crate::membership::{DiskFailure, DiskState, Founder, Pace, PeerAnswer, Place, Promise, PromiseAnswer};
use futures::executor::block_on;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

struct Member5;

impl Disk for Member5 {
    fn read(&self) -> Result<DiskState, DiskFailure> {
        Ok(DiskState { node_id: 5, cluster_id: Some(7), promise: None })
    }
    fn make_promise(&self, _promise: &Promise) -> Result<(), DiskFailure> {
        Err(DiskFailure("not asked for".into()))
    }
    fn clear_promise(&self) -> Result<(), DiskFailure> {
        Err(DiskFailure("not asked for".into()))
    }
    fn adopt(&self, _cluster_id: u128) -> Result<(), DiskFailure> {
        Err(DiskFailure("not asked for".into()))
    }
}

/// Answers to join by address, in order, and the addresses asked. A call without an answer left never ends.
#[derive(Default)]
struct Script {
    answers: Mutex<BTreeMap<String, VecDeque<Result<JoinAnswer, String>>>>,
    asked: Mutex<Vec<String>>,
}

impl Peers for Script {
    async fn status(&self, _peer: &Peer) -> Result<PeerAnswer, String> {
        Err("not asked for".into())
    }
    async fn promise(&self, _peer: &Peer, _promise: &Promise) -> Result<PromiseAnswer, String> {
        Err("not asked for".into())
    }
    fn join(&self, peer: &Peer, ask: &JoinAsk) -> impl Future<Output = Result<JoinAnswer, String>> + Send {
        assert_eq!((ask.node_id, ask.name.as_str(), ask.cluster_id), (5, "c", 7));
        self.asked.lock().unwrap().push(peer.addr.clone());
        let answer = self.answers.lock().unwrap().get_mut(&peer.addr).and_then(VecDeque::pop_front);
        async move {
            match answer {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        }
    }
    /// Time passes at once, after everything that is ready.
    async fn sleep(&self, _duration: Duration) {}
}

fn newcomer(script: &[(&str, Vec<Result<JoinAnswer, String>>)]) -> Newcomer<Script, Member5> {
    let names = ["a", "b", "c"];
    let answers = script.iter().map(|(addr, answers)| ((*addr).to_owned(), answers.clone().into())).collect();
    Newcomer {
        place: Place { name: "c".into(), peer_names: names.map(String::from).into(), bootstrap: BootstrapMode::Peers },
        peers: names.map(|name| Peer { name: name.into(), addr: format!("{name}:1") }).into(),
        addr: "c:1".into(),
        founder: Arc::new(Founder::open(Member5).unwrap()),
        net: Script { answers: Mutex::new(answers), asked: Mutex::default() },
        pace: Pace::default(),
        reason: watch::Sender::default(),
    }
}

fn leader(name: &str, addr: &str) -> Result<JoinAnswer, String> {
    let leader = Member { node_id: 1, name: name.into(), addr: addr.into(), voter: true };
    Ok(JoinAnswer::NotLeader { leader: Some(leader) })
}

fn run(newcomer: &Newcomer<Script, Member5>) -> (Result<(), NotEstablished>, String) {
    let outcome = block_on(newcomer.become_voter(7, &mut StdRng::seed_from_u64(0)));
    let asked = newcomer.net.asked.lock().unwrap().join(" ");
    (outcome, asked)
}

#[test]
fn asks_until_it_is_a_voter() {
    use JoinAnswer::{Busy, Learner, Voter};
    let busy = || Ok(Busy { reason: "no quorum".into() });
    let nobody = || Ok(JoinAnswer::NotLeader { leader: None });
    // The first peer leads.
    let newcomer =
        newcomer(&[("a:1", vec![Ok(Learner), busy(), Err("reset".into()), Ok(Voter)]), ("b:1", vec![nobody()])]);
    assert_eq!(run(&newcomer), (Ok(()), "a:1 a:1 a:1 b:1 a:1".into()));
    assert_eq!(*newcomer.reason.borrow(), "");
}

#[test]
fn follows_the_leader() {
    // The list overrides what a member announced; a name that is not in it is reached where it announced itself.
    let listed = newcomer(&[("a:1", vec![leader("b", "elsewhere:1")]), ("b:1", vec![Ok(JoinAnswer::Voter)])]);
    assert_eq!(run(&listed), (Ok(()), "a:1 b:1".into()));
    let unlisted = newcomer(&[("a:1", vec![leader("z", "z:1")]), ("z:1", vec![Ok(JoinAnswer::Voter)])]);
    assert_eq!(run(&unlisted), (Ok(()), "a:1 z:1".into()));
    // Two that name each other: a bounded walk, then the next peer.
    let circle = newcomer(&[
        ("a:1", vec![leader("b", ""), leader("b", "")]),
        ("b:1", vec![leader("a", ""), leader("a", ""), Ok(JoinAnswer::Voter)]),
    ]);
    assert_eq!(run(&circle), (Ok(()), "a:1 b:1 a:1 b:1 b:1".into()));
    // One that names itself, though it says that it doesn't lead, and one that doesn't answer.
    let odd = newcomer(&[("a:1", vec![leader("a", ""), Ok(JoinAnswer::Voter)])]);
    assert_eq!(run(&odd), (Ok(()), "a:1 b:1 a:1".into()));
}

#[test]
fn a_refusal_ends_it() {
    let refused = newcomer(&[("a:1", vec![Ok(JoinAnswer::Refused { reason: "no such name".into() })])]);
    let (outcome, _) = run(&refused);
    assert_eq!(outcome, Err(NotEstablished::Refused("no such name".into())));
    assert_eq!(*refused.reason.borrow(), "no such name");
}

#[test]
fn who_must_join() {
    let me = |voter| Member { node_id: 5, name: "c".into(), addr: String::new(), voter };
    let other = Member { node_id: 1, name: "a".into(), addr: String::new(), voter: true };
    let rows = [
        (vec![], true, false),
        (vec![], false, true),
        (vec![me(true)], false, false),
        (vec![other.clone(), me(false)], false, true),
        // Taken out of the membership: it doesn't come back by itself.
        (vec![other], false, false),
    ];
    for (members, founder, expected) in rows {
        assert_eq!(must_join(&members, 5, founder), expected, "{members:?} {founder}");
    }
}
