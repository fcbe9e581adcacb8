//! The names of an engine and of its memory: strings that can be printed and parsed.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use weft_engine::{Access, Key};

/// What a peer must show to connect. No other engine has the same.
pub(crate) type JoinToken = [u8; 16];

/// How to reach an engine: its control endpoints, its certificate, a join token. **A secret**: who has the string may
/// connect, and nobody else. A restarted engine has another address.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EngineAddress {
    pub(crate) endpoints: Arc<[SocketAddr]>,
    pub(crate) certificate: Arc<[u8]>,
    pub(crate) token: JoinToken,
}

impl EngineAddress {
    /// What errors and logs call the engine: its first endpoint and the end of its certificate. No secret.
    pub fn name(&self) -> String {
        let endpoint = self.endpoints.first().map(ToString::to_string);
        let end = self
            .certificate
            .last_chunk()
            .map(|end| u32::from_be_bytes(*end));
        format!("{}#{:08x}", endpoint.unwrap_or_default(), end.unwrap_or(0))
    }
}

/// Shows the name, never the token.
impl fmt::Debug for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineAddress({})", self.name())
    }
}

/// The name of a region for peers: plain data that a program sends to them, for example as a string.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrDescriptor {
    /// The engine that has the memory. A secret, as every [`EngineAddress`].
    pub engine: EngineAddress,
    /// Opens the region: 64 bits that nobody can guess.
    pub key: Key,
    /// The length of the region.
    pub bytes: u64,
    /// What peers may do to it.
    pub access: Access,
}

/// Shows what no peer needs to open the region.
impl fmt::Debug for MrDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MrDescriptor");
        shown.field("engine", &self.engine);
        shown.field("bytes", &self.bytes);
        shown.field("access", &self.access).finish_non_exhaustive()
    }
}

/// Why a string is no address or no descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this is no {0} of Weft: pass the string on as it was printed")]
pub struct AddressError(&'static str);

/// Prints a type as `PREFIX:` and base64url, and parses that.
macro_rules! printed {
    ($type:ty, $prefix:literal, $what:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let bytes = postcard::to_allocvec(self).map_err(|_| fmt::Error)?;
                write!(f, "{}{}", $prefix, URL_SAFE_NO_PAD.encode(bytes))
            }
        }

        impl FromStr for $type {
            type Err = AddressError;

            fn from_str(text: &str) -> Result<Self, AddressError> {
                let bytes = text.trim().strip_prefix($prefix);
                bytes
                    .and_then(|bytes| URL_SAFE_NO_PAD.decode(bytes).ok())
                    .and_then(|bytes| match postcard::take_from_bytes(&bytes) {
                        Ok((parsed, [])) => Some(parsed),
                        _ => None,
                    })
                    .ok_or(AddressError($what))
            }
        }
    };
}

printed!(EngineAddress, "weft-engine1:", "engine address");
printed!(MrDescriptor, "weft-region1:", "region descriptor");

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> MrDescriptor {
        let endpoints = ["127.0.0.1:20000", "[fd00::1]:9"].map(|it| it.parse().unwrap());
        MrDescriptor {
            engine: EngineAddress {
                endpoints: endpoints.into(),
                certificate: [0xAB; 350].into(),
                token: [0xFE; 16],
            },
            key: Key(0xFFFF_0000_1234_0001),
            bytes: 1 << 40,
            access: Access::READ.with(Access::ATOMIC),
        }
    }

    #[test]
    fn what_is_printed_is_parsed_back_and_nothing_else_is() {
        let descriptor = descriptor();
        let [text, address] = [descriptor.to_string(), descriptor.engine.to_string()];
        assert_eq!(text.parse(), Ok(descriptor.clone()));
        assert_eq!(address.parse(), Ok(descriptor.engine));
        for wrong in [
            "",
            &text[1..],
            &text[..text.len() - 2],
            &format!("{text}AA"),
        ] {
            assert!(wrong.parse::<MrDescriptor>().is_err(), "{wrong}");
        }
        let error = text.parse::<EngineAddress>().unwrap_err();
        assert!(error.to_string().contains("engine address"), "{error}");
    }

    #[test]
    fn debug_and_name_do_not_show_the_token() {
        let shown = format!("{:?}", descriptor()).to_lowercase();
        assert!(
            !shown.contains("1234") && !shown.contains("ffff"),
            "{shown}"
        );
        let address = descriptor().engine;
        assert_eq!(address.name(), "127.0.0.1:20000#abababab");
        assert_eq!(
            format!("{address:?}"),
            "EngineAddress(127.0.0.1:20000#abababab)"
        );
    }
}
