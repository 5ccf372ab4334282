//! A single-threaded executor with virtual time: when nothing can run, the clock jumps to the next timer.

use futures::future::BoxFuture;
use futures::task::{ArcWake, waker};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// So many polls without time passing are a loop without a pause.
const STUCK_POLLS: u64 = 1_000_000;

/// The clock and the door to the executor, for tasks. All clones are the same.
#[derive(Clone, Default)]
pub(super) struct Time(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    now: Duration,
    /// By due time and order of arming.
    timers: BTreeMap<(Duration, u64), Waker>,
    armed: u64,
    spawned: Vec<(u64, BoxFuture<'static, ()>)>,
    cancelled: Vec<u64>,
    next_task: u64,
}

impl Time {
    pub(super) fn now(&self) -> Duration {
        self.0.lock().unwrap().now
    }

    pub(super) fn sleep(&self, duration: Duration) -> Sleep {
        Sleep { time: self.clone(), due: self.now() + duration, timer: None }
    }

    /// Starts a task; it first runs after the current one has yielded.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> u64 {
        let mut shared = self.0.lock().unwrap();
        shared.next_task += 1;
        let id = shared.next_task;
        shared.spawned.push((id, Box::pin(task)));
        id
    }

    /// Ends a task: it is never polled again, and dropped as soon as the current one has yielded.
    pub(super) fn cancel(&self, task: u64) {
        self.0.lock().unwrap().cancelled.push(task);
    }

    /// Runs `main` and everything that it spawns until `main` has ended.
    pub(super) fn run(&self, main: impl Future<Output = ()> + Send + 'static) {
        let ready = Arc::new(Mutex::new(VecDeque::new()));
        let mut tasks: BTreeMap<u64, BoxFuture<'static, ()>> = BTreeMap::new();
        let main = self.spawn(main);
        let mut polls_since_jump = 0;
        loop {
            polls_since_jump += 1;
            assert!(polls_since_jump < STUCK_POLLS, "at {:?} time does not pass any more", self.now());
            let (spawned, cancelled) = {
                let mut shared = self.0.lock().unwrap();
                (std::mem::take(&mut shared.spawned), std::mem::take(&mut shared.cancelled))
            };
            for (id, task) in spawned {
                tasks.insert(id, task);
                ready.lock().unwrap().push_back(id);
            }
            for id in cancelled {
                tasks.remove(&id);
            }
            let next = ready.lock().unwrap().pop_front();
            let Some(id) = next else {
                self.jump();
                polls_since_jump = 0;
                continue;
            };
            let Some(task) = tasks.get_mut(&id) else { continue };
            let waker = waker(Arc::new(Wake { task: id, ready: Arc::clone(&ready) }));
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                tasks.remove(&id);
                if id == main {
                    return;
                }
            }
        }
    }

    fn jump(&self) {
        let mut shared = self.0.lock().unwrap();
        let ((due, _), waker) = shared.timers.pop_first().expect("somebody waits for time or for somebody");
        shared.now = shared.now.max(due);
        waker.wake();
    }
}

struct Wake {
    task: u64,
    ready: Arc<Mutex<VecDeque<u64>>>,
}

impl ArcWake for Wake {
    fn wake_by_ref(arc_self: &Arc<Self>) {
        arc_self.ready.lock().unwrap().push_back(arc_self.task);
    }
}

/// Ends when its time has come. It has one timer, which goes with it.
pub(super) struct Sleep {
    time: Time,
    due: Duration,
    timer: Option<(Duration, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let time = self.time.clone();
        let mut shared = time.0.lock().unwrap();
        if shared.now >= self.due {
            return Poll::Ready(());
        }
        shared.armed += 1;
        let timer = self.timer.unwrap_or((self.due, shared.armed));
        shared.timers.insert(timer, context.waker().clone());
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.time.0.lock().unwrap().timers.remove(&timer);
        }
    }
}
