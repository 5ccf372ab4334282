//! What a loop has under way beside itself, bounded: counted when it takes off, counted off however it ends, a panic and
//! a drop included. Nothing is lost by either: who waits for an outcome sees its sender go.

use tokio::sync::mpsc;

/// What carries less than this part of what is under way had better wait for more to come, or for one to land: under load, one
/// each for whatever comes in meanwhile would cost everybody more than it says.
const LEAST_SHARE: usize = 2;

/// The count of one loop.
pub(crate) struct Flights {
    most: usize,
    flying: usize,
    flying_bytes: usize,
    land: mpsc::Sender<usize>,
    landed: mpsc::Receiver<usize>,
}

/// One that is under way, until this is dropped.
pub(crate) struct Flight {
    land: mpsc::Sender<usize>,
    bytes: usize,
}

impl Drop for Flight {
    fn drop(&mut self) {
        // There is room for all in flight; a loop that is gone doesn't count any more.
        let _told = self.land.try_send(self.bytes);
    }
}

impl Flights {
    /// None yet, and `most` at a time.
    pub(crate) fn new(most: usize) -> Self {
        let (land, landed) = mpsc::channel(most);
        Self { most, flying: 0, flying_bytes: 0, land, landed }
    }

    /// How many are under way.
    pub(crate) fn flying(&self) -> usize {
        self.flying
    }

    /// Whether one that carries so much is worth its way beside those.
    pub(crate) fn is_worth_it(&self, bytes: usize) -> bool {
        bytes.saturating_mul(LEAST_SHARE) >= self.flying_bytes
    }

    /// Whether one more may be.
    pub(crate) fn has_room(&self) -> bool {
        self.flying < self.most
    }

    /// Counts one more, which carries so much. There must be room for it.
    pub(crate) fn take_off(&mut self, bytes: usize) -> Flight {
        self.flying += 1;
        self.flying_bytes += bytes;
        Flight { land: self.land.clone(), bytes }
    }

    /// Waits until one has landed or an item has come, and takes in whatever has come by then; false once nothing will come
    /// any more.
    pub(crate) async fn wait<T>(&mut self, queue: &mut mpsc::Receiver<T>, mut take: impl FnMut(T)) -> bool {
        tokio::select! {
            biased;
            Some(bytes) = self.landed.recv() => {
                self.flying -= 1;
                self.flying_bytes -= bytes;
            }
            item = queue.recv() => match item {
                Some(item) => take(item),
                None => return false,
            },
        }
        while let Ok(item) = queue.try_recv() {
            take(item);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_panics_or_is_dropped_has_landed_too() {
        let (send, mut queue) = mpsc::channel(4);
        let mut flights = Flights::new(2);
        let (panicking, dropped) = (flights.take_off(3), flights.take_off(4));
        assert!(!flights.has_room());
        let task = tokio::spawn(async move {
            let _flight = panicking;
            panic!("as a test wants it");
        });
        assert!(task.await.is_err());
        drop(dropped);
        assert_eq!((flights.flying(), flights.flying_bytes), (2, 7));
        for left in [(1, 4), (0, 0)] {
            assert!(flights.wait(&mut queue, |_: u8| ()).await);
            assert_eq!((flights.flying(), flights.flying_bytes), left);
        }
        assert!(send.try_send(7).is_ok() && send.try_send(8).is_ok());
        let mut came = Vec::new();
        assert!(flights.wait(&mut queue, |item| came.push(item)).await);
        assert_eq!(came, [7, 8]);
        drop(send);
        assert!(!flights.wait(&mut queue, |_| ()).await);
    }
}
