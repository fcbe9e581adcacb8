//! Engines of tests: on 127.0.0.1, with few ports, and quick to notice a dead peer.

use std::time::Duration;

use weft_transfer_engine::{
    Access, LinkChoice, LinkKind, MemoryRegion, MrDescriptor, Operation, Options, Outcome, Region,
    SingleWrite, TransferEngine, TransferEngineConfig,
};

/// Nothing here takes a tenth of this on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn config() -> TransferEngineConfig {
    TransferEngineConfig {
        port_count: 4,
        ..TransferEngineConfig::default()
    }
}

#[allow(dead_code)] // not every test has engines of this kind
pub(crate) fn engine() -> TransferEngine {
    TransferEngine::start(config()).expect("127.0.0.1 and free ports are all it needs")
}

#[allow(dead_code)] // not every test has several NICs
pub(crate) fn engine_with_nics(count: u8, link: LinkKind) -> TransferEngine {
    let nics = (1..=count).map(|nic| [127, 0, 0, nic].into()).collect();
    let config = TransferEngineConfig {
        nics,
        link: LinkChoice::Only(link),
        ..config()
    };
    TransferEngine::start(config).expect("it starts")
}

pub(crate) fn options() -> Options {
    Options::within(PATIENCE)
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

pub(crate) fn source(engine: &TransferEngine, bytes: Vec<u8>) -> MemoryRegion {
    let registered = engine.reg_mr(Region::share(bytes), Access::NONE);
    registered.expect("there are bytes").0
}

pub(crate) fn bytes_of(region: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.descriptor().bytes as usize];
    region.read(0, &mut bytes).expect("all of it");
    bytes
}

/// A write of all of `source` to the beginning of `destination`.
pub(crate) fn whole(source: &MemoryRegion, destination: &MrDescriptor) -> SingleWrite {
    SingleWrite {
        source: (source.clone(), 0),
        destination: (destination.clone(), 0),
        bytes: source.descriptor().bytes,
        immediate: None,
    }
}

#[allow(dead_code)] // not every test has only operations that are done
pub(crate) fn done(operation: &Operation) {
    assert_eq!(operation.wait(), Outcome::Done);
}
