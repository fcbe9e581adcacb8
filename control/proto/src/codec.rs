//! Protobuf messages on a stream, with small buffers.
//!
//! tonic takes a buffer for every stream when it begins and keeps it until the stream ends, 8 KiB by
//! default. An operator follows thousands of streams whose messages have a few hundred bytes.

use prost::Message;
use tonic::codec::{BufferSettings, Codec as TonicCodec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// A progress message has some 200 B; one that is larger gets the room that it says it needs.
const BUFFER_BYTES: usize = 512;
/// Messages that are ready at once go out together up to here; tonic's default.
const YIELD_BYTES: usize = 32 << 10;

/// [`ProstCodec`] with buffers of [`BUFFER_BYTES`].
#[derive(Debug, Clone)]
pub(crate) struct Codec<T, U>(ProstCodec<T, U>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(ProstCodec::default())
    }
}

impl<T, U> TonicCodec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(settings())
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(settings())
    }
}

fn settings() -> BufferSettings {
    BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
}
