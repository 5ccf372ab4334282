//! Time, tasks and chance of a simulated run, all of one thread and all from one seed.
//!
//! The next task to run is drawn from those that are ready; when none is, time jumps to the next timer. Tasks belong to
//! a group, and a group can be ended as a power cut ends a process: nothing in it ever runs again. Look at
//! [`super::runtime`] for what Raft sees of this.

use futures::future::BoxFuture;
use futures::task::{ArcWake, waker};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The group of what no crash ends.
pub(super) const WORLD: u32 = 0;
/// Where time begins, so that nobody who looks back falls off it.
const ORIGIN: Duration = Duration::from_secs(86_400);
/// More polls than this without time passing is a loop that never ends.
const STUCK_POLLS: u64 = 2_000_000;

struct Task {
    group: u32,
    waker: Waker,
    future: Option<BoxFuture<'static, ()>>,
}

struct Executor {
    now: Cell<Duration>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    dead: RefCell<BTreeSet<u32>>,
    ready: Arc<Mutex<Vec<u64>>>,
    timers: RefCell<BTreeMap<(Duration, u64), Waker>>,
    rng: RefCell<SmallRng>,
    group: Cell<u32>,
    last_task: Cell<u64>,
    last_timer: Cell<u64>,
    stopped: Cell<bool>,
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
}

fn current() -> Rc<Executor> {
    CURRENT.with_borrow(Clone::clone).expect("a simulation runs on this thread")
}

struct Wake {
    task: u64,
    ready: Arc<Mutex<Vec<u64>>>,
}

impl ArcWake for Wake {
    fn wake_by_ref(this: &Arc<Self>) {
        let mut ready = this.ready.lock().unwrap();
        if !ready.contains(&this.task) {
            ready.push(this.task);
        }
    }
}

/// Runs `main` and what it spawns until [`stop`] is called or a task panics; gives what the panic said.
pub(super) fn run(seed: u64, main: impl Future<Output = ()> + Send + 'static) -> Result<(), String> {
    let executor = Rc::new(Executor {
        now: Cell::new(ORIGIN),
        tasks: RefCell::default(),
        dead: RefCell::default(),
        ready: Arc::default(),
        timers: RefCell::default(),
        rng: RefCell::new(SmallRng::seed_from_u64(seed)),
        group: Cell::new(WORLD),
        last_task: Cell::new(0),
        last_timer: Cell::new(0),
        stopped: Cell::new(false),
    });
    CURRENT.set(Some(executor.clone()));
    spawn(main);
    let outcome = executor.work();
    // What is left is dropped while there is still a current executor: drops look for their timers.
    let left = executor.tasks.take();
    drop(left);
    CURRENT.set(None);
    outcome
}

impl Executor {
    fn work(&self) -> Result<(), String> {
        let mut polls = 0;
        while !self.stopped.get() {
            let Some(id) = self.draw() else {
                polls = 0;
                self.jump();
                continue;
            };
            polls += 1;
            assert!(polls < STUCK_POLLS, "at {:?} time does not pass any more", now());
            let taken = self
                .tasks
                .borrow_mut()
                .get_mut(&id)
                .and_then(|task| Some((task.group, task.waker.clone(), task.future.take()?)));
            let Some((group, waker, mut future)) = taken else { continue };
            self.group.set(group);
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))));
            match polled {
                Err(panic) => return Err(said(&*panic)),
                Ok(Poll::Pending) => {
                    if let Some(task) = self.tasks.borrow_mut().get_mut(&id) {
                        task.future = Some(future);
                        continue;
                    }
                    // Its group ended while it ran.
                    drop(future);
                }
                Ok(Poll::Ready(())) => {
                    drop(future);
                    let _done = self.tasks.borrow_mut().remove(&id);
                }
            }
        }
        Ok(())
    }

    fn draw(&self) -> Option<u64> {
        let mut ready = self.ready.lock().unwrap();
        let count = ready.len();
        match count {
            0 => None,
            1 => ready.pop(),
            _ => Some(ready.swap_remove(self.rng.borrow_mut().random_range(0..count))),
        }
    }

    fn jump(&self) {
        let first = self.timers.borrow_mut().pop_first();
        let ((due, _), waker) = first.expect("somebody waits for time");
        self.now.set(self.now.get().max(due));
        waker.wake();
    }
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("something that is no text").to_owned()
}

