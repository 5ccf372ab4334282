//! Places for things that are referred to by a 32-bit position. A position is given again once its thing is gone.

use std::ops::{Index, IndexMut};

/// A slab of `T`.
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// The position that the next [`Slab::insert`] uses; `None` when 32 bits are used up.
    pub(crate) fn next(&self) -> Option<u32> {
        match self.free.last() {
            Some(&at) => Some(at),
            None => u32::try_from(self.places.len()).ok().filter(|&at| at < u32::MAX),
        }
    }

    /// Puts a thing in and returns its position, or drops it when 32 bits are used up.
    pub(crate) fn insert(&mut self, thing: T) -> Option<u32> {
        let at = self.next()?;
        match self.free.pop() {
            Some(_) => self.places[at as usize] = Some(thing),
            None => self.places.push(Some(thing)),
        }
        Some(at)
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let thing = self.places.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(thing)
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.places.get(at as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.places.get_mut(at as usize)?.as_mut()
    }

    /// All things with their positions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.places).filter_map(|(at, thing)| Some((at, thing.as_ref()?)))
    }

    /// All places, empty ones too.
    pub(crate) fn places(&self) -> impl Iterator<Item = Option<&T>> {
        self.places.iter().map(Option::as_ref)
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[expect(clippy::panic, reason = "positions come from this slab; an empty one is a bug of the engine")]
    fn index(&self, at: u32) -> &T {
        match self.get(at) {
            Some(thing) => thing,
            None => panic!("nothing at {at} of {}", self.places.len()),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[expect(clippy::panic, reason = "positions come from this slab; an empty one is a bug of the engine")]
    fn index_mut(&mut self, at: u32) -> &mut T {
        let len = self.places.len();
        match self.places.get_mut(at as usize).and_then(Option::as_mut) {
            Some(thing) => thing,
            None => panic!("nothing at {at} of {len}"),
        }
    }
}
