//! Orders case by case, and what must hold over every small cluster.

use super::*;

const CLUSTER: u128 = 7;
const LAST: u64 = 1_000;
const MAX_LAG: u64 = 10;

/// `a1 b2 c3` voters, `d4?` a learner.
fn members(text: &str) -> Vec<Member> {
    let member = |word: &str| {
        let (name, id) = word.trim_end_matches('?').split_at(1);
        Member { node_id: id.parse().unwrap(), name: name.into(), addr: String::new(), voter: !word.ends_with('?') }
    };
    text.split_whitespace().map(member).collect()
}

/// A roster led by 1, in which the ids of `heard` answer and have the whole log, but for those of `behind`.
fn judge(text: &str, heard: &[u64], behind: &[u64], order: &Order) -> Decision {
    let members = members(text);
    let matched = heard.iter().map(|id| (*id, if behind.contains(id) { LAST - MAX_LAG - 1 } else { LAST })).collect();
    let roster = Roster {
        cluster_id: CLUSTER,
        leader: 1,
        members: &members,
        changing: false,
        heard,
        matched: &matched,
        last_log: LAST,
        max_lag: MAX_LAG,
        feature_level: 2,
    };
    obey(&roster, order)
}

fn add(name: &str, answer_name: &str, node_id: u64, standing: Standing, feature_max: u32) -> Order {
    let answer = PeerAnswer { name: answer_name.into(), node_id, peer_names: Vec::new(), standing };
    Order::Add { name: name.into(), addr: "host:9091".into(), found: Ok(Candidate { answer, feature_max }) }
}

fn of(cluster_id: u128) -> Standing {
    Standing::Member { cluster_id, members: Vec::new(), leader: None }
}

/// Members, who is heard, who of them is behind, what is ordered, and a part of what is decided.
type Row<'a, O> = (&'a str, &'a [u64], &'a [u64], O, &'a str);

#[test]
fn removing() {
    let remove = |who: &str| Order::Remove(who.into());
    let rows: [Row<'_, &str>; 15] = [
        ("a1 b2 c3", &[1, 2, 3], &[], "c", "RemoveVoter(3)"),
        ("a1 b2 c3", &[1, 2], &[], "c", "RemoveVoter(3)"),
        ("a1 b2 c3", &[1, 2], &[], "0000000000000003", "RemoveVoter(3)"),
        ("a1 b2 c3", &[1, 2], &[], "b", "c is silent: the cluster would lose its quorum. Start c first"),
        ("a1 b2 c3 d4 e5", &[1, 2, 3], &[], "e", "RemoveVoter(5)"),
        ("a1 b2 c3 d4 e5", &[1, 2, 3], &[], "b", "without b 4 voters are left and 3 of them must answer, but d, e is"),
        ("a1 b2", &[1, 2], &[], "b", "RemoveVoter(2)"),
        ("a1 b2", &[1], &[], "b", "RemoveVoter(2)"),
        ("a1", &[1], &[], "a", "a is the last voter"),
        ("a1 d4?", &[1, 4], &[], "a", "a is the last voter"),
        ("a1 d4?", &[1], &[], "d", "RemoveLearner(4)"),
        // The leader goes by way of another, which must be there.
        ("a1 b2 c3", &[1, 2, 3], &[3], "a", "HandOver(2)"),
        ("a1 b2 c3", &[1, 2, 3], &[2, 3], "a", "no other voter answers and is close enough"),
        ("a1 b2 c3 c9?", &[1, 2, 9], &[], "c", "the name of 2 disks (0000000000000003, 0000000000000009)"),
        ("a1 b2 c3", &[1, 2, 3], &[], "z", "\"z\" is no member of cluster 00000000000000000000000000000007, which"),
    ];
    for (text, heard, behind, who, expected) in rows {
        let said = format!("{:?}", judge(text, heard, behind, &remove(who)));
        assert!(said.replace('\\', "").contains(expected), "remove {who} of {text}: {said}");
    }
}

