//! The control APIs of agents and operator; generated code, and how its messages are buffered (`codec`).
//!
//! The definitions are in `proto/`; every message and field is documented there. Callers: the agent
//! serves its own, which the operator and `weft play` call, and agents each other's `Measure`, `Connect`,
//! `FetchManifest` and `OfferQueuePair`; the operator serves its own, which the agents of a cluster call; the engine of
//! virtual devices serves its own, which its node's agent and `weft device` call; an agent serves its node's driver of
//! volumes, and answers `FindClaim` to its node's device plugin.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    rustdoc::all
)]

pub(crate) mod codec;

/// The agent's control API, version 1.
pub mod agent {
    /// Messages, client and server of `weft.agent.v1`.
    pub mod v1 {
        tonic::include_proto!("weft.agent.v1");

        impl std::fmt::Debug for Credentials {
            /// Where they are from, and no value.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let names: std::collections::BTreeSet<&String> = self.values.keys().collect();
                f.debug_struct("Credentials")
                    .field("secret", &self.secret)
                    .field("names", &names)
                    .finish_non_exhaustive()
            }
        }

        impl std::fmt::Debug for ConnectionEnd {
            /// Without the secret that seals packets and the key that authenticates a Reset.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("ConnectionEnd")
                    .field("connection", &self.connection)
                    .field("link", &self.link)
                    .field("settings", &self.settings)
                    .field("engine_incarnation", &self.engine_incarnation)
                    .finish_non_exhaustive()
            }
        }

        impl std::fmt::Debug for QueuePairOffer {
            /// Without the half of its keys.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("QueuePairOffer")
                    .field("from", &self.from)
                    .field("to", &self.to)
                    .field("end", &self.end)
                    .field("answers", &self.answers)
                    .finish_non_exhaustive()
            }
        }
    }
}

/// A channel to a Unix socket; each call connects where there is no connection, and has so long to be answered. To be called
/// within a runtime of tokio.
pub fn unix_channel(
    socket: &std::path::Path,
    answer_timeout: std::time::Duration,
) -> tonic::transport::Channel {
    let socket = socket.to_owned();
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            let connected = tokio::net::UnixStream::connect(socket).await;
            connected.map(hyper_util::rt::TokioIo::new)
        }
    });
    // Of a Unix socket the name means nothing.
    let endpoint = tonic::transport::Endpoint::from_static("http://socket");
    endpoint
        .timeout(answer_timeout)
        .connect_with_connector_lazy(connect)
}

/// How a node's engine of virtual devices is managed, version 1.
pub mod engine {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use tonic::transport::Channel;

    /// An engine that has not answered by then hangs: it answers in microseconds.
    const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

    /// A list of 65,536 devices, of which each has at most 450 bytes.
    const ANSWER_BYTES_MAX: usize = 32 << 20;

    /// A client of the engine at this socket; each call connects where there is no connection. To be called within a
    /// runtime of tokio.
    pub fn client(socket: &Path) -> v1::engine_client::EngineClient<Channel> {
        let channel = crate::unix_channel(socket, ANSWER_TIMEOUT);
        v1::engine_client::EngineClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX)
    }

    /// Where the device plugin writes how the devices of the engine at this socket are: a [`v1::DeviceHealth`].
    pub fn health_file(socket: &Path) -> PathBuf {
        socket.with_file_name("device-plugin.health")
    }

    /// Messages, client and server of `weft.engine.v1`.
    pub mod v1 {
        tonic::include_proto!("weft.engine.v1");
    }
}

/// What devices a ResourceClaim has, as a node's agent answers it at a Unix socket, version 1.
pub mod claims {
    use std::path::Path;
    use std::time::Duration;

    use tonic::transport::Channel;

    /// The name of the socket, beside that of the node's engine.
    pub const SOCKET: &str = "claims.sock";

    /// The agent asks the operator, and the operator the API server; each gives up sooner.
    const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

