//! One promise a disk, kept under every order of calls, and nothing after a failed write.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
struct FakeDisk {
    fails: Arc<AtomicBool>,
}

impl FakeDisk {
    fn write(&self) -> Result<(), DiskFailure> {
        if self.fails.load(Ordering::SeqCst) { Err(DiskFailure("EIO".into())) } else { Ok(()) }
    }
}

impl Disk for FakeDisk {
    fn read(&self) -> Result<DiskState, DiskFailure> {
        Ok(DiskState { node_id: 1, cluster_id: None, promise: None })
    }
    fn make_promise(&self, _promise: &Promise) -> Result<(), DiskFailure> {
        self.write()
    }
    fn clear_promise(&self) -> Result<(), DiskFailure> {
        self.write()
    }
    fn adopt(&self, _cluster_id: u128) -> Result<(), DiskFailure> {
        self.write()
    }
}

fn place(bootstrap: BootstrapMode) -> Place {
    Place { name: "a".into(), peer_names: vec!["a".into(), "b".into()], bootstrap }
}

fn list(cluster_id: u128, members: &[(&str, u64)]) -> Promise {
    Promise::new(cluster_id, members.iter().map(|(name, id)| ((*name).to_owned(), *id)).collect()).unwrap()
}

fn founder() -> (Founder<FakeDisk>, Arc<AtomicBool>) {
    let disk = FakeDisk::default();
    let fails = Arc::clone(&disk.fails);
    (Founder::open(disk).unwrap(), fails)
}

fn refusal_text(answer: PromiseAnswer) -> (String, Option<Promise>) {
    match answer {
        PromiseAnswer::Promised => panic!("promised"),
        PromiseAnswer::Refused { reason, held } => (reason, held),
    }
}

#[test]
fn one_promise_and_only_a_fitting_one() {
    let (founder, _) = founder();
    let peers = place(BootstrapMode::Peers);
    let good = list(7, &[("a", 1), ("b", 2)]);
    let unfit = [
        (list(7, &[("a", 1), ("c", 2)]), "other --peers (a,b)"),
        (list(7, &[("a", 1)]), "other --peers"),
        (list(7, &[("a", 1), ("b", 2), ("c", 3)]), "other --peers"),
        (list(7, &[("a", 9), ("b", 2)]), "is the disk 0000000000000001"),
    ];
    for (asked, part) in unfit {
        let (reason, held) = refusal_text(founder.answer(&peers, &asked));
        assert!(reason.contains(part) && held.is_none(), "{asked}: {reason}");
    }
    for mode in [BootstrapMode::Never, BootstrapMode::Solo] {
        assert!(refusal_text(founder.answer(&place(mode), &good)).0.contains("--bootstrap=peers"));
    }
    assert_eq!(founder.standing(), Standing::Empty);
    assert_eq!(founder.answer(&peers, &good), PromiseAnswer::Promised);
    assert_eq!(founder.answer(&peers, &good), PromiseAnswer::Promised);
    assert_eq!(founder.standing(), Standing::Promised(good.clone()));
    let (reason, held) = refusal_text(founder.answer(&peers, &list(8, &[("a", 1), ("b", 2)])));
    assert!(reason.contains("has promised") && held == Some(good.clone()), "{reason}");

    assert!(founder.adopt(&founder.state(), 7).unwrap());
    assert!(refusal_text(founder.answer(&peers, &good)).0.contains("member of cluster"));
    let Standing::Member { cluster_id: 7, members, leader: None } = founder.standing() else { panic!() };
    assert_eq!(members.len(), 2);
    founder.founded().unwrap();
    founder.founded().unwrap();
    assert_eq!(founder.state(), DiskState { node_id: 1, cluster_id: Some(7), promise: None });
}

#[test]
fn a_change_in_between_makes_an_act_void() {
    let (founder, _) = founder();
    let peers = place(BootstrapMode::Peers);
    let (first, second) = (list(7, &[("a", 1), ("b", 2)]), list(8, &[("a", 1), ("b", 3)]));
    let seen = founder.state();
    assert_eq!(founder.answer(&peers, &first), PromiseAnswer::Promised);
    assert!(!founder.promise(&seen, &second).unwrap());
    assert!(!founder.adopt(&seen, 9).unwrap());
    let promised = founder.state();
    assert!(founder.drop_promise(&promised).unwrap());
    assert!(!founder.adopt(&promised, 7).unwrap());
    assert!(!founder.drop_promise(&promised).unwrap());
    assert_eq!(founder.answer(&peers, &second), PromiseAnswer::Promised);
    // Before it is a member, only a decision takes a promise back.
    founder.founded().unwrap();
    assert_eq!(founder.state().promise, Some(second));
}

#[test]
fn nothing_is_written_after_a_failed_write() {
    let (founder, fails) = founder();
    let mut watch = founder.watch();
    watch.borrow_and_update();
    let good = list(7, &[("a", 1), ("b", 2)]);
    fails.store(true, Ordering::SeqCst);
    assert!(refusal_text(founder.answer(&place(BootstrapMode::Peers), &good)).0.contains("EIO"));
    assert!(watch.has_changed().unwrap());
    assert!(founder.failure().is_some());
    fails.store(false, Ordering::SeqCst);
    assert!(refusal_text(founder.answer(&place(BootstrapMode::Peers), &good)).0.contains("EIO"));
    assert!(founder.promise(&founder.state(), &good).is_err());
    assert!(founder.adopt(&founder.state(), 7).is_err());
    assert!(founder.drop_promise(&founder.state()).is_err());
    assert_eq!(founder.standing(), Standing::Empty);
}