#[test]
fn promoting_and_handing_over() {
    let promote = |who: &str| Order::Promote(who.into());
    let to = |who: &str| Order::HandOver(Some(who.into()));
    let any = Order::HandOver(None);
    let rows: [Row<'_, Order>; 15] = [
        ("a1 b2 d4?", &[1, 2, 4], &[], promote("d"), "Promote { add: 4, remove: [] }"),
        ("a1 b2 b9?", &[1, 9], &[], promote("0000000000000009"), "Promote { add: 9, remove: [2] }"),
        ("a1 b2 b9?", &[1, 2, 9], &[], promote("0000000000000009"), "held by the disk 0000000000000002"),
        ("a1 b2 d4?", &[1, 2, 4], &[4], promote("d"), "d is 11 log entries behind, at most 10 are allowed"),
        ("a1 b2 d4?", &[1, 2], &[], promote("d"), "d does not answer"),
        ("a1 b2 d4?", &[1, 2, 4], &[], promote("b"), "Nothing(\"b is a voter already\")"),
        ("a1 b2", &[1, 2], &[], promote("d"), "Unknown("),
        ("a1 b2 c3", &[1, 2, 3], &[], to("c"), "HandOver(3)"),
        ("a1 b2 c3", &[1, 2, 3], &[3], to("c"), "c is 11 log entries behind"),
        ("a1 b2 c3", &[1, 2], &[], to("c"), "c does not answer"),
        ("a1 b2 d4?", &[1, 2, 4], &[], to("d"), "run `prefixd ctl member promote d` first"),
        ("a1 b2", &[1, 2], &[], to("a"), "Nothing(\"a leads already\")"),
        ("a1 b2 c3", &[1, 2, 3], &[3], any.clone(), "HandOver(2)"),
        ("a1 b2 c3", &[1], &[], any.clone(), "no other voter answers"),
        ("a1 d4?", &[1, 4], &[], any, "the leader is the only voter"),
    ];
    for (text, heard, behind, order, expected) in rows {
        let said = format!("{:?}", judge(text, heard, behind, &order));
        assert!(said.contains(expected), "{order:?} of {text}: {said}");
    }
}

#[test]
fn adding() {
    let unreachable =
        Order::Add { name: "d".into(), addr: "host:9091".into(), found: Err("can't be reached: no route".into()) };
    let other_port = Order::Add { name: "d".into(), addr: "host:9090".into(), found: Err("is it?".into()) };
    let promised = Standing::Promised(super::super::Promise::new(9, vec![("d".into(), 4)]).unwrap());
    let many: Vec<String> = (1..=MEMBERS_MAX).map(|i| format!("{}{i}", char::from(b'a' + i as u8))).collect();
    let many = many.join(" ");
    let rows = [
        ("a1 b2", add("d", "d", 4, Standing::Empty, 2), "AddLearner(Member { node_id: 4, name: \"d\""),
        // A member of old comes back with its disk.
        ("a1 b2", add("d", "d", 4, of(CLUSTER), 3), "AddLearner("),
        ("a1 b2 d4?", add("d", "d", 4, of(CLUSTER), 2), "Nothing(\"d is a learner already\")"),
        ("a1 b2 d4", add("d", "d", 4, of(CLUSTER), 2), "Nothing(\"d is a voter already\")"),
        ("a1 b2 d4", add("d", "d", 5, Standing::Empty, 2), "run `prefixd ctl member remove d` first"),
        ("a1 b2", add("d", "b", 2, of(CLUSTER), 2), "was started as b, not as d"),
        ("a1 b2", add("d", "d", 2, of(CLUSTER), 2), "is the member b already, not d"),
        ("a1 b2", add("d", "d", 4, of(8), 2), "belongs to cluster 00000000000000000000000000000008"),
        ("a1 b2", add("d", "d", 4, promised, 2), "has promised to found cluster"),
        (
            "a1 b2",
            add("d", "d", 4, Standing::Empty, 1),
            "is at feature level 2, the release at host:9091 reads up to 1",
        ),
        ("a1 b2", add("d", "d", 0, Standing::Empty, 2), "answers without an id"),
        ("a1 b2", add("", "", 4, Standing::Empty, 2), "needs a name"),
        ("a1 b2", unreachable, "no node answers at host:9091: it can't be reached: no route. Start it"),
        ("a1 b2", other_port, "no node answers at host:9090: it is it? Start it"),
        (many.as_str(), add("z", "z", 99, Standing::Empty, 2), "at most 15 members"),
    ];
    for (text, order, expected) in rows {
        let said = format!("{:?}", judge(text, &[1, 2], &[], &order));
        assert!(said.contains(expected), "{order:?} to {text}: {said}");
    }
}

#[test]
fn one_change_at_a_time() {
    let members = members("a1 b2 c3 d4?");
    let matched = BTreeMap::from([(2, 5), (3, 5), (4, 5)]);
    let roster = Roster {
        cluster_id: CLUSTER,
        leader: 1,
        members: &members,
        changing: true,
        heard: &[1, 2, 3, 4],
        matched: &matched,
        last_log: 5,
        max_lag: 0,
        feature_level: 1,
    };
    for order in [Order::Remove("c".into()), Order::Promote("d".into()), add("e", "e", 5, Standing::Empty, 1)] {
        assert!(matches!(obey(&roster, &order), Decision::Busy(_)), "{order:?}");
    }
    // A voter that is one by a change that isn't committed is none yet.
    assert!(matches!(obey(&roster, &Order::Promote("c".into())), Decision::Busy(_)));
    // Leadership may move meanwhile, and what is refused is refused at once.
    assert_eq!(obey(&roster, &Order::HandOver(None)), Decision::HandOver(3));
    assert!(matches!(obey(&roster, &Order::Promote("z".into())), Decision::Unknown(_)));
    // Who is gone by a change that isn't committed may come back: whoever takes "no member" for "done" must not be told so.
    assert!(matches!(obey(&roster, &Order::Remove("z".into())), Decision::Busy(_)));
    let settled = Roster { changing: false, ..roster };
    assert!(matches!(obey(&settled, &Order::Remove("z".into())), Decision::Unknown(_)));
}

