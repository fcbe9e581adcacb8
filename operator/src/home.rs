//! The operator's own objects in its namespace: its authority, its Service, and where the leader is.
//!
//! | object | |
//! |---|---|
//! | Secret `weft-ca` | the authority; made by the first leader, read by the others |
//! | ConfigMap `weft-ca` | the certificates by which agents know the operator |
//! | Service `weft-operator` | of the chart, without a selector |
//! | EndpointSlice `weft-operator-leader` | where the leader is, so that the Service leads to it |
//!
//! Only a leader writes here, and keeps it so: what somebody deletes or changes is put back.

mod leader;
mod objects;
mod secret;

use std::{convert::Infallible, net::IpAddr, time::Duration};

use tokio::time::sleep;
use weft_identity::authority::Authority;

pub use self::{
    leader::Address,
    objects::{Home, HomeError},
};

pub(crate) use self::leader::LEADER;

/// The objects are looked at so often: an agent that cannot reach the leader tries for ever.
const LOOK: Duration = Duration::from_secs(10);

impl Home {
    /// Looks after the objects until another authority is put in place of this one.
    pub async fn keep(
        &self,
        authority: &Authority,
        address: &Address,
        pod: IpAddr,
    ) -> Result<Infallible, HomeError> {
        loop {
            sleep(LOOK).await;
            let secret = self.keep_secret(authority).await;
            if let Err(ended @ (HomeError::Replaced | HomeError::Rotated(_))) = secret {
                return Err(ended);
            }
            let map = self.keep_config_map(authority).await;
            let slice = self.keep_slice(address, pod).await;
            for error in [secret, map, slice].into_iter().filter_map(Result::err) {
                tracing::warn!("{error}; trying on");
            }
        }
    }
}
