//! What is to be moved, encoded once for all agents that are told it.
//!
//! A manifest of 10,000 files has some 2 MB, and a job of 200 nodes tells it to all of them at once.
//! So a job keeps its encoded form and no other, and every request that names it ends with the same
//! bytes: [`Appending`] puts them behind what tonic has encoded of the request, without a copy, and
//! HTTP/2 takes of them what the agent has room for. However many requests are under way, and however
//! slow the agents are, they hold one manifest between them.
//!
//! In protobuf the fields of a message come in any order, and one that comes again is merged with what
//! came before: what an agent reads is the message as `agent.proto` has it.

use std::task::{Context, Poll};

use axum::body::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, future::ready, stream};
use tonic::{
    Request,
    body::Body,
    codegen::{Service, http},
};
use weft_proto::{Message as _, agent::v1::Manifest};

/// Before a message of gRPC: a byte, and its length in four.
const GRPC_HEADER_BYTES: usize = 5;
/// The wire type of a field with a length.
const LENGTH_DELIMITED: u64 = 2;

/// A manifest as agents are told it. Clones share it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedManifest {
    message: Bytes,
    files: usize,
    bytes: u64,
}

impl EncodedManifest {
    /// Of a source.
    pub fn new(manifest: &Manifest) -> Self {
        Self {
            message: manifest.encode_to_vec().into(),
            files: manifest.files.len(),
            bytes: manifest.files.iter().map(|file| file.size).sum(),
        }
    }

