//! Every rule as a line of `cases.txt`, and what must hold over all combinations of disks, modes and answers.

use super::*;
use crate::membership::member::Member;

const NAMES: [&str; 3] = ["a", "b", "c"];
const FRESH: u128 = 6;

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn list(cluster_id: u128, ids: [u64; 3]) -> Promise {
    Promise::new(cluster_id, NAMES.iter().map(|name| (*name).to_owned()).zip(ids).collect()).unwrap()
}

fn promise(word: &str) -> Option<Promise> {
    match word.trim_end_matches('\'') {
        "L" => Some(list(7, [1, 2, 3])),
        "K" => Some(list(8, [1, 2, 3])),
        "M" => Some(list(9, [1, 2, 103])),
        _ => None,
    }
}

fn id_of(name: &str, word: &str) -> u64 {
    let place = NAMES.iter().position(|place| *place == name).unwrap_or(3) as u64 + 1;
    if word.ends_with('\'') { place + 100 } else { place }
}

fn member(name: &str, node_id: u64, voter: bool) -> Member {
    Member { node_id, name: name.into(), addr: format!("{name}:9091"), voter }
}

fn standing(word: &str, id: u64, name: &str, disk: &DiskState) -> Standing {
    let three = |c| vec![member("a", 1, true), member("b", 2, true), member("c", c, true)];
    let of = |cluster_id, members| Standing::Member {
        cluster_id,
        members,
        leader: if word.ends_with('>') { Some(1) } else { (word.ends_with('*') || word.ends_with('-')).then_some(id) },
    };
    match word {
        "empty" | "empty'" | "other" | "twin" => Standing::Empty,
        "m7" | "m7*" | "m7>" => of(7, three(3)),
        "m7-" => of(7, three(103)),
        "m7?" => of(7, vec![]),
        "m7l*" => of(7, vec![member("a", 1, true), member("b", 2, true), member("c", disk.node_id, false)]),
        "m7-wrong" => of(7, vec![member("z", disk.node_id, true)]),
        "m5" | "m5*" => of(5, vec![member(name, id, true)]),
        word => Standing::Promised(promise(word).unwrap_or_else(|| panic!("no such answer: {word}"))),
    }
}

fn answer(word: &str, name: &str, disk: &DiskState) -> Result<PeerAnswer, String> {
    if word == "-" {
        return Err("no route".into());
    }
    let node_id = if word == "twin" { disk.node_id } else { id_of(name, word) };
    let peer_names = strings(if word == "other" { &["b", "c", "d"] } else { &NAMES });
    Ok(PeerAnswer { name: name.into(), node_id, peer_names, standing: standing(word, node_id, name, disk) })
}

fn disk(word: &str, name: &str) -> DiskState {
    DiskState { node_id: id_of(name, word), cluster_id: (word == "m7").then_some(7), promise: promise(word) }
}

fn mode(word: &str) -> BootstrapMode {
    match word {
        "peers" => BootstrapMode::Peers,
        "never" => BootstrapMode::Never,
        "solo" => BootstrapMode::Solo,
        word => panic!("no such mode: {word}"),
    }
}

fn place(mode_word: &str, name: &str) -> Place {
    Place { name: name.into(), peer_names: strings(&NAMES), bootstrap: mode(mode_word) }
}

fn answers(words: &[&str], me: &str, disk: &DiskState) -> Answers {
    let others = NAMES.iter().filter(|name| **name != me);
    others.zip(words).map(|(name, word)| ((*name).to_owned(), answer(word, name, disk))).collect()
}

/// An action in the words of the cases; reasons are compared apart.
fn words(action: &Action) -> (String, &str) {
    match action {
        Action::Start { .. } => ("start".into(), ""),
        Action::FoundSolo(promise) => (format!("solo {}", promise.cluster_id()), ""),
        Action::Propose { promise, to } => {
            let members: Vec<_> = promise.members().iter().map(|(name, id)| format!("{name}{id}")).collect();
            let text = format!("propose {} {} to {}", promise.cluster_id(), members.join(" "), to.join(","));
            (text.trim_end().to_owned(), "")
        }
        Action::Adopt { cluster_id, found, voter } => {
            let found = if found.is_some() { " found" } else { "" };
            (format!("adopt {cluster_id}{found} {}", if *voter { "voter" } else { "learner" }), "")
        }
        Action::DropPromise { reason } => ("drop".into(), reason),
        Action::AskJoin { cluster_id, via } => (format!("ask {cluster_id} via {}", via.join(",")), ""),
        Action::Wait { reason } => ("wait".into(), reason),
        Action::Stop { reason } => ("stop".into(), reason),
    }
}

#[test]
fn cases() {
    let text = include_str!("cases.txt");
    let mut run = 0;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (given, expected) = line.split_once(" => ").unwrap_or_else(|| panic!("no action: {line}"));
        let (mine, theirs) = given.split_once(" | ").unwrap_or_else(|| panic!("no peers: {line}"));
        let [mode, me, held] = *mine.split(' ').collect::<Vec<_>>() else { panic!("not mode, me, disk: {line}") };
        let disk = disk(held, me);
        let answers = answers(&theirs.split(' ').collect::<Vec<_>>(), me, &disk);
        let action = decide(&place(mode, me), &disk, &answers, FRESH);
        let (expected, within) = expected.split_once(" \"").unwrap_or((expected, ""));
        let (got, reason) = words(&action);
        assert_eq!(got, expected, "{line}\n{action:?}");
        assert!(reason.contains(within.trim_end_matches('"')), "{line}\n{reason}");
        run += 1;
    }
    assert!(run > 50, "only {run} cases were found");
}

