//! The network interfaces that carry a node's data: chosen by name, or by the node's address.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use weft_proto::operator::v1::{Finding, Nics};

use super::affinity::Affinity;
use crate::config::{MTU_BYTES_MAX, MTU_BYTES_MIN};

/// Names of interfaces that a message lists.
const LISTED_MAX: usize = 16;
/// An interface matches, and does not carry the data as others do.
pub(crate) const NIC_LEFT_OUT: &str = "NicLeftOut";
/// Interfaces that carry the data have different MTUs.
pub(crate) const MTU_DIFFERS: &str = "MtuDiffers";

/// An interface of the node that is up, as the kernel describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    name: String,
    loopback: bool,
    addresses: Vec<IpAddr>,
    /// Bytes of an IP packet, if sysfs says so.
    mtu: Option<u32>,
    /// 0 when the kernel does not say.
    mbps: u32,
}

/// What of it the data path needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nic {
    pub(crate) interface: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) mtu: u16,
    pub(crate) mbps: u32,
    /// As its finder has put it there.
    pub(crate) affinity: Affinity,
}

impl Nic {
    /// Whether an engine that was started on one can go on with the other: the speed may be another.
    fn is_same_link(&self, other: &Self) -> bool {
        let link = |nic: &Self| (nic.interface.clone(), nic.address, nic.mtu);
        link(self) == link(other)
    }
}

/// The NICs that carry the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The one that virtual devices have.
    pub(crate) first: Nic,
    pub(crate) others: Vec<Nic>,
    /// What is not as it should be with interfaces that match. The agent works all the same.
    pub(crate) findings: Vec<Finding>,
}

impl Chosen {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Nic> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Bytes of an IP packet that each of them carries.
    pub(crate) fn mtu(&self) -> u16 {
        let others = self.others.iter().map(|nic| nic.mtu);
        others.fold(self.first.mtu, u16::min)
    }

    /// Whether an engine that was started on these can go on where there are those now: it does without NICs that are down.
    pub(crate) fn has_all_of(&self, now: &Self) -> bool {
        now.all()
            .all(|nic| self.all().any(|one| one.is_same_link(nic)))
    }

    /// Takes over what may change of a NIC while an engine has it.
    pub(crate) fn update(&mut self, now: &Self) {
        for one in std::iter::once(&mut self.first).chain(&mut self.others) {
            if let Some(nic) = now.all().find(|nic| nic.is_same_link(one)) {
                one.clone_from(nic);
            }
        }
    }