/// Every cluster of up to five, each member a voter or a learner, silent, behind or up to date; every order about every
/// member: nothing is ever decided that leaves no quorum that answers, and every refusal has words.
#[test]
fn over_every_small_cluster() {
    let mut run = 0;
    for size in 1..=5u32 {
        for code in 0..6u32.pow(size - 1) {
            let state =
                |i: u32| if i == 0 { (true, 2) } else { (code / 6u32.pow(i - 1) % 6 >= 3, code / 6u32.pow(i - 1) % 3) };
            let text: Vec<String> = (0..size)
                .map(|i| format!("{}{}{}", char::from(b'a' + i as u8), i + 1, if state(i).0 { "" } else { "?" }))
                .collect();
            let ids = |wanted: &dyn Fn(u32) -> bool| -> Vec<u64> {
                (0..size).filter(|i| wanted(state(*i).1)).map(|i| u64::from(i) + 1).collect()
            };
            let (heard, behind) = (ids(&|s| s > 0), ids(&|s| s == 1));
            for i in 0..size {
                let name = char::from(b'a' + i as u8).to_string();
                for order in
                    [Order::Remove(name.clone()), Order::Promote(name.clone()), Order::HandOver(Some(name.clone()))]
                {
                    check(&text.join(" "), &heard, &behind, u64::from(i) + 1, &order);
                    run += 1;
                }
            }
            check(&text.join(" "), &heard, &behind, 0, &Order::HandOver(None));
        }
    }
    assert!(run > 20_000, "{run}");
}

fn check(text: &str, heard: &[u64], behind: &[u64], about: u64, order: &Order) {
    let all = members(text);
    let decision = judge(text, heard, behind, order);
    let is_voter = |id: u64| all.iter().any(|m| m.node_id == id && m.voter);
    let able = |id: u64| id == 1 || (heard.contains(&id) && !behind.contains(&id));
    let quorum_after = |gone: u64, new: u64| {
        let voters: Vec<u64> =
            all.iter().filter(|m| (m.voter || m.node_id == new) && m.node_id != gone).map(|m| m.node_id).collect();
        let answering = voters.iter().filter(|id| **id == 1 || heard.contains(id)).count();
        !voters.is_empty() && answering * 2 > voters.len()
    };
    let ok = match (&decision, order) {
        (Decision::RemoveVoter(id), Order::Remove(_)) => {
            *id == about && is_voter(about) && about != 1 && quorum_after(about, 0)
        }
        (Decision::RemoveLearner(id), Order::Remove(_)) => *id == about && !is_voter(about),
        (Decision::HandOver(id), Order::Remove(_)) => about == 1 && is_voter(*id) && *id != 1 && able(*id),
        (Decision::HandOver(id), Order::HandOver(_)) => {
            (*id == about || about == 0) && is_voter(*id) && *id != 1 && able(*id)
        }
        (Decision::Promote { add, remove }, Order::Promote(_)) => {
            *add == about && remove.is_empty() && !is_voter(about) && able(about)
        }
        (Decision::Nothing(said), Order::Promote(_)) => is_voter(about) && !said.is_empty(),
        (Decision::Nothing(said), Order::HandOver(_)) => about == 1 && !said.is_empty(),
        (Decision::Refuse(why), Order::Remove(_)) => {
            let only = !quorum_after(about, 0);
            let nobody = about == 1 && !all.iter().any(|m| m.voter && m.node_id != 1 && able(m.node_id));
            is_voter(about) && (only || nobody) && !why.is_empty()
        }
        (Decision::Refuse(why), Order::Promote(_)) => !is_voter(about) && !able(about) && !why.is_empty(),
        (Decision::Refuse(why), Order::HandOver(Some(_))) => !(why.is_empty() || is_voter(about) && able(about)),
        (Decision::Refuse(why), Order::HandOver(None)) => {
            !all.iter().any(|m| m.voter && m.node_id != 1 && able(m.node_id)) && !why.is_empty()
        }
        _ => false,
    };
    assert!(ok, "{order:?} of {text}, heard {heard:?}, behind {behind:?}: {decision:?}");
}

#[test]
fn what_a_cluster_endures() {
    assert_eq!(endures(1), "1 voter now; the cluster endures the loss of 0");
    assert_eq!(endures(3), "3 voters now; the cluster endures the loss of 1");
    assert_eq!(endures(5), "5 voters now; the cluster endures the loss of 2");
}
