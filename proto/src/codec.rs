//! The codec of all calls: prost's, but for how buffers are used. A message is decoded from one frozen buffer, so that its
//! byte fields (the hashes) are slices of what the connection received and cost neither a copy nor an allocation; and a
//! message is encoded into room of its own size, where the stock codec takes 8 KiB for either side of every call.

use bytes::Buf;
use prost::{DecodeError, Message};
use std::marker::PhantomData;
use std::sync::Arc;
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// First room for what is received and sent; lookups mostly fit, and all else grows it once, to its size.
const BUFFER_BYTES: usize = 1_024;
/// Encoded bytes of a stream after which they are sent on before the next message is asked for.
const YIELD_BYTES: usize = 32 << 10;

/// Encodes `T` and decodes `U`.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<fn(T) -> U>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + 'static, U: Message + Default + 'static> tonic::codec::Codec for Codec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = Fitted<T>;
    type Decoder = Frozen<U>;

    fn encoder(&mut self) -> Fitted<T> {
        Fitted(PhantomData)
    }

    fn decoder(&mut self) -> Frozen<U> {
        Frozen(PhantomData)
    }
}

/// Encodes into exactly the room that a message takes.
#[derive(Debug)]
pub struct Fitted<T>(PhantomData<fn(T)>);

impl<T: Message> Encoder for Fitted<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.reserve(item.encoded_len());
        item.encode_raw(buf);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}

/// The status of bytes that are no message: who sent them is at fault, on a server as well as on a client. The source
/// goes no further than this process, and tells the two apart ([`crate::failure`]).
#[cold]
fn unreadable(error: DecodeError) -> Status {
    let mut status = Status::invalid_argument(format!("not a message of this call: {error}"));
    status.set_source(Arc::new(error));
    status
}

/// Decodes from a buffer that doesn't change any more.
#[derive(Debug)]
pub struct Frozen<U>(PhantomData<fn() -> U>);

impl<U: Message + Default> Decoder for Frozen<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let message = buf.copy_to_bytes(buf.remaining());
        U::decode(message).map(Some).map_err(unreadable)
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}