    /// How many files there are.
    pub fn files(&self) -> usize {
        self.files
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All that it says.
    ///
    /// # Panics
    /// Never: it was encoded here.
    pub fn decode(&self) -> Manifest {
        Manifest::decode(self.message.clone()).expect("it was encoded here")
    }

    /// A request of which it is the last field: of these numbers, from the outermost to its own.
    pub(super) fn append_to<T>(&self, message: T, numbers: &[u64]) -> Request<T> {
        let mut head = Vec::new();
        for number in numbers.iter().rev() {
            let mut outer = Vec::new();
            varint(number << 3 | LENGTH_DELIMITED, &mut outer);
            varint((head.len() + self.message.len()) as u64, &mut outer);
            outer.append(&mut head);
            head = outer;
        }
        let mut request = Request::new(message);
        request.extensions_mut().insert(Tail {
            head,
            manifest: self.message.clone(),
        });
        request
    }
}

/// A number as protobuf writes it: seven bits a byte, the lowest first.
fn varint(mut number: u64, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// What comes after a request's own bytes.
#[derive(Clone)]
struct Tail {
    /// The numbers and lengths of the fields that the manifest is in.
    head: Vec<u8>,
    manifest: Bytes,
}

impl Tail {
    /// A request's body, and then this.
    fn after(self, body: Body) -> Body {
        let Self { head, manifest } = self;
        let more = head.len() + manifest.len();
        let first = async move {
            let parts = axum::body::Body::new(body).into_data_stream();
            let mut message: Vec<u8> = parts
                .try_fold(Vec::new(), |mut message, part| {
                    message.extend_from_slice(&part);
                    ready(Ok(message))
                })
                .await?;
            lengthen(&mut message, more).map_err(axum::Error::new)?;
            message.extend_from_slice(&head);
            Ok::<_, axum::Error>(Bytes::from(message))
        };
        let parts = stream::once(first).chain(stream::once(ready(Ok(manifest))));
        Body::new(axum::body::Body::from_stream(parts))
    }
}

/// Says in a message's header that it is so much longer.
fn lengthen(message: &mut [u8], more: usize) -> Result<(), &'static str> {
    let header = message.first_chunk_mut::<GRPC_HEADER_BYTES>();
    let [_, length @ ..] = header.ok_or("a request without a header")?;
    let bytes = u32::from_be_bytes(*length) as usize + more;
    let bytes = u32::try_from(bytes).map_err(|_| "a manifest of more than 4 GiB")?;
    *length = bytes.to_be_bytes();
    Ok(())
}

/// A way for requests, to which what they are to end with is added.
#[derive(Debug, Clone)]
pub(super) struct Appending<S>(pub(super) S);

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for Appending<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        match request.extensions_mut().remove::<Tail>() {
            Some(tail) => self.0.call(request.map(|body| tail.after(body))),
            None => self.0.call(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weft_identity::authority::Authority;
    use weft_proto::agent::v1::{
        DestinationPart, File, JobRef, LocalPart, Location, ObjectPart, ObjectSource,
        PrepareRequest, SourcePart, StartRequest, start_request::Part,
    };

    use super::*;
    use crate::{
        Channels,
        calls::{LOCAL_MANIFEST, OBJECT_MANIFEST, PREPARE_MANIFEST, SOURCE_MANIFEST},
        stand_in::StandIn,
    };

    fn manifest(files: usize) -> Manifest {
        let file = |i| File {
            path: format!("shard-{i:05}.safetensors"),
            size: 7,
            ..File::default()
        };
        Manifest {
            files: (0..files).map(file).collect(),
            ..Manifest::default()
        }
    }

    fn prepare() -> PrepareRequest {
        PrepareRequest {
            leader_epoch: 7,
            overwrite: 1,
            ..PrepareRequest::default()
        }
    }

    #[test]
    fn files_and_bytes_are_counted() {
        let encoded = EncodedManifest::new(&manifest(3));
        assert_eq!((encoded.files(), encoded.bytes()), (3, 21));
        assert_eq!(encoded.decode(), manifest(3));
    }

    /// What an agent reads of a body.
    async fn read(body: Body) -> (Vec<Bytes>, Bytes) {
        let parts = axum::body::Body::new(body).into_data_stream();
        let parts: Vec<Bytes> = parts.try_collect().await.unwrap();
        let whole = Bytes::from(parts.concat());
        (parts, whole)
    }

    #[tokio::test]
    async fn all_requests_hold_the_same_bytes_of_a_manifest_and_none_copies_them() {
        let encoded = EncodedManifest::new(&manifest(10_000));
        for _ in 0..200 {
            let mut request = encoded.append_to(prepare(), &PREPARE_MANIFEST);
            let tail = request.extensions_mut().remove::<Tail>().unwrap();
            let message = request.into_inner().encode_to_vec();
            let mut framed = vec![0];
            framed.extend((message.len() as u32).to_be_bytes());
            framed.extend(message);
            let body = Body::new(axum::body::Body::from(framed));
            let (parts, whole) = read(tail.after(body)).await;
            let [first, last] = parts.as_slice() else {
                panic!("{} parts", parts.len());
            };
            assert!(first.len() < 100);
            assert_eq!(last.as_ptr(), encoded.message.as_ptr());
            let length = u32::from_be_bytes(whole[1..5].try_into().unwrap());
            assert_eq!(length as usize, whole.len() - GRPC_HEADER_BYTES);
            let read = PrepareRequest::decode(&whole[GRPC_HEADER_BYTES..]).unwrap();
            let wanted = PrepareRequest {
                manifest: Some(manifest(10_000)),
                ..prepare()
            };
            assert_eq!(read, wanted);
        }
    }

    #[tokio::test]
    async fn agents_read_a_manifest_where_the_protocol_has_it() {
        let authority = Arc::new(Authority::new("lab").unwrap());
        let node = StandIn::start(&authority, "n1").await;
        let agent = Channels::new(authority).agent(&node.contact);
        let job = Some(JobRef {
            uid: "uid".into(),
            generation: 1,
            attempt: 1,
        });
        let location = Some(Location {
            root: "data".into(),
            path: "x".into(),
        });
        // None, one that fits into a window of HTTP/2, and one that does not.
        for files in [0, 1, 50_000] {
            let encoded = EncodedManifest::new(&manifest(files));
            let call = agent.call(|mut client| {
                let request = encoded.append_to(prepare(), &PREPARE_MANIFEST);
                async move { client.prepare(request).await }
            });
            call.await.unwrap();
            let wanted = Some(manifest(files));
            assert_eq!(node.prepared().pop().unwrap().manifest, wanted);

            let source = SourcePart {
                location: location.clone(),
                ..SourcePart::default()
            };
            let local = LocalPart {
                source: location.clone(),
                manifest: None,
            };
            let store = Some(ObjectSource {
                url: "s3://models/x".into(),
                ..ObjectSource::default()
            });
            let reader = DestinationPart {
                receives_from: String::new(),
                object: Some(ObjectPart {
                    source: store.clone(),
                    manifest: None,
                }),
            };
            for (part, numbers) in [
                (Part::Source(source), &SOURCE_MANIFEST[..]),
                (Part::Local(local), &LOCAL_MANIFEST),
                (Part::Destination(reader), &OBJECT_MANIFEST),
            ] {
                let message = StartRequest {
                    job: job.clone(),
                    part: Some(part),
                    ..StartRequest::default()
                };
                let call = agent.call(|mut client| {
                    let request = encoded.append_to(message.clone(), numbers);
                    async move { client.start(request).await }
                });
                call.await.unwrap();
                let mut read = node.started().pop().unwrap();
                let told = match read.part.as_mut().unwrap() {
                    Part::Source(part) => part.manifest.take(),
                    Part::Local(part) => part.manifest.take(),
                    Part::Destination(part) => part.object.as_mut().unwrap().manifest.take(),
                };
                assert_eq!(told, wanted);
                // And everything else that it said.
                assert_eq!(read, message);
            }
        }
    }
}
