//! Offers between the devices' types and the control API's messages.

use weft_core::units::ConnectionId;
use weft_device_server::{Offer, QueuePairName};
use weft_proto::agent::v1 as proto;

/// An offer, for the engine that it is to.
pub(crate) fn to_proto(offer: &Offer) -> proto::QueuePairOffer {
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
    }
}

/// An offer that has come; the text names the field that is wrong.
pub(crate) fn from_proto(offer: Option<proto::QueuePairOffer>) -> Result<Offer, String> {
    let offer = offer.ok_or("offer is missing")?;
    let (end, secret) =
        weft_connection_end::from_proto(offer.end).map_err(|error| error.to_string())?;
    Ok(Offer {
        from: name(offer.from, "offer.from")?,
        to: name(offer.to, "offer.to")?,
        end,
        secret,
        key_prefix: offer.key_prefix,
        answers: offer.answers.map(ConnectionId),
    })
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
