//! Objects of JSON documents read strictly. It knows no document.

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;

/// A `T` that was written as an object with keys. What serde derives would also take a list of the values, in order.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Keyed<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Keyed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfMap<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for OfMap<T> {
            type Value = Keyed<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Keyed<T>, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map)).map(Keyed)
            }
        }
        deserializer.deserialize_map(OfMap(PhantomData))
    }
}
