//! The filter on an interface: an eBPF program that gives Weft's datagrams to AF_XDP sockets and passes all else to the kernel.
//!
//! Assembled here and loaded by `bpf(2)`. Who has the [`Program`] has it on the interface; with the last descriptor the kernel
//! takes it off.
#![allow(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::packet::{
    ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, FRAGMENT, IPV4_WITHOUT_OPTIONS, Mac, UDP,
    headers_bytes,
};
use crate::ports::PortRange;

// Commands and constants of `linux/bpf.h` and `linux/if_link.h`.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_PASS: i32 = 2;
const REDIRECT_MAP: i32 = 51;
const PSEUDO_MAP_FD: u8 = 1;

/// The call that puts a program on an interface.
pub(super) const ATTACH: &str = "bpf LINK_CREATE";

/// Bytes of the attributes of all commands here.
const ATTRIBUTES: usize = 72;

/// Where in `struct xdp_md` the context of a packet says what.
const CONTEXT_DATA: i16 = 0;
const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_QUEUE: i16 = 16;

/// A program on an interface, and the sockets that it gives datagrams to.
pub(super) struct Program {
    sockets: OwnedFd,
    link: OwnedFd,
}

impl Program {
    /// Puts it on an interface with so many queues. Until [`Self::add`] it passes everything to the kernel.
    ///
    /// # Errors
    /// Which call the kernel refused, and why.
    pub(super) fn attach(
        interface: u32,
        (mac, address, ports): (Mac, IpAddr, PortRange),
        queues: u32,
    ) -> Result<Self, (&'static str, io::Error)> {
        let failed = |call: &'static str| move |source: io::Error| (call, source);
        let sockets = Attributes::default()
            .u32(0, MAP_TYPE_XSKMAP)
            .u32(4, size_of::<u32>() as u32)
            .u32(8, size_of::<RawFd>() as u32)
            .u32(12, queues);
        let sockets = sockets
            .create(MAP_CREATE)
            .map_err(failed("bpf MAP_CREATE"))?;
        let instructions = filter(mac, address, ports, sockets.as_raw_fd());
        let licence = c"Apache-2.0";
        let program = Attributes::default()
            .u32(0, PROG_TYPE_XDP)
            .u32(4, instructions.len() as u32)
            .u64(8, instructions.as_ptr() as u64)
            .u64(16, licence.as_ptr() as u64)
            .u32(68, ATTACH_XDP);
        let program = program.create(PROG_LOAD).map_err(failed("bpf PROG_LOAD"))?;
        let link = Attributes::default()
            .u32(0, program.as_raw_fd() as u32)
            .u32(4, interface)
            .u32(8, ATTACH_XDP)
            .u32(12, FLAGS_DRV_MODE);
        let link = link.create(LINK_CREATE).map_err(failed(ATTACH))?;
        Ok(Self { sockets, link })
    }

    /// Gives the datagrams that arrive on a queue to its socket from now on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn add(
        &self,
        queue: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), (&'static str, io::Error)> {
        let socket = socket.as_raw_fd();
        let added = Attributes::default()
            .u32(0, self.sockets.as_raw_fd() as u32)
            .u64(8, address_of(&queue))
            .u64(16, address_of(&socket));
        let added = added.call(MAP_UPDATE);
        added.map_err(|source| ("bpf MAP_UPDATE_ELEM", source))?;
        Ok(())
    }
}

impl Drop for Program {
    /// At once: by closing alone it may take the kernel a moment.
    fn drop(&mut self) {
        let link = self.link.as_raw_fd() as u32;
        // An interface that has gone has taken the program with it.
        let _ = Attributes::default().u32(0, link).call(LINK_DETACH);
    }
}

fn address_of<T>(value: &T) -> u64 {
    std::ptr::from_ref(value) as u64
}

/// What a command of `bpf(2)` is told, field by field.
#[repr(C, align(8))]
struct Attributes([u8; ATTRIBUTES]);

impl Default for Attributes {
    fn default() -> Self {
        Self([0; ATTRIBUTES])
    }
}

