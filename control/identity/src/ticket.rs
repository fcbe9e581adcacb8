//! Tickets: the operator's signed word that one agent may write one attempt's bytes to another, or fetch a
//! manifest from it.

use std::time::SystemTime;

use ring::signature::{ED25519, UnparsedPublicKey};
use weft_proto::Message as _;
use weft_proto::agent::v1::{AttemptRef, Location, Permission, SignedTicket, Ticket};

use crate::CLOCK_SKEW;

/// What is signed before the ticket's bytes, so that a signature can mean nothing else.
const CONTEXT: &[u8; 21] = b"weft.agent.v1.Ticket\n";

/// How far a node's clock may be ahead of the operator's: as far as certificates allow. What else a
/// ticket says, its job and attempt above all, is as strict as ever.
const CLOCK_SKEW_S: u64 = CLOCK_SKEW.as_secs();

/// Why a ticket does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TicketFault {
    /// Missing, unreadable, or not signed by the operator.
    #[error(
        "is not signed by this fabric's operator: check `operator.ticketKey` in the agent's configuration"
    )]
    Forged,
    /// Too old.
    #[error(
        "expired {seconds} s ago: the operator must issue a new one (do the nodes' clocks agree?)"
    )]
    Expired {
        /// Age since expiry.
        seconds: u64,
    },
    /// Of another fabric.
    #[error("is for fabric `{theirs}`: the operator must issue one for this fabric")]
    OtherFabric {
        /// As the ticket says.
        theirs: String,
    },
    /// For other nodes than the two that are talking.
    #[error(
        "is for node `{from}` calling node `{to}`, and node `{caller}` calls node `{here}`: use the ticket for this pair"
    )]
    OtherNode {
        /// Sender by the ticket.
        from: String,
        /// Receiver by the ticket.
        to: String,
        /// Who calls.
        caller: String,
        /// Who was called.
        here: String,
    },
    /// For something else than what was prepared here.
    #[error(
        "is for another {what} than was prepared here: the operator must issue one that agrees with Prepare"
    )]
    OtherTransfer {
        /// What differs.
        what: &'static str,
    },
}

impl TicketFault {
    /// Stable and machine-readable.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            TicketFault::Forged => "TicketForged",
            TicketFault::Expired { .. } => "TicketExpired",
            TicketFault::OtherFabric { .. } => "TicketOtherFabric",
            TicketFault::OtherNode { .. } => "TicketOtherNode",
            TicketFault::OtherTransfer { .. } => "TicketOtherTransfer",
        }
    }
}

/// Who is talking, and when.
#[derive(Debug)]
pub struct TicketContext<'a> {
    /// This fabric.
    pub fabric: &'a str,
    /// This node.
    pub here: &'a str,
    /// The node whose certificate the caller showed.
    pub caller: &'a str,
    /// The operator's key, Ed25519.
    pub key: &'a [u8; 32],
    /// The time.
    pub now: SystemTime,
    /// What is called for.
    pub permission: Permission,
}

/// What a signature of a ticket is of.
pub(crate) fn signed_bytes(ticket: &[u8]) -> Vec<u8> {
    [CONTEXT.as_slice(), ticket].concat()
}

/// A ticket that holds between these two nodes, now. What it is for is compared by the caller with
/// [`matches_destination`].
pub fn verify(signed: &SignedTicket, meeting: &TicketContext<'_>) -> Result<Ticket, TicketFault> {
    UnparsedPublicKey::new(&ED25519, meeting.key)
        .verify(&signed_bytes(&signed.ticket), &signed.signature)
        .map_err(|_| TicketFault::Forged)?;
    let ticket = Ticket::decode(signed.ticket.as_slice()).map_err(|_| TicketFault::Forged)?;
    if ticket.fabric != meeting.fabric {
        return Err(TicketFault::OtherFabric {
            theirs: ticket.fabric,
        });
    }
    if ticket.to_node != meeting.here || ticket.from_node != meeting.caller {
        return Err(TicketFault::OtherNode {
            from: ticket.from_node,
            to: ticket.to_node,
            caller: meeting.caller.to_owned(),
            here: meeting.here.to_owned(),
        });
    }
    let now = meeting
        .now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    if now >= ticket.expires_unix_s.saturating_add(CLOCK_SKEW_S) {
        return Err(TicketFault::Expired {
            seconds: now - ticket.expires_unix_s,
        });
    }
    if ticket.permission() != meeting.permission {
        return Err(TicketFault::OtherTransfer { what: "permission" });
    }
    Ok(ticket)
}

