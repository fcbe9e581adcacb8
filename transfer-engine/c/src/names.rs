//! Names of peers and of their memory, parsed from strings.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

use weft_transfer_engine::{EngineAddress, MrDescriptor};

use crate::argument::{give, given, string};
use crate::status::{Refusal, WeftStatus, call};
use crate::text::text;

/// The address of a peer.
pub struct WeftAddress {
    pub(crate) address: EngineAddress,
    name: CString,
}

impl WeftAddress {
    fn new(address: EngineAddress) -> Self {
        let name = text(address.name());
        Self { address, name }
    }
}

/// The name of a peer's memory.
pub struct WeftDescriptor(pub(crate) MrDescriptor);

/// Parses what weft_main_address() gave at the peer.
#[unsafe(no_mangle)]
pub extern "C" fn weft_address_parse(
    text: *const c_char,
    address: Option<&mut MaybeUninit<*mut WeftAddress>>,
) -> WeftStatus {
    call(|| {
        let to = given(address, "address")?;
        let parsed = string(text, "text")?.parse();
        let parsed = parsed.map_err(|error| Refusal::invalid(format!("text: {error}")))?;
        give(to, WeftAddress::new(parsed));
        Ok(())
    })
}

/// What outcomes and logs call the peer. No secret. NULL if `address` is.
#[unsafe(no_mangle)]
pub extern "C" fn weft_address_name(address: Option<&WeftAddress>) -> *const c_char {
    address.map_or(std::ptr::null(), |address| address.name.as_ptr())
}

/// Frees an address. Operations that use it go on.
#[unsafe(no_mangle)]
pub extern "C" fn weft_address_free(address: Option<Box<WeftAddress>>) {
    drop(address);
}

/// Parses what weft_mr_descriptor() gave at the peer. Parse a descriptor once, and use it for many operations.
#[unsafe(no_mangle)]
pub extern "C" fn weft_descriptor_parse(
    text: *const c_char,
    descriptor: Option<&mut MaybeUninit<*mut WeftDescriptor>>,
) -> WeftStatus {
    call(|| {
        let to = given(descriptor, "descriptor")?;
        let parsed = string(text, "text")?.parse();
        let parsed = parsed.map_err(|error| Refusal::invalid(format!("text: {error}")))?;
        give(to, WeftDescriptor(parsed));
        Ok(())
    })
}

/// Bytes of the region. 0 if `descriptor` is NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_descriptor_bytes(descriptor: Option<&WeftDescriptor>) -> u64 {
    descriptor.map_or(0, |descriptor| descriptor.0.bytes)
}

/// The engine that has the memory.
#[unsafe(no_mangle)]
pub extern "C" fn weft_descriptor_address(
    descriptor: Option<&WeftDescriptor>,
    address: Option<&mut MaybeUninit<*mut WeftAddress>>,
) -> WeftStatus {
    call(|| {
        let descriptor = given(descriptor, "descriptor")?;
        let to = given(address, "address")?;
        give(to, WeftAddress::new(descriptor.0.engine.clone()));
        Ok(())
    })
}

/// Frees a descriptor. Operations that use it go on.
#[unsafe(no_mangle)]
pub extern "C" fn weft_descriptor_free(descriptor: Option<Box<WeftDescriptor>>) {
    drop(descriptor);
}