/// Simulated time since an origin.
pub(super) fn now() -> Duration {
    CURRENT.with_borrow(|executor| executor.as_ref().map_or(ORIGIN, |executor| executor.now.get()))
}

/// Simulated time since the run began.
pub(super) fn elapsed() -> Duration {
    now() - ORIGIN
}

/// Ends the run once the caller has yielded.
pub(super) fn stop() {
    current().stopped.set(true);
}

/// Starts a task in the group of the caller.
pub(super) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    spawn_in(current().group.get(), task);
}

/// Starts a task in a group; in one that has ended it is dropped at once.
pub(super) fn spawn_in(group: u32, task: impl Future<Output = ()> + Send + 'static) {
    let executor = current();
    if executor.dead.borrow().contains(&group) {
        return;
    }
    let id = executor.last_task.get() + 1;
    executor.last_task.set(id);
    let waker = waker(Arc::new(Wake { task: id, ready: executor.ready.clone() }));
    executor.tasks.borrow_mut().insert(id, Task { group, waker, future: Some(Box::pin(task)) });
    executor.ready.lock().unwrap().push(id);
}

/// Ends a group for good.
pub(super) fn kill(group: u32) {
    let executor = current();
    executor.dead.borrow_mut().insert(group);
    let killed: Vec<Task> = {
        let mut tasks = executor.tasks.borrow_mut();
        let ids: Vec<u64> = tasks.iter().filter(|(_, task)| task.group == group).map(|(id, _)| *id).collect();
        ids.iter().filter_map(|id| tasks.remove(id)).collect()
    };
    drop(killed);
}

/// Draws from the run's one source of chance.
pub(super) fn chance<T>(draw: impl FnOnce(&mut SmallRng) -> T) -> T {
    draw(&mut current().rng.borrow_mut())
}

/// True with a probability.
pub(super) fn happens(probability: f64) -> bool {
    chance(|rng| rng.random_bool(probability))
}

/// A source of chance of its own, seeded by the run's.
pub(super) fn branch() -> SmallRng {
    SmallRng::seed_from_u64(chance(Rng::next_u64))
}

/// A duration between two, in microseconds.
pub(super) fn between(from: Duration, to: Duration) -> Duration {
    let micros = |d: Duration| u64::try_from(d.as_micros()).unwrap();
    Duration::from_micros(chance(|rng| rng.random_range(micros(from)..=micros(to))))
}

/// Waits.
pub(super) fn sleep(duration: Duration) -> Sleep {
    sleep_until(now() + duration)
}

/// Waits for a moment.
pub(super) fn sleep_until(due: Duration) -> Sleep {
    Sleep { due, timer: None }
}

/// Ends when its time has come. It has one timer, which goes with it.
pub(crate) struct Sleep {
    due: Duration,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let executor = current();
        if executor.now.get() >= self.due {
            return Poll::Ready(());
        }
        let timer = self.timer.unwrap_or_else(|| {
            executor.last_timer.set(executor.last_timer.get() + 1);
            executor.last_timer.get()
        });
        self.timer = Some(timer);
        executor.timers.borrow_mut().insert((self.due, timer), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer
            && let Some(executor) = CURRENT.with_borrow(Clone::clone)
        {
            executor.timers.borrow_mut().remove(&(self.due, timer));
        }
    }
}

/// Runs a future against the clock; `None` when the clock won.
pub(super) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let future = std::pin::pin!(future);
    match futures::future::select(future, sleep(limit)).await {
        futures::future::Either::Left((value, _)) => Some(value),
        futures::future::Either::Right(((), _)) => None,
    }
}