/// Whether the ticket is for what was prepared here.
pub fn matches_destination(
    ticket: &Ticket,
    job: &AttemptRef,
    destination: &Location,
) -> Result<(), TicketFault> {
    if ticket.attempt.as_ref() != Some(job) {
        return Err(TicketFault::OtherTransfer {
            what: "job or attempt",
        });
    }
    if ticket.destination.as_ref() != Some(destination) {
        return Err(TicketFault::OtherTransfer {
            what: "destination",
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ring::signature::{Ed25519KeyPair, KeyPair as _};

    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn ticket() -> Ticket {
        Ticket {
            fabric: "play".to_owned(),
            attempt: Some(AttemptRef {
                uid: "j".to_owned(),
                generation: 1,
                number: 1,
            }),
            from_node: "n0".to_owned(),
            to_node: "n1".to_owned(),
            source: Some(Location {
                root: "in".to_owned(),
                path: "m".to_owned(),
            }),
            destination: Some(Location {
                root: "out".to_owned(),
                path: "m".to_owned(),
            }),
            permission: Permission::Write.into(),
            expires_unix_s: NOW_S + 60,
            manifest_digest: Vec::new(),
        }
    }

    fn check(ticket: &Ticket, signer: u8, verifier: u8) -> Result<(), TicketFault> {
        let pair = |seed| Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
        let bytes = ticket.encode_to_vec();
        let signature = pair(signer).sign(&signed_bytes(&bytes));
        let signed = SignedTicket {
            ticket: bytes,
            signature: signature.as_ref().to_vec(),
        };
        let key: [u8; 32] = pair(verifier).public_key().as_ref().try_into().unwrap();
        let meeting = TicketContext {
            fabric: "play",
            here: "n1",
            caller: "n0",
            key: &key,
            now: SystemTime::UNIX_EPOCH + Duration::from_secs(NOW_S),
            permission: Permission::Write,
        };
        let ticket = verify(&signed, &meeting)?;
        let job = AttemptRef {
            uid: "j".to_owned(),
            generation: 1,
            number: 1,
        };
        let destination = Location {
            root: "out".to_owned(),
            path: "m".to_owned(),
        };
        matches_destination(&ticket, &job, &destination)
    }

    #[test]
    fn a_ticket_holds_for_its_pair_its_transfer_and_its_time_only() {
        type Change = fn(&mut Ticket);
        let table: [(&str, Change); 11] = [
            ("", |_| {}),
            ("", |t| t.expires_unix_s = NOW_S - 3600 + 1),
            ("TicketExpired", |t| t.expires_unix_s = NOW_S - 3600),
            ("TicketOtherFabric", |t| t.fabric = "other".to_owned()),
            ("TicketOtherNode", |t| t.to_node = "n2".to_owned()),
            ("TicketOtherNode", |t| t.from_node = "n2".to_owned()),
            ("TicketOtherTransfer", |t| t.permission = 0),
            // One for a manifest writes nothing.
            ("TicketOtherTransfer", |t| {
                t.permission = Permission::FetchManifest.into();
            }),
            ("TicketOtherTransfer", |t| {
                t.attempt.as_mut().unwrap().number = 2;
            }),
            ("TicketOtherTransfer", |t| {
                t.attempt.as_mut().unwrap().uid = "k".to_owned();
            }),
            ("TicketOtherTransfer", |t| {
                t.destination.as_mut().unwrap().path.push('x');
            }),
        ];
        for (index, (reason, change)) in table.into_iter().enumerate() {
            let mut ticket = ticket();
            change(&mut ticket);
            let found = check(&ticket, 7, 7).err().map_or("", |f| f.reason());
            assert_eq!(found, reason, "row {index}");
        }
    }

    #[test]
    fn a_ticket_signed_by_another_key_is_forged() {
        assert_eq!(check(&ticket(), 8, 7), Err(TicketFault::Forged));
    }
}
