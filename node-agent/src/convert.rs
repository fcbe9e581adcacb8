//! Between the control API's messages and the types that the agent works with. Everything that
//! comes from outside is checked here, once; the error names the field.

use std::net::IpAddr;

use weft_core::connection::Settings;
use weft_core::units::ConnectionId;
use weft_core::wire::Secret;
use weft_engine::{Integrity, LinkAddress, LocalEnd, PortRange, RemoteEnd};
use weft_proto::agent::v1 as proto;

use crate::fault::Fault;
use crate::files::copies::CopyJob;
use crate::files::{Algorithm, Digest, JobUid, Overwrite};

/// A field that must be there.
pub(crate) fn required<T>(field: Option<T>, name: &str) -> Result<T, Fault> {
    field.ok_or_else(|| Fault::bad(name, "is missing"))
}

/// The reference of an attempt, checked.
pub(crate) fn attempt_ref(attempt: Option<proto::AttemptRef>) -> Result<proto::AttemptRef, Fault> {
    let attempt = required(attempt, "attempt")?;
    uid(&attempt)?;
    if attempt.number == 0 {
        return Err(Fault::bad("attempt.number", "must be 1 or more"));
    }
    Ok(attempt)
}

/// A job's UID as file names carry it.
pub(crate) fn uid(attempt: &proto::AttemptRef) -> Result<JobUid, Fault> {
    attempt
        .uid
        .parse()
        .map_err(|error| Fault::bad("attempt.uid", format!("{error}")))
}

/// The job that a copy is recorded for.
pub(crate) fn copy_job(uid: &str, name: proto::JobName) -> Result<CopyJob, Fault> {
    let proto::JobName {
        namespace,
        name,
        namespace_uid,
    } = name;
    let allowed = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    for (part, text) in [("namespace", &namespace), ("name", &name)] {
        if !(1..=253).contains(&text.len()) || !text.bytes().all(allowed) {
            let problem = format!(
                "{part} {:?} is not 1 to 253 lower-case letters, digits, '-' and '.'",
                text.chars().take(253).collect::<String>()
            );
            return Err(Fault::bad("job_name", problem));
        }
    }
    Ok(CopyJob {
        uid: uid.to_owned(),
        namespace,
        name,
        namespace_uid,
    })
}

/// A hash algorithm.
pub(crate) fn algorithm(value: proto::Algorithm) -> Result<Algorithm, Fault> {
    match value {
        proto::Algorithm::Blake3 => Ok(Algorithm::Blake3),
        proto::Algorithm::Xxh3 => Ok(Algorithm::Xxh3),
        proto::Algorithm::Unspecified => Err(Fault::bad(
            "verification.algorithm",
            "must be BLAKE3 or XXH3",
        )),
    }
}

/// A hash algorithm, for the API.
pub(crate) fn algorithm_to_proto(value: Algorithm) -> proto::Algorithm {
    match value {
        Algorithm::Blake3 => proto::Algorithm::Blake3,
        Algorithm::Xxh3 => proto::Algorithm::Xxh3,
    }
}

/// How to verify, and the digest that is expected, if one is.
pub(crate) fn verification(
    value: Option<proto::Verification>,
) -> Result<(Algorithm, Option<Digest>), Fault> {
    let value = required(value, "verification")?;
    let algorithm = algorithm(value.algorithm())?;
    if value.expect.is_empty() {
        return Ok((algorithm, None));
    }
    let digest: Digest = value
        .expect
        .parse()
        .map_err(|error| Fault::bad("verification.expect", format!("{error}")))?;
    if digest.algorithm() != algorithm {
        let problem = format!("is not a digest of {algorithm}, which verification.algorithm says");
        return Err(Fault::bad("verification.expect", problem));
    }
    Ok((algorithm, Some(digest)))
}

/// What to do with files that are there.
pub(crate) fn overwrite(value: proto::Overwrite) -> Result<Overwrite, Fault> {
    match value {
        proto::Overwrite::IfDifferent => Ok(Overwrite::IfDifferent),
        proto::Overwrite::Never => Ok(Overwrite::Never),
        proto::Overwrite::Always => Ok(Overwrite::Always),
        proto::Overwrite::Unspecified => Err(Fault::bad(
            "overwrite",
            "must be IF_DIFFERENT, NEVER or ALWAYS",
        )),
    }
}

/// One end of a connection, for its peer.
pub(crate) fn connection_end_to_proto(end: &LocalEnd, secret: &Secret) -> proto::ConnectionEnd {
    proto::ConnectionEnd {
        connection: end.id.0,
        secret: secret.0.to_vec(),
        link: Some(link_to_proto(&end.address)),
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

/// The other end of a connection, of the node that has authenticated itself as `owner`, as it describes
/// itself; its settings must be ours.
pub(crate) fn connection_end(
    owner: &str,
    end: Option<proto::ConnectionEnd>,
    ours: &Settings,
) -> Result<RemoteEnd, Fault> {
    let end = required(end, "endpoint")?;
    let secret: [u8; 32] = end
        .secret
        .as_slice()
        .try_into()
        .map_err(|_| Fault::bad("endpoint.secret", "must be 32 bytes"))?;
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
            Fault::bad("endpoint.settings.integrity", text)
        })?,
    };
    if let Some(difference) = ours.difference(&settings) {
        return Err(Fault::SettingsDiffer { difference });
    }
    if end.settings_hash != ours.hash() {
        let difference = "their hash, though each setting is the same".to_owned();
        return Err(Fault::SettingsDiffer { difference });
    }
    Ok(RemoteEnd {
        owner: owner.into(),
        id: ConnectionId(end.connection),
        address,
        send_secret: Secret(secret),
        settings,
        incarnation: end.engine_incarnation,
        reset_key: end.reset_key,
        // The agent's engine has one worker, and so its connections have one part.
        others: Vec::new(),
    })
}

fn link_to_proto(address: &LinkAddress) -> proto::connection_end::Link {
    let LinkAddress::Udp { address, ports } = address;
    let address = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    proto::connection_end::Link::Udp(proto::Udp {
        address,
        first_port: ports.first.into(),
        ports: ports.count.into(),
    })
}

fn link(link: proto::connection_end::Link) -> Result<LinkAddress, Fault> {
    let proto::connection_end::Link::Udp(udp) = link;
    let octets = udp.address.as_slice();
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    let address = v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from));
    let address = address.map_err(|_| {
        let text = format!("has {} bytes: must be 4 or 16", octets.len());
        Fault::bad("endpoint.udp.address", text)
    })?;
    let ports = PortRange {
        first: small(udp.first_port, "endpoint.udp.first_port")?,
        count: small(udp.ports, "endpoint.udp.ports")?,
    };
    let address = LinkAddress::Udp { address, ports };
    address
        .check()
        .map_err(|error| Fault::bad("endpoint.udp", error.to_string()))?;
    Ok(address)
}

fn small<T: TryFrom<u32>>(value: u32, field: &str) -> Result<T, Fault> {
    T::try_from(value).map_err(|_| Fault::bad(field, format!("{value} is too large")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_either_ip_version_is_told_and_understood() {
        for (address, bytes) in [("192.0.2.1", 4), ("2001:db8::1", 16)] {
            let address = LinkAddress::Udp {
                address: address.parse().unwrap(),
                ports: PortRange {
                    first: 4791,
                    count: 16,
                },
            };
            let proto::connection_end::Link::Udp(udp) = link_to_proto(&address);
            assert_eq!(udp.address.len(), bytes);
            assert_eq!(
                link(proto::connection_end::Link::Udp(udp)).unwrap(),
                address
            );
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
