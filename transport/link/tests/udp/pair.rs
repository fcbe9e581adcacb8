//! What the link's tests share: links, chunks, and what arrives.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

use weft_core::drops::DropReason;
use weft_core::memory::Place;
use weft_core::received::{Offer, Received};
use weft_core::units::{PathId, Source, Time};
use weft_core::wire::Envelope;
use weft_link::{Handler, Link, PortRange, Sent, SocketBuffers, UdpConfig, UdpLink};

/// The loopback addresses: every test of a packet's way runs over both.
pub(crate) const HERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// The path of links with one port.
pub(crate) const PATH: PathId = PathId(0);

pub(crate) fn config(address: IpAddr, first: u16, count: u16) -> UdpConfig {
    UdpConfig {
        nics: address.into(),
        ports: PortRange { first, count },
        datagram_bytes: 1472,
        dscp: 0,
        buffers: SocketBuffers::default(),
        local_switch: None,
    }
}

pub(crate) fn bind(address: IpAddr, first: u16, count: u16) -> UdpLink {
    UdpLink::open(config(address, first, count)).expect("the range is free")
}

pub(crate) fn source(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 % 251) as u8).collect()
}

/// Sends `source` as a chunk of packets of `packet` bytes.
pub(crate) fn send(
    from: &mut UdpLink,
    to: &UdpLink,
    path: PathId,
    source: &[u8],
    packet: usize,
) -> Sent {
    let peer = from.peer(&to.address()).expect("one IP version");
    send_at(from, Time::ZERO, &peer, path, source, packet)
}

pub(crate) fn send_at<L: Link>(
    from: &mut L,
    now: Time,
    peer: &L::Peer,
    path: PathId,
    source: &[u8],
    packet: usize,
) -> Sent {
    let packets: Vec<&[u8]> = source.chunks(packet).collect();
    from.send_chunk(now, peer, path, packets.len() as u32, |i, room| {
        let packet = packets[i as usize];
        room[..packet.len()].copy_from_slice(packet);
        packet.len()
    })
}

/// The packets that have arrived with where they came from, and the mark of each run.
#[derive(Default)]
pub(crate) struct Arrivals(pub(crate) Vec<(Source, Vec<u8>)>, pub(crate) Vec<bool>);

impl Arrivals {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0
            .iter()
            .flat_map(|(_, packet)| packet.clone())
            .collect()
    }

    pub(crate) fn sources(&self) -> BTreeSet<Source> {
        self.0.iter().map(|&(source, _)| source).collect()
    }
}

impl Handler for Arrivals {
    fn offer(&mut self, _: Source, envelope: &Envelope, _: u32) -> Offer {
        panic!("the link does not place: {envelope:?}");
    }

    fn receive(
        &mut self,
        place: &Place,
        _: Option<u32>,
        _: &[u8],
        _: BorrowedFd<'_>,
        _: &mut [u8],
    ) -> io::Result<Result<usize, DropReason>> {
        panic!("the link does not place: {place:?}");
    }

    fn copy(&mut self, place: &Place, _: Option<u32>, _: &[AtomicU8]) -> Result<(), DropReason> {
        panic!("the link does not place: {place:?}");
    }

    fn handle(&mut self, received: Received<'_>) {
        let Received::Packets {
            from,
            ce,
            bytes,
            segment,
        } = received
        else {
            panic!("the link does not place");
        };
        let packets = bytes.chunks(segment);
        self.0.extend(packets.map(|packet| (from, packet.to_vec())));
        self.1.push(ce);
    }
}

/// Receives until `wanted` bytes are there.
pub(crate) fn receive(link: &mut impl Link, wanted: usize) -> Arrivals {
    let mut poller = weft_link::Poller::new(link).expect("descriptors are left");
    let waiter = poller.waiter().expect("descriptors are left");
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut arrivals = Arrivals::default();
    while arrivals
        .0
        .iter()
        .map(|(_, packet)| packet.len())
        .sum::<usize>()
        < wanted
    {
        assert!(
            Instant::now() < deadline,
            "{} of {wanted} bytes arrived",
            arrivals.bytes().len()
        );
        if !link.is_readable() {
            if link.prepare_to_sleep() {
                // A wake-up that is lost must show.
                waiter
                    .wait(Some(Duration::from_secs(10)))
                    .expect("the poller waits");
            }
            poller.poll(link).expect("the poller answers");
        }
        link.receive(&mut arrivals);
    }
    arrivals
}
