//! Address handles: the peers of datagrams.

use std::ffi::c_int;
use std::net::Ipv4Addr;

use weft_device::control::{Address, Answer, ErrorNumber, Request};
use weft_device::work_request::{DatagramAddress, Operation};

use crate::contexts::{done, not_made, own_context, set_errno};
use weft_verbs_abi::{AddressHandle, AhAttr, Context, ProtectionDomain, RoutingHeader, SendWr, Wc};

/// `enum ibv_wc_flags`: a global routing header lies before the bytes.
pub(crate) const WITH_ROUTING_HEADER: u32 = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(
    pd: *mut ProtectionDomain,
    attr: *mut AhAttr,
) -> *mut AddressHandle {
    // SAFETY: as the program says (invariant 1).
    let (context, domain, attr) = unsafe { ((*pd).context, (*pd).handle, &*attr) };
    let address = address(attr);
    let request = Request::CreateAddressHandle { domain, address };
    // SAFETY: the context is open while its domain is there.
    match unsafe { own_context(context) }.ask(&request) {
        Ok(Answer::Created(handle)) => {
            let made = Box::into_raw(Box::new(AddressHandle {
                context,
                pd,
                handle,
            }));
            // A work request names it by a number.
            made.expose_provenance();
            made
        }
        Ok(_) => not_made(ErrorNumber::EngineGone),
        Err(error) => not_made(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(handle: *mut AddressHandle) -> c_int {
    // SAFETY: it is one of ours, and used no more once it is gone (invariants 1 and 2).
    unsafe {
        let request = Request::DestroyAddressHandle((*handle).handle);
        let error = done((*handle).context, &request);
        if error == 0 {
            drop(Box::from_raw(handle));
        }
        error
    }
}

/// The sender of a datagram, as its routing header names it: the last 20 bytes are an IPv4 header, or all of it is of IPv6.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut Context,
    port: u8,
    wc: *const Wc,
    header: *const RoutingHeader,
    out: *mut AhAttr,
) -> c_int {
    // SAFETY: as the program says (invariant 1).
    let (own, wc) = unsafe { (own_context(context).client.gid(), &*wc) };
    let mut attr = AhAttr {
        dlid: wc.slid,
        sl: 0,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..AhAttr::default()
    };
    if wc.wc_flags & WITH_ROUTING_HEADER != 0 {
        // SAFETY: the flag says that it is there (invariant 1).
        let header = unsafe { header.read_unaligned() };
        let Some(addressed) = Addressed::of(&header).filter(|it| it.to == own) else {
            set_errno(libc::EPROTONOSUPPORT);
            return -1;
        };
        attr.is_global = 1;
        attr.dgid = words(&addressed.from);
        attr.hop_limit = u8::MAX;
        attr.traffic_class = addressed.traffic_class;
        attr.flow_label = addressed.flow_label;
    }
    // SAFETY: the program passes room for it (invariant 1).
    unsafe { out.write(attr) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ProtectionDomain,
    wc: *mut Wc,
    header: *mut RoutingHeader,
    port: u8,
) -> *mut AddressHandle {
    let mut attr = AhAttr::default();
    // SAFETY: as the program says (invariant 1).
    unsafe {
        match ibv_init_ah_from_wc((*pd).context, port, wc, header, &raw mut attr) {
            0 => ibv_create_ah(pd, &raw mut attr),
            _ => std::ptr::null_mut(),
        }
    }
}

/// What a routing header says.
struct Addressed {
    from: [u8; 16],
    to: [u8; 16],
    traffic_class: u8,
    flow_label: u32,
}

impl Addressed {
    fn of(header: &RoutingHeader) -> Option<Self> {
        let (ipv6, ipv4) = (header, header.last_chunk::<20>()?);
        // Version 4, five words, and the sum with the checksum is all ones (RFC 791, RFC 1071).
        let words = ipv4.chunks_exact(2);
        let sum: u32 = words
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum();
        if ipv4[0] == 0x45 && sum.is_multiple_of(0xffff) {
            let mapped = |at: usize| {
                let address: [u8; 4] = ipv4[at..at + 4].try_into().ok()?;
                Some(Ipv4Addr::from(address).to_ipv6_mapped().octets())
            };
            return Some(Self {
                from: mapped(12)?,
                to: mapped(16)?,
                traffic_class: ipv4[1],
                flow_label: 0,
            });
        }
        // Version 6, traffic class: 8 bits, flow label: 20 bits (RFC 8200).
        let first = u32::from_be_bytes(*ipv6.first_chunk()?);
        (first >> 28 == 6).then_some(Self {
            from: ipv6[8..24].try_into().ok()?,
            to: ipv6[24..40].try_into().ok()?,
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
        })
    }
}

fn gid(words: [u64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

pub(crate) fn address(attr: &AhAttr) -> Address {
    Address {
        gid: gid(attr.dgid),
        is_global: attr.is_global != 0,
        gid_index: attr.sgid_index,
        port: attr.port_num,
        traffic_class: attr.traffic_class,
        hop_limit: attr.hop_limit,
        service_level: attr.sl,
    }
}

/// A GID as two words of `union ibv_gid`.
pub(crate) fn words(gid: &[u8; 16]) -> [u64; 2] {
    let half = |at: usize| {
        let bytes = gid[at..at + 8].try_into();
        u64::from_ne_bytes(bytes.unwrap_or_default())
    };
    [half(0), half(8)]
}

/// A datagram to an address handle.
///
/// # Safety
/// The handle is one of ours (invariant 1).
pub(crate) unsafe fn datagram(to: *const AddressHandle, queue_pair: u32, q_key: u32) -> Operation {
    Operation::SendDatagram(DatagramAddress {
        // SAFETY: as the caller says.
        address_handle: unsafe { (*to).handle },
        queue_pair,
        q_key,
    })
}

/// What a work request of a queue pair for datagrams does.
///
/// # Safety
/// Its address handle is one of ours (invariant 1).
pub(crate) unsafe fn operation(wr: &SendWr) -> Option<(Operation, Option<u32>)> {
    const SEND: c_int = 2;
    const SEND_WITH_IMMEDIATE: c_int = 3;
    let immediate = match wr.opcode {
        SEND => None,
        SEND_WITH_IMMEDIATE => Some(wr.imm_data),
        _ => return None,
    };
    let to = std::ptr::with_exposed_provenance::<AddressHandle>(wr.wr[0] as usize);
    let (queue_pair, q_key) = (wr.wr[1] as u32, (wr.wr[1] >> 32) as u32);
    // SAFETY: as the caller says, where there is one.
    (!to.is_null()).then(|| (unsafe { datagram(to, queue_pair, q_key) }, immediate))
}
