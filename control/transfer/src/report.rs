//! What an agent says of its part, cut to what an agent may say: it is kept for each destination, and
//! ends in objects. How many there are in a second is bounded where they are read ([`super::pace`]).

use weft_proto::agent::v1::ProgressResponse;

/// Of a name or a reason: what Kubernetes takes for a name.
const NAME_BYTES_MAX: usize = 253;
/// Of a message for people.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Of a digest: BLAKE3 has 64 characters.
const DIGEST_BYTES_MAX: usize = 128;
/// Connections of one attempt: a plan gives a node a handful of children, and at most this many.
const PEERS_MAX: usize = 64;

/// Cuts what is too long.
pub(super) fn tidy(report: &mut ProgressResponse) {
    cut(&mut report.node, NAME_BYTES_MAX);
    cut(&mut report.reason, NAME_BYTES_MAX);
    cut(&mut report.message, MESSAGE_BYTES_MAX);
    cut(&mut report.digest, DIGEST_BYTES_MAX);
    cut(&mut report.link, NAME_BYTES_MAX);
    cut(&mut report.link_reason, MESSAGE_BYTES_MAX);
    // Whose it is, is known by the call.
    report.job = None;
    report.peers.truncate(PEERS_MAX);
    for peer in &mut report.peers {
        cut(&mut peer.node, NAME_BYTES_MAX);
        cut(&mut peer.reason, NAME_BYTES_MAX);
        cut(&mut peer.message, MESSAGE_BYTES_MAX);
    }
}

fn cut(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use weft_proto::agent::v1::PeerProgress;

    use super::*;

    #[test]
    fn what_is_too_long_is_cut() {
        let long = "é".repeat(5000);
        let mut report = ProgressResponse {
            node: long.clone(),
            reason: long.clone(),
            message: long.clone(),
            digest: long.clone(),
            link: long.clone(),
            link_reason: long.clone(),
            peers: vec![PeerProgress::default(); 1000],
            ..ProgressResponse::default()
        };
        tidy(&mut report);
        assert_eq!(report.node.len(), 252);
        assert_eq!(report.message.len(), MESSAGE_BYTES_MAX);
        assert_eq!(report.digest.len(), DIGEST_BYTES_MAX);
        assert_eq!(report.peers.len(), PEERS_MAX);
    }
}
