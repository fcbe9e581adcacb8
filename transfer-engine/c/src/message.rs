//! Messages: sends, receives, and barriers among groups of peers.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use weft_transfer_engine::PeerGroup;

use crate::argument::{array, bytes, give, given};
use crate::callback::{UserData, call_program};
use crate::engine::{WeftEngine, running};
use crate::names::WeftAddress;
use crate::operation::{WeftOperation, WeftOptions, give_operation, options};
use crate::status::{Refusal, WeftStatus, call};

/// A message to send.
#[repr(C)]
pub struct WeftSend<'a> {
    /// Who gets it.
    pub peer: Option<&'a WeftAddress>,
    /// `bytes` bytes. The call copies them: they may be changed when it returns.
    pub message: *const c_void,
    /// How many; 0 is a message too.
    pub bytes: u64,
    /// Comes with the message and is not counted, if `has_immediate`.
    pub immediate: u32,
    /// Whether the message has an immediate.
    pub has_immediate: bool,
}

/// Gets the bytes of a message, which are good until it returns, and its immediate or NULL.
pub type WeftMessageHandler = Option<
    extern "C-unwind" fn(
        user_data: *mut c_void,
        message: *const c_void,
        bytes: u64,
        immediate: Option<&u32>,
    ),
>;

/// Peers for weft_submit_barrier().
pub struct WeftPeerGroup(PeerGroup);

/// Connects to a peer. Other operations do that when they need it. `options` and `operation` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_connect(
    engine: Option<&WeftEngine>,
    peer: Option<&WeftAddress>,
    options: Option<&WeftOptions>,
    operation: Option<&mut MaybeUninit<*mut WeftOperation>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let peer = given(peer, "peer")?;
        let options = self::options(options)?;
        give_operation(operation, engine.connect(&peer.address, options)?);
        Ok(())
    })
}

/// Sends a message to the receives of a peer. Messages from one engine to one peer arrive in order. A message that finds no
/// receive waits, and later ones wait behind it. A message that is longer than the receives ends the connections with the
/// peer. `options` and `operation` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_submit_send(
    engine: Option<&WeftEngine>,
    send: Option<&WeftSend<'_>>,
    options: Option<&WeftOptions>,
    operation: Option<&mut MaybeUninit<*mut WeftOperation>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let send = given(send, "send")?;
        let peer = given(send.peer, "send.peer")?;
        let message = bytes(send.message, send.bytes, "send.message")?.to_vec();
        let immediate = send.has_immediate.then_some(send.immediate);
        let options = self::options(options)?;
        let sent = engine.submit_send(&peer.address, message, immediate, options)?;
        give_operation(operation, sent);
        Ok(())
    })
}

/// Posts `count` buffers of `bytes` bytes that the messages of all peers share, once for an engine. Each message goes to
/// `handler`, one after the other, until the engine is closed. A slow handler slows the senders.
#[unsafe(no_mangle)]
pub extern "C" fn weft_submit_recvs(
    engine: Option<&WeftEngine>,
    bytes: u64,
    count: u64,
    handler: WeftMessageHandler,
    user_data: *mut c_void,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let handler = given(handler, "handler")?;
        let user_data = UserData::new(user_data);
        let receive = move |message: Vec<u8>, immediate: Option<u32>| {
            let (start, bytes) = (message.as_ptr().cast(), message.len() as u64);
            call_program(|| handler(user_data.get(), start, bytes, immediate.as_ref()));
        };
        engine.submit_recvs(bytes, count, Box::new(receive))?;
        Ok(())
    })
}

/// Makes a group of `count` peers, at least 1, and begins to connect to them. The addresses may be freed when it returns.
#[unsafe(no_mangle)]
pub extern "C" fn weft_add_peer_group(
    engine: Option<&WeftEngine>,
    peers: *const Option<&WeftAddress>,
    count: usize,
    group: Option<&mut MaybeUninit<*mut WeftPeerGroup>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let to = given(group, "group")?;
        let peer = |(index, peer): (usize, &Option<&WeftAddress>)| {
            let peer = given(*peer, format_args!("peers[{index}]"))?;
            Ok(peer.address.clone())
        };
        let peers = array(peers, count, "peers")?.iter().enumerate().map(peer);
        let peers = peers.collect::<Result<Vec<_>, Refusal>>()?;
        give(to, WeftPeerGroup(engine.add_peer_group(peers)?));
        Ok(())
    })
}

/// Has `immediate` count once at each peer of a group. With weft_expect_imm_count() at each peer it is a barrier. `options`
/// and `operation` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_submit_barrier(
    engine: Option<&WeftEngine>,
    group: Option<&WeftPeerGroup>,
    immediate: u32,
    options: Option<&WeftOptions>,
    operation: Option<&mut MaybeUninit<*mut WeftOperation>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let group = given(group, "group")?;
        let options = self::options(options)?;
        let submitted = engine.submit_barrier(&group.0, immediate, options)?;
        give_operation(operation, submitted);
        Ok(())
    })
}

/// Frees a group. Operations on it go on, and its peers stay connected.
#[unsafe(no_mangle)]
pub extern "C" fn weft_peer_group_free(group: Option<Box<WeftPeerGroup>>) {
    drop(group);
}