    fn new(first: Nic, others: Vec<Nic>, findings: Vec<Finding>) -> Self {
        let mut chosen = Self {
            first,
            others,
            findings,
        };
        let mtu = chosen.mtu();
        let smallest = chosen.all().find(|nic| nic.mtu == mtu);
        let larger = chosen.all().find(|nic| nic.mtu != mtu);
        if let Some((smallest, larger)) = smallest.zip(larger) {
            let problem = format!(
                "{} has MTU {mtu} and {} has {}: packets of {mtu} bytes go over all of them; give both the same MTU",
                smallest.interface, larger.interface, larger.mtu
            );
            chosen.findings.push(finding(MTU_DIFFERS, problem));
        }
        chosen
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        for nic in &self.others {
            write!(f, ", {nic}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            interface,
            address,
            mtu,
            ..
        } = self;
        write!(f, "{interface} ({address}, MTU {mtu})")
    }
}

/// The interfaces that are up, in the kernel's order.
pub(crate) fn list() -> io::Result<Vec<Interface>> {
    let mut found: BTreeMap<u32, Interface> = BTreeMap::new();
    for entry in getifaddrs()? {
        // An address may have a label: eth0:1 is on eth0.
        let name = entry.interface_name.split(':').next().unwrap_or_default();
        if !entry.flags.contains(InterfaceFlags::IFF_UP) {
            continue;
        }
        // It may be gone by now.
        let Ok(index) = if_nametoindex(name) else {
            continue;
        };
        let interface = found.entry(index).or_insert_with(|| {
            let read = |file: &str| attribute(Path::new("/sys/class/net"), name, index, file);
            Interface {
                name: name.to_owned(),
                loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                addresses: Vec::new(),
                mtu: read("mtu"),
                mbps: read("speed").unwrap_or_default(),
            }
        });
        let address = entry.address.and_then(|address| {
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        });
        interface.addresses.extend(address);
    }
    Ok(found.into_values().collect())
}

/// What sysfs says of an interface; nothing where it is that of another network namespace.
fn attribute(sysfs: &Path, name: &str, index: u32, file: &str) -> Option<u32> {
    let number = |file: &str| {
        let text = std::fs::read_to_string(sysfs.join(name).join(file)).ok()?;
        text.trim().parse::<u32>().ok()
    };
    (number("ifindex")? == index).then(|| number(file))?
}

/// The interfaces for the data: all that `nics.include` names, in the order of its patterns and of the names that match each,
/// or the one with the node's address. The order is that of rails: it has to be the same at all nodes. There are
/// `most` at most.
pub(crate) fn choose(
    all: &[Interface],
    nics: &Nics,
    node: IpAddr,
    most: usize,
) -> Result<Chosen, Finding> {
    let excluded = |one: &Interface| nics.exclude.iter().any(|p| matches(p, &one.name));
    if nics.include.is_empty() {
        let holder = all.iter().find(|one| one.holds(node));
        let holder = holder.ok_or_else(|| {
            finding(
                "NodeAddressMissing",
                format!(
                    "no interface that is up has the node's address {node} (there are {}): correct --address, or name the interface in spec.nics.include of the RdmaFabric",
                    names(all)
                ),
            )
        })?;
        if excluded(holder) {
            return Err(finding(
                "InterfaceExcluded",
                format!(
                    "{} has the node's address {node}, and spec.nics.exclude of the RdmaFabric names it: name another one in spec.nics.include",
                    holder.name
                ),
            ));
        }
        return Ok(Chosen::new(holder.nic(node)?, Vec::new(), Vec::new()));
    }
    let mut matching: Vec<&Interface> = Vec::new();
    for pattern in &nics.include {
        let is_new = |one: &&Interface| matching.iter().all(|other| other.name != one.name);
        // Interfaces of pods have names like those of NICs, and no address.
        let is_meant = |one: &&Interface| !pattern.contains('*') || one.has_ipv4();
        let fits = |one: &&Interface| matches(pattern, &one.name) && !excluded(one);
        let mut found: Vec<_> = all.iter().filter(is_new).filter(fits).collect();
        if found.iter().any(|one| one.has_ipv4()) {
            found.retain(is_meant);
        }
        found.sort_by_key(|one| natural(&one.name));
        matching.extend(found);
    }
    let (mut usable, mut problems) = (Vec::<Nic>::new(), Vec::new());
    for one in matching {
        match one.nic(node) {
            Ok(nic) if usable.iter().any(|other| other.address == nic.address) => {
                let problem = format!(
                    "{} has the address {}, as another interface that carries the data: name it in spec.nics.exclude of the RdmaFabric",
                    one.name, nic.address
                );
                problems.push(finding("AddressTwice", problem));
            }
            Ok(_) if usable.len() == most => {
                let problem = format!(
                    "{} matches spec.nics.include of the RdmaFabric, and {most} others before it carry the data already, 16 at most and one for each of spec.ports: name it in spec.nics.exclude",
                    one.name
                );
                problems.push(finding("TooManyInterfaces", problem));
            }
            Ok(nic) => usable.push(nic),
            Err(problem) => problems.push(problem),
        }
    }
    let mut usable = usable.into_iter();
    let Some(first) = usable.next() else {
        return Err(problems.into_iter().next().unwrap_or_else(|| {
            finding(
                "InterfaceMissing",
                format!(
                    "no interface that is up matches spec.nics.include of the RdmaFabric ({}) and not spec.nics.exclude ({}); there are {}: correct the names, or bring the interface up",
                    nics.include.join(", "),
                    nics.exclude.join(", "),
                    names(all)
                ),
            )
        }));
    };
    let left_out = problems.into_iter().map(|problem| Finding {
        reason: NIC_LEFT_OUT.to_owned(),
        ..problem
    });
    Ok(Chosen::new(first, usable.collect(), left_out.collect()))
}

impl Interface {
    /// Whether packets to this address of the node's are for it. A loopback interface has all of
    /// 127.0.0.0/8.
    fn holds(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || (self.loopback && address.is_loopback())
    }

