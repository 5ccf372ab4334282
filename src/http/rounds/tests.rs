use super::*;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Longest wait for what should come soon.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makings that say when they begin and end when they are told to.
#[derive(Clone)]
struct Bench {
    rounds: Rounds<usize>,
    begun: UnboundedSender<()>,
    go_on: Arc<Mutex<Receiver<()>>>,
    made: Arc<AtomicUsize>,
    at_once: Arc<AtomicUsize>,
}

impl Bench {
    fn new() -> (Self, UnboundedReceiver<()>, Sender<()>) {
        let (begun, begins) = unbounded_channel();
        let (tell, go_on) = channel();
        let (made, at_once) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        (Self { rounds: Rounds::new(), begun, go_on: Arc::new(Mutex::new(go_on)), made, at_once }, begins, tell)
    }

    /// Asks, and gets which making it was.
    async fn ask(self) -> usize {
        let Self { rounds, begun, go_on, made, at_once } = self;
        let make = move || {
            assert_eq!(at_once.fetch_add(1, SeqCst), 0, "two are made at once");
            begun.send(()).unwrap();
            go_on.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            at_once.fetch_sub(1, SeqCst);
            made.fetch_add(1, SeqCst) + 1
        };
        rounds.join(make).await.unwrap()
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("not soon")
}

#[tokio::test]
async fn who_leaves_neither_frees_the_turn_nor_starts_anything() {
    let (bench, mut begins, tell) = Bench::new();
    let first = tokio::spawn(bench.clone().ask());
    soon(begins.recv()).await.unwrap();
    first.abort();
    assert!(soon(first).await.unwrap_err().is_cancelled());
    for _ in 0..100 {
        let mut leaves = Box::pin(bench.clone().ask());
        assert!(leaves.as_mut().now_or_never().is_none());
    }
    let mut last = Box::pin(bench.clone().ask());
    assert!(last.as_mut().now_or_never().is_none());
    assert!(begins.try_recv().is_err(), "the first one's making still goes on");
    tell.send(()).unwrap();
    tell.send(()).unwrap();
    assert_eq!(soon(last).await, 2);
    soon(begins.recv()).await.unwrap();
    assert!(begins.try_recv().is_err(), "nothing is made for those who left");
}

#[tokio::test]
async fn those_who_wait_share_what_is_begun_after_they_asked() {
    let (bench, mut begins, tell) = Bench::new();
    let first = tokio::spawn(bench.clone().ask());
    soon(begins.recv()).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let mut asked = Box::pin(bench.clone().ask());
        assert!(asked.as_mut().now_or_never().is_none());
        waiting.push(asked);
    }
    // The one that the others wait with may leave as well.
    drop(waiting.remove(0));
    tell.send(()).unwrap();
    assert_eq!(soon(first).await.unwrap(), 1, "what was begun before the others asked is not for them");
    tell.send(()).unwrap();
    for asked in waiting {
        assert_eq!(soon(asked).await, 2);
    }
    assert_eq!(bench.made.load(SeqCst), 2);
}

#[tokio::test]
async fn a_making_that_panics_is_an_error_and_the_turn_is_free_again() {
    let rounds: Rounds<u8> = Rounds::new();
    assert!(soon(rounds.join(|| panic!("on purpose"))).await.is_err());
    assert_eq!(soon(rounds.another().join(|| 7)).await, Ok(7));
    assert_eq!(soon(rounds.join(|| 8)).await, Ok(8));
}
