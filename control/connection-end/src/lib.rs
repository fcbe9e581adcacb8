//! Connection ends as two engines tell each other of them: between the engine's types and the control API's messages.
//!
//! A message comes from another node and may hold anything: it is checked here, and an error names the field.

use std::net::IpAddr;

use weft_core::connection::Settings;
use weft_core::units::ConnectionId;
use weft_core::wire::Secret;
use weft_engine::{Integrity, LinkAddress, LinkToken, LocalEnd, NICS_MAX, NicAddresses, PortRange};
use weft_proto::agent::v1 as proto;

/// A message that no engine would have sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct EndError {
    /// The field, from `endpoint` on.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

fn wrong(field: &'static str, problem: impl Into<String>) -> EndError {
    let problem = problem.into();
    EndError { field, problem }
}

fn required<T>(value: Option<T>, field: &'static str) -> Result<T, EndError> {
    value.ok_or_else(|| wrong(field, "is missing"))
}

/// One end of a connection, for its peer, which sends under `secret`.
#[must_use]
pub fn to_proto(end: &LocalEnd, secret: &Secret) -> proto::ConnectionEnd {
    proto::ConnectionEnd {
        connection: end.id.0,
        secret: secret.0.to_vec(),
        link: link_to_proto(&end.address),
        settings: Some(proto::Settings {
            paths: end.settings.paths.into(),
            packet_payload: end.settings.packet_payload.into(),
            chunk_bytes: end.settings.chunk_bytes,
            window_chunks: end.settings.window_chunks.into(),
            wire_version: end.settings.wire_version.into(),
            integrity: end.settings.integrity.code(),
        }),
        settings_hash: end.settings.hash(),
        engine_incarnation: end.incarnation,
        reset_key: end.reset_key,
    }
}

/// The end that a peer describes, and the secret that it receives under.
///
/// # Errors
/// [`EndError`] names the field.
pub fn from_proto(end: Option<proto::ConnectionEnd>) -> Result<(LocalEnd, Secret), EndError> {
    let end = required(end, "endpoint")?;
    let secret = end.secret.as_slice().try_into();
    let secret: [u8; 32] = secret.map_err(|_| wrong("endpoint.secret", "must be 32 bytes"))?;
    let address = link(required(end.link, "endpoint.link")?)?;
    let settings = required(end.settings, "endpoint.settings")?;
    let settings = Settings {
        paths: small(settings.paths, "endpoint.settings.paths")?,
        packet_payload: small(settings.packet_payload, "endpoint.settings.packet_payload")?,
        chunk_bytes: settings.chunk_bytes,
        window_chunks: small(settings.window_chunks, "endpoint.settings.window_chunks")?,
        wire_version: small(settings.wire_version, "endpoint.settings.wire_version")?,
        integrity: Integrity::from_code(settings.integrity).ok_or_else(|| {
            let text = format!("{} is not a value of this version", settings.integrity);
            wrong("endpoint.settings.integrity", text)
        })?,
    };
    if end.settings_hash != settings.hash() {
        let problem = "is not that of these settings: run the same release of Weft on both nodes";
        return Err(wrong("endpoint.settings_hash", problem));
    }
    let end = LocalEnd {
        id: ConnectionId(end.connection),
        settings,
        address,
        incarnation: end.engine_incarnation,
        reset_key: end.reset_key,
        // Engines that tell of their ends so have one worker, and so their connections have one part.
        others: Vec::new(),
    };
    Ok((end, Secret(secret)))
}

/// `None` for shared memory: this API is for engines of different nodes, and a peer refuses an end without a link.
fn link_to_proto(address: &LinkAddress) -> Option<proto::connection_end::Link> {
    let octets = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let (nics, ports) = (address.nics(), address.ports());
    let (first, others) = (octets(&nics[0]), nics[1..].iter().map(octets).collect());
    match address {
        LinkAddress::Udp { .. } => Some(proto::connection_end::Link::Udp(proto::Udp {
            address: first,
            first_port: ports.first.into(),
            ports: ports.count.into(),
            other_addresses: others,
        })),
        LinkAddress::Tcp { token, .. } => Some(proto::connection_end::Link::Tcp(proto::Tcp {
            address: first,
            first_port: ports.first.into(),
            ports: ports.count.into(),
            token: token.0,
            other_addresses: others,
        })),
        LinkAddress::Shm { .. } => None,
    }
}

