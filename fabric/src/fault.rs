//! What a switch does to packets, as an nftables ruleset.
//!
//! A switch without a fault has no ruleset at all, so that it costs nothing.

use std::fmt::Write;

/// The table that holds all of a namespace's rules.
const TABLE: &str = "weft";
/// `numgen` draws from 0 up to this: a share is met to one packet in 10⁹.
const DRAWS: f64 = 1e9;
/// Bytes of UDP payload at which a packet is altered, largest first: deep in a large packet's
/// payload, in the middle of a small one's, just behind a transport header, inside that header.
const ALTERED: [usize; 4] = [4096, 512, 64, 8];
const UDP_HEADER: usize = 8;

/// What a spine does to the packets that it forwards.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct SpineFault {
    /// All of them disappear. The links stay up.
    pub(crate) black_hole: bool,
    /// Bytes of an IP packet beyond which it disappears.
    pub(crate) longest: Option<u32>,
    /// Share that disappears.
    pub(crate) loss: f64,
    /// Share of the UDP packets of which one byte is inverted.
    pub(crate) corrupt: f64,
}

impl SpineFault {
    /// A script for `nft -f` that replaces whatever was in force, in one transaction.
    pub(crate) fn rules(self) -> String {
        let mut script = cleared("ip");
        let mut rules = Vec::new();
        if self.black_hole {
            rules.push("drop".to_owned());
        }
        if let Some(bytes) = self.longest {
            rules.push(format!("meta length > {bytes} drop"));
        }
        if self.loss > 0.0 {
            rules.push(format!("{} drop", one_in(self.loss)));
        }
        if self.corrupt > 0.0 {
            rules.push(format!(
                "meta l4proto udp {} goto alter",
                one_in(self.corrupt)
            ));
        }
        if rules.is_empty() {
            return script;
        }
        let mut alter = String::new();
        for (step, at) in ALTERED.iter().enumerate() {
            // Half of the packets that are long enough, and all at the last place.
            let half = if step + 1 < ALTERED.len() {
                "numgen random mod 2 == 0 "
            } else {
                ""
            };
            let (bit, longer) = ((UDP_HEADER + at) * 8, UDP_HEADER + at);
            let _ = writeln!(
                alter,
                "udp length > {longer} {half}@th,{bit},8 set @th,{bit},8 ^ 0xff accept"
            );
        }
        let _ = write!(
            script,
            "table ip {TABLE} {{\n\
             chain alter {{\n{alter}}}\n\
             chain forward {{\ntype filter hook forward priority 0\n{}\n}}\n}}\n",
            rules.join("\n")
        );
        script
    }
}

fn one_in(share: f64) -> String {
    // At most 10⁹, and never negative: `Spec` was validated.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let draws = (share * DRAWS).round() as u32;
    format!("numgen random mod {DRAWS} < {draws}")
}

/// Removes the table whether or not it is there.
pub(crate) fn cleared(family: &str) -> String {
    format!("add table {family} {TABLE}\ndelete table {family} {TABLE}\n")
}

/// On a leaf: everything from and to the nodes on these ports disappears.
pub(crate) fn cut_ports(ports: &[String]) -> String {
    let mut script = cleared("ip");
    if !ports.is_empty() {
        let set = ports.join(", ");
        let _ = write!(
            script,
            "table ip {TABLE} {{\nchain forward {{\ntype filter hook forward priority 0\n\
             iifname {{ {set} }} drop\noifname {{ {set} }} drop\n}}\n}}\n"
        );
    }
    script
}

/// Everything that arrives on these ports disappears before anyone sees it.
pub(crate) fn deaf_ports(ports: &[String]) -> String {
    let mut script = cleared("netdev");
    if !ports.is_empty() {
        let set = ports.join(", ");
        let _ = write!(
            script,
            "table netdev {TABLE} {{\nchain deaf {{\n\
             type filter hook ingress devices = {{ {set} }} priority 0\ndrop\n}}\n}}\n"
        );
    }
    script
}