    /// A client of the agent at this socket; each call connects where there is no connection. To be called within a
    /// runtime of tokio.
    pub fn client(socket: &Path) -> v1::claims_client::ClaimsClient<Channel> {
        let channel = crate::unix_channel(socket, ANSWER_TIMEOUT);
        v1::claims_client::ClaimsClient::new(channel)
    }

    /// Messages, client and server of `weft.claims.v1`.
    pub mod v1 {
        tonic::include_proto!("weft.claims.v1");
    }
}

#[cfg(test)]
mod tests {
    use crate::agent::v1::{ConnectionEnd, Credentials, ObjectSource, QueuePairOffer};
    use crate::operator::v1::ReviewMetricsTokenRequest;

    #[test]
    fn a_request_with_credentials_can_be_printed_and_does_not_tell_them() {
        let source = ObjectSource {
            url: "s3://bucket/key".to_owned(),
            credentials: Some(Credentials {
                values: [("secret_access_key".to_owned(), b"hunter2".to_vec())].into(),
                secret: "team-a/store".to_owned(),
            }),
            expect: None,
        };
        let text = format!("{source:?}");
        assert!(text.contains("secret_access_key") && text.contains("team-a/store"));
        assert!(
            !text.contains("hunter2") && !text.contains("104, 117"),
            "{text}"
        );
    }

    #[test]
    fn a_request_with_a_token_can_be_printed_and_does_not_tell_it() {
        let request = ReviewMetricsTokenRequest {
            token: "e30.hunter2.c2ln".to_owned(),
        };
        let text = format!("{request:?}");
        assert!(
            text.contains("ReviewMetricsTokenRequest") && !text.contains("hunter2"),
            "{text}"
        );
    }

    #[test]
    fn an_offer_can_be_printed_and_does_not_tell_its_secret() {
        let offer = QueuePairOffer {
            end: Some(ConnectionEnd {
                connection: 4711,
                secret: vec![213; 32],
                reset_key: 987_654_321,
                ..ConnectionEnd::default()
            }),
            key_prefix: 555_444_333,
            ..QueuePairOffer::default()
        };
        for text in [format!("{offer:?}"), format!("{offer:#?}")] {
            assert!(text.contains("4711"), "{text}");
            for secret in ["213", "987654321", "555444333"] {
                assert!(!text.contains(secret), "{text}");
            }
        }
    }
}

/// The operator's control API, version 1.
pub mod operator {
    /// The reason of the finding of an agent whose node has more copies than a report can list.
    pub const COPIES_FULL: &str = "CopiesFull";
    /// … of an agent that moves files and does not serve the programs of devices, though its fabric has devices.
    pub const DEVICES_NOT_SERVED: &str = "DevicesNotServed";
    /// … of an agent that ends. The next one says what the node has.
    pub const STOPPING: &str = "Stopping";

    /// Messages, client and server of `weft.operator.v1`.
    pub mod v1 {
        tonic::include_proto!("weft.operator.v1");

        impl std::fmt::Debug for ReviewMetricsTokenRequest {
            /// Without the token.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("ReviewMetricsTokenRequest")
                    .finish_non_exhaustive()
            }
        }
    }
}

/// Which copies the pods of a node mount, version 1.
pub mod volumes {
    /// The agent's socket, in its directory for volumes.
    pub const SOCKET: &str = "agent.sock";
    /// Beside it: a file for each volume that shows a copy, named by the kubelet's id of the volume.
    pub const IN_USE: &str = "in-use";

    /// Whether the agent and the driver take this for the id of a volume, of which they make the name of a file.
    pub fn is_id(id: &str) -> bool {
        let is_letter =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        (1..=128).contains(&id.len()) && !id.starts_with('.') && id.bytes().all(is_letter)
    }

    /// Messages, client and server of `weft.volumes.v1`.
    pub mod v1 {
        tonic::include_proto!("weft.volumes.v1");
    }
}

pub use prost::Message;
