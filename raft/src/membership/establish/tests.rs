//! What the loop does with odd answers; whole histories are in the simulation.

use super::*;
use crate::face::BootstrapMode;
use crate::membership::JoinAsk;
use futures::executor::block_on;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::BTreeMap;
use std::time::Duration;

struct Empty1;

impl Disk for Empty1 {
    fn read(&self) -> Result<DiskState, DiskFailure> {
        Ok(DiskState { node_id: 1, cluster_id: None, promise: None })
    }
    fn make_promise(&self, _promise: &Promise) -> Result<(), DiskFailure> {
        Err(DiskFailure("EIO".into()))
    }
    fn clear_promise(&self) -> Result<(), DiskFailure> {
        Ok(())
    }
    fn adopt(&self, _cluster_id: u128) -> Result<(), DiskFailure> {
        Ok(())
    }
}

/// Answers by name; whoever isn't there never answers.
struct Answering(BTreeMap<&'static str, PeerAnswer>);

impl Peers for Answering {
    async fn status(&self, peer: &Peer) -> Result<PeerAnswer, String> {
        match self.0.get(peer.name.as_str()) {
            Some(answer) => Ok(answer.clone()),
            None => std::future::pending().await,
        }
    }
    async fn promise(&self, _peer: &Peer, _promise: &Promise) -> Result<PromiseAnswer, String> {
        Ok(PromiseAnswer::Promised)
    }
    async fn join(&self, _peer: &Peer, ask: &JoinAsk) -> Result<JoinAnswer, String> {
        Ok(JoinAnswer::Refused { reason: format!("no place for {}", ask.name) })
    }
    async fn sleep(&self, _duration: Duration) {}
}

fn answer(name: &str, node_id: u64, standing: Standing) -> PeerAnswer {
    let peer_names = ["a", "b", "c"].map(String::from).into();
    PeerAnswer { name: name.into(), node_id, peer_names, standing }
}

fn member(cluster_id: u128, leader: Option<u64>) -> Standing {
    Standing::Member { cluster_id, members: Vec::new(), leader }
}

fn newcomer(b: Option<PeerAnswer>, c: Option<PeerAnswer>) -> Newcomer<Answering, Empty1> {
    let names = ["a", "b", "c"];
    let answers = [("b", b), ("c", c)].into_iter().filter_map(|(name, answer)| Some((name, answer?)));
    Newcomer {
        place: Place { name: "a".into(), peer_names: names.map(String::from).into(), bootstrap: BootstrapMode::Peers },
        peers: names.map(|name| Peer { name: name.into(), addr: format!("{name}:1") }).into(),
        addr: "a:1".into(),
        founder: Arc::new(Founder::open(Empty1).unwrap()),
        net: Answering(answers.collect()),
        pace: Pace::default(),
        reason: watch::Sender::default(),
    }
}

fn fails(newcomer: &Newcomer<Answering, Empty1>) -> NotEstablished {
    block_on(newcomer.establish(&mut StdRng::seed_from_u64(0))).unwrap_err()
}

#[test]
fn ends_when_only_an_operator_can_help() {
    let two = newcomer(Some(answer("b", 2, member(7, None))), Some(answer("c", 3, member(8, None))));
    let NotEstablished::Stop(reason) = fails(&two) else { panic!() };
    assert!(reason.contains("different clusters"), "{reason}");
    assert_eq!(*two.reason.borrow(), reason);
    assert_eq!(block_on(two.foreign_peers(7)), ["c"]);

    let refused = newcomer(Some(answer("b", 2, member(7, Some(2)))), None);
    assert_eq!(fails(&refused), NotEstablished::Refused("no place for a".into()));

    let broken = newcomer(Some(answer("b", 2, Standing::Empty)), Some(answer("c", 3, Standing::Empty)));
    assert_eq!(fails(&broken), NotEstablished::Disk(DiskFailure("EIO".into())));
    assert_eq!(fails(&broken), NotEstablished::Disk(DiskFailure("EIO".into())));
}

#[test]
fn only_plausible_answers_count() {
    let misled = newcomer(Some(answer("c", 3, Standing::Empty)), Some(answer("c", 0, Standing::Empty)));
    let answers = block_on(misled.ask_all());
    assert_eq!(answers["b"], Err("b:1 answers as c".into()));
    assert_eq!(answers["c"], Err("answers without an id".into()));
    let nameless = newcomer(Some(answer("b", 2, member(0, None))), None);
    let answers = block_on(nameless.ask_all());
    assert_eq!(answers["b"], Err("answers without an id".into()));
    assert_eq!(answers["c"], Err("no answer in time".into()));
}

#[test]
fn the_loops_can_run_in_a_task() {
    fn can<T: Send>(_: T) {}
    let newcomer = newcomer(None, None);
    let mut rng = StdRng::seed_from_u64(0);
    can(newcomer.establish(&mut rng));
    can(newcomer.become_voter(7, &mut rng));
}
