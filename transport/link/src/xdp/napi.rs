//! Has the worker take packets out of an interface, and no interrupt (NAPI busy polling).
//!
//! Without this each packet that arrives causes an interrupt, which on a veth takes time of the sender's processor. While the
//! link is open, packets wait up to 0.2 ms for the worker: those of others, too.

use std::io;

use nix::sys::socket::SockProtocol;

use super::netlink::{HEADER, Netlink, attribute_behind, kind_of, number};

/// How long packets wait for a worker that does not come, nanoseconds. The kernel's documentation of AF_XDP has these two
/// values.
const WAIT: u32 = 200_000;
/// So often in a row they wait that long before interrupts are back.
const WAITS: u32 = 2;

// Of `linux/genetlink.h` and `linux/netdev.h`.
const CONTROL: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;
const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;
const NAPI_INTERFACE: u16 = 1;
const NAPI_ID: u16 = 2;
const NAPI_WAITS: u16 = 5;
const NAPI_WAIT: u16 = 6;
const DUMP: u16 = 0x300;
const ACKNOWLEDGE: u16 = 4;
const ERROR: u16 = 2;

/// `genlmsghdr`.
const BODY: usize = 4;

/// What is set at an interface, and what was set before.
pub(super) struct Napi {
    netlink: Netlink,
    family: u16,
    before: Vec<Settings>,
}

/// Of one of an interface's NAPI instances.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    id: u32,
    waits: u32,
    wait: u32,
}

impl Napi {
    /// Has packets of an interface wait for who polls. None where the kernel has no such settings (before Linux 6.13).
    pub(super) fn set(interface: u32) -> Option<Self> {
        let netlink = Netlink::open(SockProtocol::NetlinkGeneric).ok()?;
        let mut napi = Self {
            netlink,
            family: CONTROL,
            before: Vec::new(),
        };
        let name = (CONTROL_FAMILY_NAME, b"netdev\0".to_vec());
        let answers = napi.ask(CONTROL_GET_FAMILY, 0, &[name])?;
        let family = attribute_behind(BODY, answers.first()?, CONTROL_FAMILY)?;
        napi.family = u16::from_ne_bytes(family.try_into().ok()?);
        let interface = (NAPI_INTERFACE, interface.to_ne_bytes().to_vec());
        let answers = napi.ask(NAPI_GET, DUMP, &[interface])?;
        let found: Vec<_> = answers.iter().filter_map(|it| settings(it)).collect();
        for before in &found {
            let wanted = Settings {
                waits: WAITS,
                wait: WAIT,
                ..*before
            };
            napi.change(&wanted).ok()?;
            napi.before.push(before.clone());
        }
        (!found.is_empty()).then_some(napi)
    }

    fn change(&mut self, settings: &Settings) -> io::Result<()> {
        let values = [
            (NAPI_ID, settings.id),
            (NAPI_WAITS, settings.waits),
            (NAPI_WAIT, settings.wait),
        ];
        let attributes = values.map(|(name, value)| (name, value.to_ne_bytes().to_vec()));
        let answers = self.ask(NAPI_SET, ACKNOWLEDGE, &attributes);
        let answer = answers.and_then(|answers| answers.into_iter().next());
        let answer = answer.ok_or(io::ErrorKind::InvalidData)?;
        match number(&answer, HEADER).map(i32::from_ne_bytes) {
            Some(0) if kind_of(&answer) == Some(ERROR) => Ok(()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    fn ask(
        &mut self,
        command: u8,
        flags: u16,
        attributes: &[(u16, Vec<u8>)],
    ) -> Option<Vec<Vec<u8>>> {
        let body = [command, 1, 0, 0];
        self.netlink.ask((self.family, flags), &body, attributes)
    }
}

impl Drop for Napi {
    /// As it was.
    fn drop(&mut self) {
        for settings in std::mem::take(&mut self.before) {
            let _ = self.change(&settings);
        }
    }
}

/// What an answer says. The kernel writes a number in 4 or 8 bytes.
fn settings(answer: &[u8]) -> Option<Settings> {
    let value = |name| {
        let bytes = attribute_behind(BODY, answer, name)?;
        match bytes.len() {
            4 => number(bytes, 0).map(u32::from_ne_bytes),
            _ => number(bytes, 0).and_then(|it| u64::from_ne_bytes(it).try_into().ok()),
        }
    };
    Some(Settings {
        id: value(NAPI_ID)?,
        waits: value(NAPI_WAITS)?,
        wait: value(NAPI_WAIT)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut answer = vec![0; HEADER + BODY];
        for (name, value) in attributes {
            answer.extend((4 + value.len() as u16).to_ne_bytes());
            answer.extend(name.to_ne_bytes());
            answer.extend(*value);
        }
        answer
    }

    #[test]
    fn settings_are_read_in_either_width_and_only_whole() {
        let (id, waits) = (8_193u32.to_ne_bytes(), 2u32.to_ne_bytes());
        let expected = Settings {
            id: 8_193,
            waits: 2,
            wait: 77,
        };
        for wait in [&77u32.to_ne_bytes()[..], &77u64.to_ne_bytes()] {
            let whole = answer(&[(NAPI_ID, &id), (NAPI_WAITS, &waits), (NAPI_WAIT, wait)]);
            assert_eq!(settings(&whole), Some(expected.clone()));
            for bytes in 0..whole.len() {
                assert_eq!(settings(&whole[..bytes]), None, "{bytes}");
            }
        }
    }
}