#[test]
fn alone() {
    let disk = |word: &str, promise| DiskState { node_id: 1, cluster_id: (word == "m").then_some(7), promise };
    let mine = Promise::new(4, vec![("a".into(), 1)]).unwrap();
    let solo = |names: &[&str]| Place { name: "a".into(), peer_names: strings(names), bootstrap: BootstrapMode::Solo };
    let none = Answers::new();
    for names in [&[][..], &["a"]] {
        assert_eq!(words(&decide(&solo(names), &disk("", None), &none, FRESH)).0, "solo 6");
        let resumed = decide(&solo(names), &disk("", Some(mine.clone())), &none, FRESH);
        assert_eq!(resumed, Action::FoundSolo(mine.clone()));
    }
    let other = decide(&solo(&[]), &disk("", promise("L")), &none, FRESH);
    assert!(matches!(&other, Action::Stop { reason } if reason.contains("promised to found")), "{other:?}");
    let started = decide(&solo(&[]), &disk("m", Some(list(7, [1, 2, 3]))), &none, FRESH);
    assert_eq!(started, Action::Start { found: Some(list(7, [1, 2, 3])) });
    let stale = decide(&solo(&[]), &disk("m", Some(mine)), &none, FRESH);
    assert_eq!(stale, Action::Start { found: None });

    let unlisted = Place { bootstrap: BootstrapMode::Peers, ..solo(&[]) };
    assert_eq!(words(&decide(&unlisted, &disk("", None), &none, FRESH)).0, "stop");
    let one = Place { bootstrap: BootstrapMode::Peers, ..solo(&["a"]) };
    assert_eq!(words(&decide(&one, &disk("", None), &none, FRESH)).0, "propose 6 a1 to");
    let promised = disk("", Some(Promise::new(6, vec![("a".into(), 1)]).unwrap()));
    assert_eq!(words(&decide(&one, &promised, &none, FRESH)).0, "adopt 6 found voter");
    let renamed = Place { peer_names: strings(&["a", "b"]), ..one };
    assert_eq!(words(&decide(&renamed, &promised, &none, FRESH)).0, "stop");
}

/// The whole table: every combination against the written oracle, and against the rules that safety rests upon.
#[test]
fn over_all_combinations() {
    let heard = [
        "-", "empty", "empty'", "L", "K", "M", "L'", "m7", "m7*", "m7>", "m7-", "m7?", "m7l*", "m5", "m5*", "other",
        "twin", "m7-wrong",
    ];
    let mut run = 0;
    for mode in ["peers", "never", "solo"] {
        for me in NAMES {
            for held in ["empty", "empty'", "L", "K", "M", "m7"] {
                for x in heard {
                    for y in heard {
                        check(mode, me, held, [x, y]);
                        run += 1;
                    }
                }
            }
        }
    }
    assert_eq!(run, 3 * 3 * 6 * 18 * 18);
}

fn check(mode: &str, me: &str, held: &str, theirs: [&str; 2]) {
    let disk = disk(held, me);
    let answers = answers(&theirs, me, &disk);
    let action = decide(&place(mode, me), &disk, &answers, FRESH);
    let at = NAMES.iter().position(|name| *name == me).unwrap();
    let mut others = (0..NAMES.len()).filter(|place| *place != at).zip(theirs);
    let others = [others.next().unwrap(), others.next().unwrap()];
    let expected = super::oracle::World { mode, me: at, held, others }.verdict();
    assert_eq!(words(&action).0, expected, "{mode} {me} {held} | {theirs:?}: {action:?}");
    let all_answered = !theirs.contains(&"-");
    let a_member = theirs.iter().any(|word| word.starts_with('m'));
    let clusters: BTreeSet<char> =
        theirs.iter().filter(|word| word.starts_with('m')).map(|w| w.as_bytes()[1].into()).collect();
    let ok = match &action {
        Action::Start { .. } => held == "m7",
        Action::FoundSolo(_) => false,
        Action::Propose { promise, .. } => {
            let ids_hold = promise.members().iter().all(|(name, id)| match answers.get(name) {
                Some(Ok(answer)) => answer.node_id == *id,
                Some(Err(_)) => disk.promise.is_some(),
                None => disk.node_id == *id,
            });
            let own_word = disk.promise.as_ref().is_none_or(|held| held == promise);
            mode == "peers"
                && me == "a"
                && !a_member
                && own_word
                && ids_hold
                && (all_answered || disk.promise.is_some())
        }
        Action::Adopt { cluster_id, found, .. } if !a_member => {
            let held = disk.promise.as_ref();
            let same = |answer: &PeerAnswer| Some(&answer.standing) == held.cloned().map(Standing::Promised).as_ref();
            mode == "peers"
                && found.as_ref() == held
                && held.is_some_and(|held| held.cluster_id() == *cluster_id)
                && answers.values().all(|answer| answer.as_ref().is_ok_and(same))
        }
        Action::Adopt { cluster_id, found, .. } => {
            clusters.len() == 1 && found.as_ref().is_none_or(|found| found.cluster_id() == *cluster_id)
        }
        Action::DropPromise { .. } => disk.promise.is_some() && (a_member || all_answered),
        Action::AskJoin { via, .. } => a_member && clusters.len() == 1 && disk.promise.is_none() && !via.is_empty(),
        Action::Wait { reason } | Action::Stop { reason } => !reason.is_empty(),
    };
    assert!(ok, "{mode} {me} {held} | {theirs:?} => {action:?}");
    if clusters.len() > 1 && held != "m7" {
        assert!(matches!(action, Action::Stop { .. }), "{mode} {me} {held} | {theirs:?} => {action:?}");
    }
}
