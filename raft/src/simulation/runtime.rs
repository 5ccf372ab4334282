//! What openraft runs on in a simulation: its runtime trait over [`super::executor`]. Channels that are fair by
//! construction are tokio's; the watch is our own, since tokio's wakes its waiters in a random order.

use super::executor::{self, Sleep};
use futures::FutureExt;
use openraft::async_runtime::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use openraft::async_runtime::{AsyncRuntime, Instant};
use openraft::impls::TokioRuntime;
use openraft::{OptionalSend, OptionalSync};
use rand::rngs::SmallRng;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::{Add, AddAssign, Deref, Sub, SubAssign};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::oneshot;

/// The runtime.
#[derive(Debug)]
pub(crate) struct SimRuntime;

/// A moment of simulated time.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SimInstant(Duration);

impl Add<Duration> for SimInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }
}

impl Sub<Duration> for SimInstant {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }
}

impl Sub for SimInstant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl AddAssign<Duration> for SimInstant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl SubAssign<Duration> for SimInstant {
    fn sub_assign(&mut self, duration: Duration) {
        *self = *self - duration;
    }
}

impl Instant for SimInstant {
    fn now() -> Self {
        Self(executor::now())
    }
}

/// A task that ended without a result: its node has crashed.
#[derive(Debug)]
pub(crate) struct Gone;

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the task has ended with its node")
    }
}

/// The result of a task, once there is one.
pub(crate) struct JoinHandle<T>(oneshot::Receiver<T>);

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Gone>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_unpin(context).map_err(|_| Gone)
    }
}

/// The clock came first.
#[derive(Debug)]
pub(crate) struct TooLate;

impl fmt::Display for TooLate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too late")
    }
}

/// A future against the clock.
pub(crate) struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TooLate>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => self.sleep.poll_unpin(context).map(|()| Err(TooLate)),
        }
    }
}

impl AsyncRuntime for SimRuntime {
    type JoinError = Gone;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = SimInstant;
    type TimeoutError = TooLate;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = SimWatch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let (send, receive) = oneshot::channel();
        executor::spawn(async move {
            // Nobody may want to know.
            let _detached = send.send(future.await);
        });
        JoinHandle(receive)
    }

    fn sleep(duration: Duration) -> Sleep {
        executor::sleep(duration)
    }

    fn sleep_until(deadline: SimInstant) -> Sleep {
        executor::sleep_until(deadline.0)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: executor::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: SimInstant, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: executor::sleep_until(deadline.0) }
    }

    fn is_panic(_gone: &Gone) -> bool {
        false
    }

    fn thread_rng() -> SmallRng {
        executor::branch()
    }

    fn new(_threads: usize) -> Self {
        Self
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        futures::executor::block_on(future)
    }

    fn spawn_blocking<F, T>(f: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let value = f();
        async move { Ok(value) }
    }
}

/// Watches that wake their waiters in the order in which they came.
pub(crate) struct SimWatch;

struct Watched<T> {
    value: RwLock<(u64, T)>,
    waiting: Mutex<Vec<Waker>>,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

impl<T> Watched<T> {
    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// A look at the value.
pub(crate) struct Look<'a, T>(RwLockReadGuard<'a, (u64, T)>);

impl<T> Deref for Look<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.1
    }
}

pub(crate) struct SimSender<T>(Arc<Watched<T>>);

pub(crate) struct SimReceiver<T> {
    watched: Arc<Watched<T>>,
    seen: u64,
}

impl<T> Clone for SimSender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone())
    }
}

impl<T> Drop for SimSender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.wake();
        }
    }
}

impl<T> Clone for SimReceiver<T> {
    fn clone(&self) -> Self {
        self.watched.receivers.fetch_add(1, Ordering::Relaxed);
        Self { watched: self.watched.clone(), seen: self.seen }
    }
}

impl<T> Drop for SimReceiver<T> {
    fn drop(&mut self) {
        self.watched.receivers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Watch for SimWatch {
    type Sender<T: OptionalSend + OptionalSync> = SimSender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = SimReceiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = Look<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (SimSender<T>, SimReceiver<T>) {
        let watched = Arc::new(Watched {
            value: RwLock::new((0, init)),
            waiting: Mutex::default(),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(1),
        });
        (SimSender(watched.clone()), SimReceiver { watched, seen: 0 })
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<SimWatch, T> for SimSender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Ordering::Relaxed) == 0 {
            return Err(SendError(value));
        }
        self.send_if_modified(|held| {
            *held = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        let mut held = self.0.value.write().unwrap();
        let modified = modify(&mut held.1);
        if modified {
            held.0 += 1;
            drop(held);
            self.0.wake();
        }
        modified
    }

    fn borrow_watched(&self) -> Look<'_, T> {
        Look(self.0.value.read().unwrap())
    }

    fn subscribe(&self) -> SimReceiver<T> {
        self.0.receivers.fetch_add(1, Ordering::Relaxed);
        let seen = self.0.value.read().unwrap().0;
        SimReceiver { watched: self.0.clone(), seen }
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<SimWatch, T> for SimReceiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        let watched = self.watched.clone();
        let seen = &mut self.seen;
        poll_fn(move |context| {
            let version = watched.value.read().unwrap().0;
            if version != *seen {
                *seen = version;
                return Poll::Ready(Ok(()));
            }
            if watched.senders.load(Ordering::Relaxed) == 0 {
                return Poll::Ready(Err(RecvError(())));
            }
            let mut waiting = watched.waiting.lock().unwrap();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn borrow_watched(&self) -> Look<'_, T> {
        Look(self.watched.value.read().unwrap())
    }

    fn borrow_and_update(&mut self) -> Look<'_, T> {
        let look = Look(self.watched.value.read().unwrap());
        self.seen = look.0.0;
        look
    }
}
