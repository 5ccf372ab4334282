//! Documents that take a while to make, such as a scan of the whole index or a page of metrics: made off the thread that
//! serves, one at a time, for all who asked before the making began. The turn is the making's, not the caller's: one who
//! leaves doesn't free it, and when all who wait have left nothing is begun. Must never block who asks for anything else.

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

type Making<T> = BoxFuture<'static, Result<T, String>>;

/// One kind of document. What is made is for whoever asks next, whoever that is.
pub(super) struct Rounds<T: Clone> {
    turn: Arc<Semaphore>,
    /// The round that is not begun yet, while somebody waits for it.
    next: Arc<Mutex<Option<WeakShared<Making<T>>>>>,
}

impl<T: Clone> Clone for Rounds<T> {
    fn clone(&self) -> Self {
        Self { turn: self.turn.clone(), next: self.next.clone() }
    }
}

impl<T: Clone + Send + Sync + 'static> Rounds<T> {
    /// Documents that take turns with nothing else.
    pub(super) fn new() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), next: Arc::default() }
    }

    /// Documents of another kind, of which none is made while one of this kind is.
    pub(super) fn another(&self) -> Self {
        Self { turn: self.turn.clone(), next: Arc::default() }
    }

    /// A document whose making begins after this call.
    ///
    /// # Errors
    /// The making ended without one; why is for people.
    pub(super) async fn join(&self, make: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
        self.next_with(make).await
    }

    fn next_with(&self, make: impl FnOnce() -> T + Send + 'static) -> Shared<Making<T>> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(round) = next.as_ref().and_then(WeakShared::upgrade) {
            return round;
        }
        let (turn, begun) = (self.turn.clone(), self.next.clone());
        let round = async move {
            let turn = turn.acquire_owned().await.map_err(|closed| closed.to_string())?;
            // Whoever comes from here on may know of what this round won't see.
            *begun.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let making = tokio::task::spawn_blocking(move || {
                let made = make();
                drop(turn);
                made
            });
            making.await.map_err(|ended| ended.to_string())
        };
        let round = round.boxed().shared();
        *next = round.downgrade();
        round
    }
}

#[cfg(test)]
mod tests;