    fn has_ipv4(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv4)
    }

    fn nic(&self, node: IpAddr) -> Result<Nic, Finding> {
        let name = &self.name;
        let address = match node {
            IpAddr::V4(node) if self.holds(node.into()) => Some(node),
            _ => self.addresses.iter().find_map(|address| match address {
                IpAddr::V4(address) => Some(*address),
                IpAddr::V6(_) => None,
            }),
        };
        let address = address.ok_or_else(|| {
            finding(
                "NoAddress",
                format!("{name} has no IPv4 address, which the data path needs: give it one, or name another interface in spec.nics.include of the RdmaFabric"),
            )
        })?;
        let mtu = self.mtu.ok_or_else(|| {
            finding(
                "MtuUnknown",
                format!("/sys/class/net says nothing of {name}: the agent needs a sysfs of the node's network namespace (hostNetwork)"),
            )
        })?;
        // Loopback's is one more than a length field can say.
        let mtu = u16::try_from(mtu).unwrap_or(MTU_BYTES_MAX);
        if mtu < MTU_BYTES_MIN {
            return Err(finding(
                "MtuTooSmall",
                format!("{name} has MTU {mtu}: set it to {MTU_BYTES_MIN} or more"),
            ));
        }
        Ok(Nic {
            interface: name.clone(),
            address,
            mtu,
            mbps: self.mbps,
            affinity: Affinity::default(),
        })
    }
}

/// What names are ordered by: rail2 comes before rail10.
fn natural(name: &str) -> (String, u64, String) {
    let digits = name.trim_start_matches(|it: char| !it.is_ascii_digit());
    let number: String = digits.chars().take_while(char::is_ascii_digit).collect();
    let before = &name[..name.len() - digits.len()];
    let behind = &digits[number.len()..];
    let number = number.parse().unwrap_or(u64::MAX);
    (before.to_owned(), number, behind.to_owned())
}

/// Something that the operator is told about this node.
pub(crate) fn finding(reason: &str, message: impl Into<String>) -> Finding {
    Finding {
        reason: reason.to_owned(),
        message: message.into(),
    }
}

fn names(all: &[Interface]) -> String {
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    match names.get(..LISTED_MAX) {
        Some(first) if names.len() > LISTED_MAX => {
            format!("{} and {} more", first.join(", "), names.len() - LISTED_MAX)
        }
        _ => names.join(", "),
    }
}

