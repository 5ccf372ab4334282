//! The leader's next step, case by case.

use super::JoinStep::{AddLearner, AlreadyVoter, Busy, Refuse, Swap, WaitCatchUp};
use super::*;

const CLUSTER: u128 = 7;

/// `a1 b2 c3` voters, `d4?` a learner.
fn members(text: &str) -> Vec<Member> {
    let member = |word: &str| {
        let (name, id) = word.trim_end_matches('?').split_at(1);
        Member { node_id: id.parse().unwrap(), name: name.into(), addr: String::new(), voter: !word.ends_with('?') }
    };
    text.split_whitespace().map(member).collect()
}

fn joiner(text: &str) -> JoinAsk {
    let Member { node_id, name, .. } = members(text).remove(0);
    JoinAsk { node_id, name, addr: "host:9091".into(), cluster_id: CLUSTER, promotion: false }
}

struct Case {
    members: &'static str,
    joiner: &'static str,
    heard: &'static [u64],
    matched: Option<u64>,
    expected: JoinStep,
}

fn run(case: &Case) -> JoinStep {
    let names: Vec<String> = ["a", "b", "c", "d"].map(String::from).into();
    let members = members(case.members);
    let view = JoinView {
        cluster_id: CLUSTER,
        leader: 1,
        peer_names: &names,
        members: &members,
        changing: false,
        heard: case.heard,
        matched: case.matched,
        last_log: 1_000,
        max_lag: 10,
    };
    plan(&view, &joiner(case.joiner))
}

#[test]
fn steps() {
    let add = |replace: &[u64]| AddLearner { replace: replace.into() };
    let swap = |remove: &[u64], add| Swap { remove: remove.into(), add };
    let cases = [
        // A disk was lost: learner, catch up, swap, voter.
        ("a1 b2 c3", "c9", &[1, 2][..], None, add(&[])),
        ("a1 b2 c3 c9?", "c9", &[1, 2, 9], None, WaitCatchUp),
        ("a1 b2 c3 c9?", "c9", &[1, 2, 9], Some(989), WaitCatchUp),
        ("a1 b2 c3 c9?", "c9", &[1, 2, 9], Some(990), swap(&[3], 9)),
        ("a1 b2 c3 c9?", "c9", &[1, 2, 9], Some(2_000), swap(&[3], 9)),
        ("a1 b2 c9", "c9", &[1, 2, 9], Some(1_000), AlreadyVoter),
        // It was lost twice: the dead learner of that name goes first, or with the swap.
        ("a1 b2 c3 c9?", "c10", &[1, 2], None, add(&[9])),
        ("a1 b2 c3 c9? c10?", "c10", &[1, 2, 10], Some(1_000), swap(&[3, 9], 10)),
        ("a1 b2 c9?", "c10", &[1, 2], None, add(&[9])),
        // A new place, which the leader's peer list has.
        ("a1 b2 c3", "d4", &[1, 2, 3], None, add(&[])),
        ("a1 b2 c3 d4?", "d4", &[1, 2, 3, 4], Some(1_000), swap(&[], 4)),
        ("a1", "b2", &[1], None, add(&[])),
        // An asker that is a voter already, heard of or not.
        ("a1 b2 c3", "c3", &[1, 2], None, AlreadyVoter),
    ];
    for (members, joiner, heard, matched, expected) in cases {
        let case = Case { members, joiner, heard, matched, expected };
        assert_eq!(run(&case), case.expected, "{joiner} into {members}");
    }
}

#[test]
fn refused_or_put_off() {
    let cases = [
        ("a1 b2 c3", "e5", &[1][..], "no member has the name e"),
        ("a1 b2 c3", "b3", &[1], "is the member c, not b"),
        ("a1 b2 c3", "c0", &[1], "needs an id"),
        ("a1 b2 c3", "a9", &[1, 2], "the leader itself has the name a"),
        ("a1 b2 c3 a9?", "a9", &[1, 2], "the leader itself has the name a"),
        ("a1 b2 c3", "c9", &[1, 2, 3], "heard of just now"),
        ("a1 b2 c3 c9?", "c9", &[1, 2, 3, 9], "heard of just now"),
        ("a1 b2 c3 c9?", "c10", &[1, 2, 9], "heard of just now"),
    ];
    for (members, joiner, heard, part) in cases {
        let step = run(&Case { members, joiner, heard, matched: None, expected: AlreadyVoter });
        let (Refuse(reason) | Busy(reason)) = &step else { panic!("{joiner} into {members}: {step:?}") };
        assert!(reason.contains(part), "{joiner} into {members}: {reason}");
        let may_pass = ["heard of just now", "no member has the name e"].contains(&part);
        assert_eq!(matches!(step, Busy(_)), may_pass, "{joiner} into {members}: {step:?}");
    }
}

#[test]
fn one_change_at_a_time_and_one_cluster() {
    let members = members("a1 b2 c3");
    let view = JoinView {
        cluster_id: CLUSTER,
        leader: 1,
        peer_names: &[],
        members: &members,
        changing: true,
        heard: &[],
        matched: None,
        last_log: 0,
        max_lag: 0,
    };
    assert!(matches!(plan(&view, &joiner("c9")), Busy(_)));
    assert!(matches!(plan(&view, &joiner("a9")), Refuse(_)));
    let stranger = JoinAsk { cluster_id: 8, ..joiner("c9") };
    assert!(
        matches!(plan(&view, &stranger), Refuse(reason) if reason.contains("not 00000000000000000000000000000008"))
    );
}

#[test]
fn dead_learners_of_a_taken_place() {
    let rows: [(&str, &[u64], &[u64]); 5] = [
        ("a1 b2 c3 c9?", &[1, 2, 3], &[9]),
        // The voter is silent: the learner is to replace it and may be starting.
        ("a1 b2 c3 c9?", &[1, 2], &[]),
        ("a1 b2 c3 c9?", &[1, 2, 3, 9], &[]),
        ("a1 b2 d4?", &[1, 2], &[]),
        ("a1 a7? b2 b8? c3", &[1, 2, 3], &[7, 8]),
    ];
    for (text, heard, expected) in rows {
        assert_eq!(ghosts(&members(text), heard), expected, "{text}, heard of {heard:?}");
    }
}

#[test]
fn who_was_let_in_and_taken_out_stays_out() {
    let names: Vec<String> = ["a", "b", "d"].map(String::from).into();
    for (text, who, promotion, expected) in [
        ("a1 b2", "d4", false, "AddLearner"),
        ("a1 b2", "d4", true, "taken out of the membership"),
        ("a1 b2 d4?", "d4", true, "Swap"),
        // The place is still there: what was removed was an earlier disk of it, and the next takes over.
        ("a1 b2 d5", "d4", true, "AddLearner"),
        ("a1 b2", "e4", true, "taken out of the membership"),
        ("a1 b2", "e4", false, "run `prefixd ctl member add e host:9091`"),
    ] {
        let members = members(text);
        let view = JoinView {
            cluster_id: CLUSTER,
            leader: 1,
            peer_names: &names,
            members: &members,
            changing: false,
            heard: &[1, 2, 4],
            matched: Some(10),
            last_log: 10,
            max_lag: 0,
        };
        let step = format!("{:?}", plan(&view, &JoinAsk { promotion, ..joiner(who) }));
        assert!(step.contains(expected), "{who} into {text}, promotion {promotion}: {step}");
    }
}