fn link(link: proto::connection_end::Link) -> Result<LinkAddress, EndError> {
    let (address, field) = match link {
        proto::connection_end::Link::Udp(udp) => {
            let nics = nics(&udp.address, &udp.other_addresses, "endpoint.udp.address")?;
            let ports = PortRange {
                first: small(udp.first_port, "endpoint.udp.first_port")?,
                count: small(udp.ports, "endpoint.udp.ports")?,
            };
            (LinkAddress::Udp { nics, ports }, "endpoint.udp")
        }
        proto::connection_end::Link::Tcp(tcp) => {
            let address = LinkAddress::Tcp {
                nics: nics(&tcp.address, &tcp.other_addresses, "endpoint.tcp.address")?,
                ports: PortRange {
                    first: small(tcp.first_port, "endpoint.tcp.first_port")?,
                    count: small(tcp.ports, "endpoint.tcp.ports")?,
                },
                token: LinkToken(tcp.token),
            };
            (address, "endpoint.tcp")
        }
    };
    address
        .check()
        .map_err(|error| wrong(field, error.to_string()))?;
    Ok(address)
}

fn nics(first: &[u8], others: &[Vec<u8>], field: &'static str) -> Result<NicAddresses, EndError> {
    let addresses = std::iter::once(first).chain(others.iter().map(Vec::as_slice));
    // More are refused whatever they are.
    let addresses = addresses.take(NICS_MAX + 1).map(|octets| ip(octets, field));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    NicAddresses::new(&addresses).map_err(|error| wrong(field, error.to_string()))
}

fn ip(octets: &[u8], field: &'static str) -> Result<IpAddr, EndError> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    let address = v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from));
    address.map_err(|_| {
        let text = format!("has {} bytes: must be 4 or 16", octets.len());
        wrong(field, text)
    })
}

fn small<T: TryFrom<u32>>(value: u32, field: &'static str) -> Result<T, EndError> {
    T::try_from(value).map_err(|_| wrong(field, format!("{value} is too large")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_read_as_it_was_written_and_a_wrong_field_is_named() {
        let settings = Settings {
            paths: 16,
            packet_payload: 1408,
            chunk_bytes: 62_776,
            window_chunks: 64,
            wire_version: 1,
            integrity: Integrity::from_code(0).unwrap(),
        };
        let end = LocalEnd {
            id: ConnectionId(7),
            settings,
            address: LinkAddress::Udp {
                nics: NicAddresses::new(&["192.0.2.1", "192.0.2.2"].map(|it| it.parse().unwrap()))
                    .unwrap(),
                ports: PortRange {
                    first: 4791,
                    count: 4,
                },
            },
            incarnation: 8,
            reset_key: 9,
            others: Vec::new(),
        };
        let message = to_proto(&end, &Secret([5; 32]));
        let (read, secret) = from_proto(Some(message.clone())).unwrap();
        assert_eq!(format!("{read:?}"), format!("{end:?}"));
        assert_eq!(secret.0, [5; 32]);
        let wrong = |change: fn(&mut proto::ConnectionEnd)| {
            let mut message = message.clone();
            change(&mut message);
            from_proto(Some(message)).unwrap_err().field
        };
        assert_eq!(wrong(|end| end.secret.truncate(31)), "endpoint.secret");
        assert_eq!(wrong(|end| end.link = None), "endpoint.link");
        assert_eq!(wrong(|end| end.settings = None), "endpoint.settings");
        assert_eq!(
            wrong(|end| end.settings_hash ^= 1),
            "endpoint.settings_hash"
        );
        assert_eq!(from_proto(None).unwrap_err().field, "endpoint");
    }

    #[test]
    fn an_address_of_either_ip_version_is_told_and_understood() {
        for (address, bytes) in [("192.0.2.1", 4), ("2001:db8::1", 16)] {
            let address: IpAddr = address.parse().unwrap();
            let address = LinkAddress::Udp {
                nics: address.into(),
                ports: PortRange {
                    first: 4791,
                    count: 16,
                },
            };
            let told = link_to_proto(&address);
            let Some(proto::connection_end::Link::Udp(udp)) = &told else {
                panic!("{told:?}");
            };
            assert_eq!(udp.address.len(), bytes);
            assert_eq!(link(told.unwrap()).unwrap(), address);
            let tcp = LinkAddress::Tcp {
                nics: address.nics(),
                ports: address.ports(),
                token: LinkToken(u64::MAX - 5),
            };
            assert_eq!(link(link_to_proto(&tcp).unwrap()).unwrap(), tcp);
            let shm = LinkAddress::Shm {
                address: address.ip(),
                ports: address.ports(),
                token: LinkToken(5),
            };
            assert_eq!(link_to_proto(&shm), None);
        }
    }

    #[test]
    fn an_address_that_is_none_is_refused_by_its_field() {
        let udp = |bytes, first_port, ports| {
            let address = vec![1; bytes];
            link(proto::connection_end::Link::Udp(proto::Udp {
                address,
                first_port,
                ports,
                other_addresses: Vec::new(),
            }))
        };
        for (wrong, field) in [
            (udp(5, 4791, 16), "endpoint.udp.address"),
            (udp(4, 70_000, 16), "endpoint.udp.first_port"),
            (udp(4, 4791, 0), "endpoint.udp"),
            (udp(16, 65_530, 16), "endpoint.udp"),
        ] {
            let text = wrong.unwrap_err().to_string();
            assert!(text.contains(field), "{text}");
        }
    }
}