/// Whether a name is one that a pattern stands for; `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(first) else {
        return false;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    // The leftmost place for each part leaves the most for those that follow.
    for part in middle.split('*') {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use weft_engine::NICS_MAX;

    use super::*;

    fn interface(name: &str, addresses: &[&str], mtu: u32) -> Interface {
        Interface {
            name: name.to_owned(),
            loopback: name == "lo",
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            mtu: (mtu > 0).then_some(mtu),
            mbps: 100_000,
        }
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name, expected) in [
            ("eth0", "eth0", true),
            ("eth0", "eth01", false),
            ("eth*", "eth", true),
            ("eth*", "eth12", true),
            ("*", "", true),
            ("e*0", "eth0", true),
            ("e*0", "eth1", false),
            ("e*h*0", "eth10", true),
            ("e*h*h*0", "eth10", false),
            ("*0*0", "a00", true),
            ("*0*0", "a0", false),
            ("a*a", "a", false),
            ("**", "x", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    fn all() -> Vec<Interface> {
        vec![
            interface("lo", &["127.0.0.1", "::1"], 65_536),
            interface("eth0", &["fe80::1", "10.0.0.5"], 1500),
            interface("rail0", &["192.168.0.5"], 9000),
            interface("rail1", &["192.168.1.5", "192.168.1.6"], 9000),
            interface("six", &["2001:db8::5"], 9000),
            interface("old", &["172.16.0.5"], 576),
            interface("far", &["172.17.0.5"], 0),
        ]
    }

    fn chosen(
        all: &[Interface],
        include: &[&str],
        exclude: &[&str],
        node: &str,
    ) -> Result<Chosen, Finding> {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        let nics = Nics {
            include: owned(include),
            exclude: owned(exclude),
        };
        choose(all, &nics, node.parse().unwrap(), NICS_MAX)
    }

    #[test]
    fn interfaces_come_in_the_order_of_their_names_and_those_of_pods_are_not_meant() {
        let all = [
            interface("rail10", &["192.168.10.5"], 9000),
            interface("rail9", &["192.168.9.5"], 9000),
            interface("railway", &["fe80::9"], 1500),
            interface("rail1", &["192.168.1.5"], 9000),
            interface("rail2", &["192.168.1.5"], 9000),
        ];
        let found = chosen(&all, &["rail*"], &[], "10.0.0.5").unwrap();
        let names: Vec<_> = found.all().map(|nic| nic.interface.as_str()).collect();
        assert_eq!(names, ["rail1", "rail9", "rail10"]);
        let problems: Vec<_> = found.findings.iter().map(|it| &it.message).collect();
        assert!(
            problems.len() == 1 && problems[0].contains("rail2 has the address 192.168.1.5"),
            "{problems:?}"
        );
    }

    #[test]
    fn the_interfaces_are_all_that_are_named_or_the_one_with_the_nodes_address() {
        type Found<'a> = Result<&'a [(&'a str, &'a str, u16)], &'a str>;
        let eth0 = ("eth0", "10.0.0.5", 1500);
        let rail0 = ("rail0", "192.168.0.5", 9000);
        let rail1 = ("rail1", "192.168.1.5", 9000);
        let table: [(&[&str], &[&str], &str, Found<'_>); 15] = [
            (&[], &[], "10.0.0.5", Ok(&[eth0])),
            (&[], &[], "fe80::1", Ok(&[eth0])),
            (&[], &[], "127.9.0.1", Ok(&[("lo", "127.9.0.1", 65_535)])),
            (&[], &["rail*"], "10.0.0.5", Ok(&[eth0])),
            (&[], &["eth0"], "10.0.0.5", Err("InterfaceExcluded")),
            (&[], &[], "10.0.0.6", Err("NodeAddressMissing")),
            (&["rail*"], &[], "10.0.0.5", Ok(&[rail0, rail1])),
            // In the order of the patterns, each once.
            (&["rail1", "rail*"], &[], "10.0.0.5", Ok(&[rail1, rail0])),
            // The node's own address, where the interface has several.
            (
                &["rail1"],
                &[],
                "192.168.1.6",
                Ok(&[("rail1", "192.168.1.6", 9000)]),
            ),
            (&["rail*"], &["rail0"], "10.0.0.5", Ok(&[rail1])),
            (&["ib*"], &[], "10.0.0.5", Err("InterfaceMissing")),
            (&["rail*"], &["*"], "10.0.0.5", Err("InterfaceMissing")),
            (&["six"], &[], "10.0.0.5", Err("NoAddress")),
            (&["old"], &[], "10.0.0.5", Err("MtuTooSmall")),
            (&["far"], &[], "10.0.0.5", Err("MtuUnknown")),
        ];
        for (include, exclude, node, expected) in table {
            let found = chosen(&all(), include, exclude, node);
            let found = found.as_ref().map_err(|finding| finding.reason.as_str());
            let found = found.map(|chosen| {
                assert_eq!(chosen.findings, [], "{include:?}");
                let nics = chosen.all();
                nics.map(|nic| (nic.interface.clone(), nic.address.to_string(), nic.mtu))
                    .collect::<Vec<_>>()
            });
            let expected = expected.map(|nics| {
                let nics = nics.iter();
                nics.map(|(name, address, mtu)| ((*name).to_owned(), (*address).to_owned(), *mtu))
                    .collect()
            });
            assert_eq!(found, expected, "{include:?} {exclude:?} {node}");
        }
    }

    #[test]
    fn an_interface_that_cannot_carry_data_is_left_out_and_named() {
        let found = chosen(&all(), &["six", "rail0", "old"], &[], "10.0.0.5").unwrap();
        assert_eq!(found.all().count(), 1);
        let told = found.findings.iter().map(|it| (&*it.reason, &*it.message));
        let told: Vec<_> = told.collect();
        assert!(told.iter().all(|(reason, _)| *reason == NIC_LEFT_OUT));
        assert!(told[0].1.starts_with("six has no IPv4 address"), "{told:?}");
        assert!(told[1].1.starts_with("old has MTU 576"), "{told:?}");
        // As many as an engine has.
        let many: Vec<_> = (0..18)
            .map(|i| interface(&format!("rail{i}"), &[&format!("10.1.{i}.1")], 9000))
            .collect();
        let found = chosen(&many, &["rail*"], &[], "10.0.0.5").unwrap();
        assert_eq!(found.all().count(), NICS_MAX);
        let told = found.findings.iter().map(|it| it.message.as_str());
        assert!(told.clone().all(|it| it.contains("spec.nics.exclude")));
        assert_eq!(told.count(), 2);
    }

    #[test]
    fn the_smallest_mtu_is_used_and_the_interfaces_that_differ_are_named() {
        let found = chosen(&all(), &["eth0", "rail*"], &[], "10.0.0.5").unwrap();
        assert_eq!(found.mtu(), 1500);
        let [finding] = &found.findings[..] else {
            panic!("{:?}", found.findings);
        };
        assert_eq!(finding.reason, MTU_DIFFERS);
        assert!(
            finding
                .message
                .starts_with("eth0 has MTU 1500 and rail0 has 9000"),
            "{finding:?}"
        );
    }

    #[test]
    fn an_engine_goes_on_while_nics_are_down_and_not_with_a_new_or_changed_one() {
        let of = |all: &[Interface]| chosen(all, &["rail*"], &[], "10.0.0.5").unwrap();
        let both = of(&all());
        let mut one = all();
        one.retain(|it| it.name != "rail0");
        assert!(both.has_all_of(&both) && both.has_all_of(&of(&one)));
        assert!(!of(&one).has_all_of(&both), "rail0 is new");
        let mut other = all();
        other[3].mtu = Some(1500);
        assert!(!both.has_all_of(&of(&other)), "another MTU");
        // A speed is no reason.
        let mut faster = all();
        faster[3].mbps = 400_000;
        let (mut now, faster) = (both.clone(), of(&faster));
        assert!(both.has_all_of(&faster));
        now.update(&of(&one));
        assert_eq!(now, both);
        now.update(&faster);
        assert_eq!(now.others[0].mbps, 400_000);
    }

    #[test]
    fn the_kernels_loopback_is_found_with_its_address_and_mtu() {
        let all = list().unwrap();
        let lo = all.iter().find(|one| one.loopback).unwrap();
        assert!(lo.holds("127.0.0.1".parse().unwrap()), "{lo:?}");
        let nic = lo.nic("127.0.0.2".parse().unwrap()).unwrap();
        assert_eq!(nic.address, Ipv4Addr::new(127, 0, 0, 2));
    }

    #[test]
    fn a_sysfs_of_another_network_namespace_is_not_believed() {
        let sysfs = tempfile::tempdir().unwrap();
        let eth = sysfs.path().join("eth0");
        std::fs::create_dir(&eth).unwrap();
        std::fs::write(eth.join("ifindex"), "7\n").unwrap();
        std::fs::write(eth.join("mtu"), "9000\n").unwrap();
        std::fs::write(eth.join("speed"), "-1\n").unwrap();
        let read = |index, file| attribute(sysfs.path(), "eth0", index, file);
        assert_eq!(read(7, "mtu"), Some(9000));
        assert_eq!(read(7, "speed"), None);
        assert_eq!(read(8, "mtu"), None);
    }
}
