//! Offers between the devices' types and the control API's messages.

use weft_core::units::ConnectionId;
use weft_device_server::{Offer, QueuePairName, TenantOffer};
use weft_proto::agent::v1 as proto;

/// Of a pod's NAMESPACE/NAME in Kubernetes. It may become a part of this node's reports, which have a bound.
const POD_BYTES_MAX: usize = 63 + 1 + 253;

/// An offer, for the engine that it is to.
pub(crate) fn to_proto(offer: &TenantOffer) -> proto::QueuePairOffer {
    let TenantOffer { tenant, pod, offer } = offer;
    let name = |name: QueuePairName| proto::QueuePairName {
        gid: name.gid.to_vec(),
        number: name.number,
    };
    proto::QueuePairOffer {
        from: Some(name(offer.from)),
        to: Some(name(offer.to)),
        end: Some(weft_connection_end::to_proto(&offer.end, &offer.secret)),
        key_prefix: offer.key_prefix,
        answers: offer.answers.map(|id| id.0),
        tenant: tenant.to_string(),
        pod: pod.to_string(),
    }
}

/// An offer that has come; the text names the field that is wrong.
pub(crate) fn from_proto(offer: Option<proto::QueuePairOffer>) -> Result<TenantOffer, String> {
    let offer = offer.ok_or("offer is missing")?;
    let (end, secret) = weft_connection_end::from_proto(offer.end)
        .map_err(|error| error.to_string().replacen("endpoint", "offer.end", 1))?;
    if offer.pod.len() > POD_BYTES_MAX {
        return Err(format!(
            "offer.pod must be NAMESPACE/NAME, at most {POD_BYTES_MAX} bytes"
        ));
    }
    let (tenant, pod) = (offer.tenant.into(), offer.pod.into());
    let offer = Offer {
        from: name(offer.from, "offer.from")?,
        to: name(offer.to, "offer.to")?,
        end,
        secret,
        key_prefix: offer.key_prefix,
        answers: offer.answers.map(ConnectionId),
    };
    Ok(TenantOffer { tenant, pod, offer })
}

fn name(name: Option<proto::QueuePairName>, field: &str) -> Result<QueuePairName, String> {
    let name = name.ok_or_else(|| format!("{field} is missing"))?;
    let gid = gid(&name.gid).ok_or_else(|| format!("{field}.gid must be 16 bytes"))?;
    let number = name.number;
    Ok(QueuePairName { gid, number })
}

pub(crate) fn gid(bytes: &[u8]) -> Option<[u8; 16]> {
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use weft_core::connection::Settings;
    use weft_engine::{Integrity, LinkAddress, LocalEnd, PortRange, Secret};

    use super::*;

    /// Makes one field wrong.
    type Change = fn(&mut proto::QueuePairOffer);

    fn offer() -> TenantOffer {
        let name = |last: u8, number| QueuePairName {
            gid: [[0; 15].as_slice(), &[last]].concat().try_into().unwrap(),
            number,
        };
        let end = LocalEnd {
            id: ConnectionId(7),
            settings: Settings {
                paths: 16,
                packet_payload: 1408,
                chunk_bytes: 62_776,
                window_chunks: 64,
                wire_version: 1,
                integrity: Integrity::from_code(0).unwrap(),
            },
            address: LinkAddress::Udp {
                nics: Ipv4Addr::new(192, 0, 2, 1).into(),
                ports: PortRange {
                    first: 4791,
                    count: 4,
                },
            },
            incarnation: 11,
            reset_key: 12,
            others: Vec::new(),
        };
        let offer = Offer {
            from: name(1, 2),
            to: name(3, 4),
            end,
            secret: Secret([5; 32]),
            key_prefix: 6,
            answers: Some(ConnectionId(9)),
        };
        TenantOffer {
            tenant: "team-a".into(),
            pod: "team-a/trainer-0".into(),
            offer,
        }
    }

    #[test]
    fn an_offer_is_read_as_it_was_written() {
        for answers in [None, Some(ConnectionId(9))] {
            let mut written = offer();
            written.offer.answers = answers;
            let read = from_proto(Some(to_proto(&written))).unwrap();
            assert_eq!((read.tenant, read.pod), (written.tenant, written.pod));
            let (read, written) = (read.offer, written.offer);
            assert_eq!((read.from, read.to), (written.from, written.to));
            assert_eq!(read.secret.0, written.secret.0);
            assert_eq!(read.key_prefix, written.key_prefix);
            assert_eq!(read.answers, answers);
            // All of the end: it has no comparison.
            assert_eq!(format!("{:?}", read.end), format!("{:?}", written.end));
        }
    }

    #[test]
    fn a_wrong_field_of_an_offer_is_named() {
        let wrong = |change: Change| {
            let mut offer = to_proto(&offer());
            change(&mut offer);
            from_proto(Some(offer)).unwrap_err()
        };
        assert_eq!(from_proto(None).unwrap_err(), "offer is missing");
        let cases: [(Change, &str); 7] = [
            (|offer| offer.from = None, "offer.from is missing"),
            (|offer| offer.to = None, "offer.to is missing"),
            (
                |offer| offer.from.as_mut().unwrap().gid.truncate(15),
                "offer.from.gid must be 16 bytes",
            ),
            (
                |offer| offer.to.as_mut().unwrap().gid.push(0),
                "offer.to.gid must be 16 bytes",
            ),
            (|offer| offer.end = None, "offer.end is missing"),
            (
                |offer| offer.pod = "p".repeat(POD_BYTES_MAX + 1),
                "offer.pod must be NAMESPACE/NAME, at most 317 bytes",
            ),
            (
                |offer| offer.end.as_mut().unwrap().secret.truncate(31),
                "offer.end.secret must be 32 bytes",
            ),
        ];
        for (change, problem) in cases {
            assert_eq!(wrong(change), problem);
        }
    }
}
