//! One packet of the control socket, and the descriptors that go with it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::spin::spin;

/// Descriptors that go with one packet, at most.
pub const DESCRIPTORS_MAX: usize = 4;

/// Sends a packet with descriptors.
///
/// # Errors
/// Those of sendmsg(2). More than [`DESCRIPTORS_MAX`] descriptors are no packet: `InvalidInput`.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // A peer that is gone is an error, and no signal.
    let sent = sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    sent.map(drop).map_err(io::Error::from)
}

/// Receives a packet with descriptors. It has no bytes when the other end is closed.
///
/// # Errors
/// Those of recvmsg(2). A packet that is longer than `buffer`, or has more descriptors than [`DESCRIPTORS_MAX`]:
/// `InvalidData`; it is lost, and its descriptors are closed.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(&[u8], Vec<OwnedFd>)> {
    let (bytes, descriptors) = receive_with(socket, buffer, RecvFlags::empty())?;
    Ok((&buffer[..bytes], descriptors))
}

/// The same where the packet is expected soon.
///
/// # Errors
/// As [`receive`].
pub fn receive_soon(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(&[u8], Vec<OwnedFd>)> {
    let come = spin(|| {
        let received = receive_with(&socket, buffer, RecvFlags::DONTWAIT);
        let is_there =
            !matches!(&received, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        is_there.then_some(received)
    });
    match come {
        Some(received) => {
            let (bytes, descriptors) = received?;
            Ok((&buffer[..bytes], descriptors))
        }
        None => receive(socket, buffer),
    }
}

fn receive_with(
    socket: impl AsFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [IoSliceMut::new(buffer)];
    let received = recvmsg(
        socket,
        &mut bytes,
        &mut control,
        RecvFlags::CMSG_CLOEXEC | flags,
    )?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    let cut = ReturnFlags::TRUNC.union(ReturnFlags::CTRUNC);
    if received.flags.intersects(cut) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((received.bytes, descriptors))
}
