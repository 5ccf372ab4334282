//! Who holds a place on a port, and what becomes of one who comes when all are taken. Where another node would do as well
//! the newcomer is turned away; where it is this node that is asked after (its health, its metrics), the one who has been
//! there longest leaves for it, and rather one who waits for nothing. Owns the places; it must never close a connection
//! itself: whoever serves one watches [`Guest::told_to_leave`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// The place of each guest by the order in which they came. One who was told to leave is no longer here.
type Guests = BTreeMap<u64, Guest>;

/// How many connections a port holds. A newcomer over the number finds no place before its handshake, or gets that of
/// another.
#[derive(Clone, Debug)]
pub struct Room {
    free: Arc<Semaphore>,
    connections: usize,
    closed: Arc<AtomicU64>,
    /// Where newcomers take the places of others.
    guests: Option<Arc<Mutex<Guests>>>,
    next: Arc<AtomicU64>,
}

impl Room {
    /// Room for this many connections. One over the number is closed at once: a client then tries another node, where
    /// waiting in a queue would hold it up.
    pub fn new(connections: usize) -> Self {
        let connections = connections.min(Semaphore::MAX_PERMITS);
        let free = Arc::new(Semaphore::new(connections));
        Self { free, connections, closed: Arc::default(), guests: None, next: Arc::default() }
    }

    /// The same, but for one over the number another is closed: the one that is open longest. Of the older half one
    /// without a request under way is closed before those with one; the younger half is safe, since who has just come
    /// had no time to ask.
    pub fn for_newcomers(connections: usize) -> Self {
        Self { guests: Some(Arc::default()), ..Self::new(connections) }
    }

    /// Connections that are open now.
    pub fn open(&self) -> u64 {
        (self.connections - self.free.available_permits()) as u64
    }

    /// Connections that were closed for want of room.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// Handshakes that may be under way at once. Those for whom others leave must get to theirs.
    pub(crate) fn handshakes(&self, most: usize) -> usize {
        if self.guests.is_none() { most } else { most.max(self.connections + 1).min(Semaphore::MAX_PERMITS) }
    }

    /// A place for a newcomer. Waits at most for the one who leaves for it, which those who serve see to at once; to be
    /// called by one task, whoever accepts.
    pub(crate) async fn take(&self) -> Option<Place> {
        let free = match self.free.clone().try_acquire_owned() {
            Ok(free) => free,
            Err(_) => {
                self.make_room()?;
                self.free.clone().acquire_owned().await.ok()?
            }
        };
        let guest = Guest::default();
        let came = self.next.fetch_add(1, Ordering::Relaxed);
        let seat = self.guests.clone().map(|guests| {
            lock(&guests).insert(came, guest.clone());
            (guests, came)
        });
        Some(Place { seat, guest, _free: free })
    }

    /// Tells one to leave, unless the newcomer is to be turned away.
    fn make_room(&self) -> Option<()> {
        let mut guests = match &self.guests {
            Some(guests) => lock(guests),
            None => {
                self.closed.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        };
        if guests.len() < self.connections {
            // Somebody is leaving already.
            return Some(());
        }
        let mut older = guests.iter().take(self.connections.div_ceil(2));
        let idle = older.find(|(_, guest)| guest.is_idle()).map(|(came, _)| *came);
        if let Some(guest) = idle.or_else(|| guests.keys().next().copied()).and_then(|came| guests.remove(&came)) {
            self.closed.fetch_add(1, Ordering::Relaxed);
            guest.leave.cancel();
        }
        Some(())
    }
}

fn lock(guests: &Mutex<Guests>) -> MutexGuard<'_, Guests> {
    guests.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection, for whoever serves it and for the port that it is on.
#[derive(Clone, Debug, Default)]
pub struct Guest {
    leave: CancellationToken,
    calls: Arc<AtomicUsize>,
}

impl Guest {
    /// Resolves when the place is for another.
    pub async fn told_to_leave(&self) {
        self.leave.cancelled().await;
    }

    /// A request is under way until what this returns is dropped.
    pub fn begin(&self) -> UnderWay {
        self.calls.fetch_add(1, Ordering::Relaxed);
        UnderWay(self.calls.clone())
    }

    fn is_idle(&self) -> bool {
        self.calls.load(Ordering::Relaxed) == 0
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection takes of its port for as long as it lives.
#[derive(Debug)]
pub(crate) struct Place {
    seat: Option<(Arc<Mutex<Guests>>, u64)>,
    guest: Guest,
    _free: OwnedSemaphorePermit,
}

impl Place {
    pub(crate) fn guest(&self) -> &Guest {
        &self.guest
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((guests, came)) = &self.seat {
            lock(guests).remove(came);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    async fn taken(room: &Room) -> Place {
        room.take().await.expect("there is a place")
    }

    fn is_told(place: &Place) -> bool {
        place.guest().told_to_leave().now_or_never().is_some()
    }

    #[tokio::test]
    async fn one_over_the_number_is_turned_away() {
        let room = Room::new(1);
        let first = taken(&room).await;
        assert!(room.take().await.is_none() && !is_told(&first));
        assert_eq!((room.open(), room.closed()), (1, 1));
        drop(first);
        assert!(room.take().await.is_some());
    }

    #[tokio::test]
    async fn the_one_there_longest_leaves_and_rather_one_who_waits_for_nothing() {
        let room = Room::for_newcomers(3);
        let (busy, idle, other) = (taken(&room).await, taken(&room).await, taken(&room).await);
        let first = busy.guest().begin();
        let mut newcomer = Box::pin(room.take());
        assert!(newcomer.as_mut().now_or_never().is_none(), "it waits for the place to be left");
        assert_eq!([&busy, &idle, &other].map(is_told), [false, true, false]);
        drop(idle);
        let newcomer = newcomer.await.expect("a place");
        let _second = other.guest().begin();
        let mut next = Box::pin(room.take());
        assert!(next.as_mut().now_or_never().is_none());
        assert_eq!([&busy, &other, &newcomer].map(is_told), [true, false, false], "who has just come stays");
        assert_eq!((room.open(), room.closed()), (3, 2));
        drop((first, busy));
        assert!(next.await.is_some());
    }

    #[tokio::test]
    async fn nobody_leaves_while_another_is_leaving() {
        let room = Room::for_newcomers(2);
        let (first, second) = (taken(&room).await, taken(&room).await);
        let mut newcomer = Box::pin(room.take());
        assert!(newcomer.as_mut().now_or_never().is_none() && is_told(&first));
        drop(second);
        let third = newcomer.await.expect("the place of one who left by itself");
        // The first has not left yet: its place is the next one's.
        let mut next = Box::pin(room.take());
        assert!(next.as_mut().now_or_never().is_none() && !is_told(&third));
        drop(first);
        assert!(next.await.is_some());
        assert_eq!(room.closed(), 1);
    }
}