impl Attributes {
    fn u32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn call(&self, command: libc::c_int) -> io::Result<libc::c_long> {
        // SAFETY: the attributes are as long as is said. Every address in them is that of a value of the caller's, which has
        // the length that the command reads, and no command here writes to one.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_ptr(), ATTRIBUTES) };
        match answer {
            0.. => Ok(answer),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn create(&self, command: libc::c_int) -> io::Result<OwnedFd> {
        let descriptor = self.call(command)?;
        // SAFETY: the command has answered with a new descriptor, which nobody else has.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
    }
}

/// The packet's and the scratch registers.
const CONTEXT: u8 = 6;
const DATA: u8 = 2;
const DATA_END: u8 = 3;
const END: u8 = 4;
const FIELD: u8 = 5;

/// Opcodes of eBPF (RFC 9669).
const LOAD_8: u8 = 0x71;
const LOAD_16: u8 = 0x69;
const LOAD_32: u8 = 0x61;
const LOAD_IMMEDIATE: u8 = 0x18;
const MOVE: u8 = 0xBF;
const MOVE_IMMEDIATE: u8 = 0xB7;
const ADD_IMMEDIATE: u8 = 0x07;
const SUBTRACT_IMMEDIATE: u8 = 0x17;
const AND_IMMEDIATE: u8 = 0x57;
const TO_BIG_ENDIAN: u8 = 0xDC;
const JUMP_IF_GREATER: u8 = 0x2D;
const JUMP_IF_AT_LEAST: u8 = 0x35;
/// Of the lower 32 bits.
const JUMP_IF_NOT: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// An instruction as it lies in memory.
type Instruction = [u8; 8];

fn instruction(opcode: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    let (offset, immediate) = (offset.to_ne_bytes(), immediate.to_ne_bytes());
    let [a, b, c, d] = immediate;
    [opcode, from << 4 | to, offset[0], offset[1], a, b, c, d]
}

/// The program. Jumps lead to its end, which passes the packet to the kernel.
#[derive(Default)]
struct Filter {
    instructions: Vec<Instruction>,
    jumps: Vec<usize>,
}

impl Filter {
    fn add(&mut self, opcode: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        let added = instruction(opcode, to, from, offset, immediate);
        self.instructions.push(added);
    }

    fn pass_if(&mut self, opcode: u8, to: u8, from: u8, immediate: i32) {
        self.jumps.push(self.instructions.len());
        self.add(opcode, to, from, 0, immediate);
    }

    fn pass_unless_8(&mut self, at: usize, value: u8) {
        self.add(LOAD_8, FIELD, DATA, at as i16, 0);
        self.pass_if(JUMP_IF_NOT, FIELD, 0, value.into());
    }

    fn pass_unless_16(&mut self, at: usize, value: [u8; 2]) {
        self.add(LOAD_16, FIELD, DATA, at as i16, 0);
        self.pass_if(JUMP_IF_NOT, FIELD, 0, u16::from_ne_bytes(value).into());
    }

    fn pass_unless_bytes(&mut self, at: usize, bytes: &[u8]) {
        let (words, _) = bytes.as_chunks::<4>();
        for (at, word) in (at..).step_by(4).zip(words) {
            self.add(LOAD_32, FIELD, DATA, at as i16, 0);
            self.pass_if(JUMP_IF_NOT, FIELD, 0, i32::from_ne_bytes(*word));
        }
    }
}

/// Whole packets without options to these ports of an address at this Ethernet address go to the map's socket for their queue.
fn filter(mac: Mac, address: IpAddr, ports: PortRange, map: i32) -> Vec<Instruction> {
    let mut filter = Filter::default();
    filter.add(MOVE, CONTEXT, 1, 0, 0);
    filter.add(LOAD_32, DATA, CONTEXT, CONTEXT_DATA, 0);
    filter.add(LOAD_32, DATA_END, CONTEXT, CONTEXT_DATA_END, 0);
    filter.add(MOVE, END, DATA, 0, 0);
    let headers = headers_bytes(address);
    filter.add(ADD_IMMEDIATE, END, 0, 0, headers as i32);
    filter.pass_if(JUMP_IF_GREATER, END, DATA_END, 0);
    let [.., high, low] = mac;
    filter.pass_unless_bytes(0, &mac[..4]);
    filter.pass_unless_16(4, [high, low]);
    let ip = ETHERNET_BYTES;
    match address {
        IpAddr::V4(address) => {
            filter.pass_unless_16(ip - 2, ETHERTYPE_IPV4);
            filter.pass_unless_8(ip, IPV4_WITHOUT_OPTIONS);
            filter.pass_unless_8(ip + 9, UDP);
            filter.pass_unless_bytes(ip + 16, &address.octets());
            filter.add(LOAD_16, FIELD, DATA, ip as i16 + 6, 0);
            let fragment = u16::from_ne_bytes(FRAGMENT).into();
            filter.add(AND_IMMEDIATE, FIELD, 0, 0, fragment);
            filter.pass_if(JUMP_IF_NOT, FIELD, 0, 0);
        }
        IpAddr::V6(address) => {
            filter.pass_unless_16(ip - 2, ETHERTYPE_IPV6);
            filter.pass_unless_8(ip + 6, UDP);
            filter.pass_unless_bytes(ip + 24, &address.octets());
        }
    }
    let port = headers - 6;
    filter.add(LOAD_16, FIELD, DATA, port as i16, 0);
    filter.add(TO_BIG_ENDIAN, FIELD, 0, 0, 16);
    filter.add(SUBTRACT_IMMEDIATE, FIELD, 0, 0, ports.first.into());
    // What is below the first port is a large number now.
    filter.pass_if(JUMP_IF_AT_LEAST, FIELD, 0, ports.count.into());
    filter.add(LOAD_IMMEDIATE, 1, PSEUDO_MAP_FD, 0, map);
    filter.add(0, 0, 0, 0, 0);
    filter.add(LOAD_32, 2, CONTEXT, CONTEXT_QUEUE, 0);
    // Where a queue has no socket.
    filter.add(MOVE_IMMEDIATE, 3, 0, 0, XDP_PASS);
    filter.add(CALL, 0, 0, 0, REDIRECT_MAP);
    filter.add(EXIT, 0, 0, 0, 0);
    let end = filter.instructions.len();
    for jump in filter.jumps {
        let offset = (end - jump - 1) as i16;
        filter.instructions[jump][2..4].copy_from_slice(&offset.to_ne_bytes());
    }
    filter.instructions.extend([
        instruction(MOVE_IMMEDIATE, 0, 0, 0, XDP_PASS),
        instruction(EXIT, 0, 0, 0, 0),
    ]);
    filter.instructions
}
