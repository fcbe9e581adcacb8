//! The node's engine, as devices are made and destroyed there.

use std::collections::BTreeSet;
use std::path::Path;

use tokio::sync::watch;
use tonic::transport::Channel;
use tonic::{Code, Status};
use weft_proto::engine::v1::engine_client::EngineClient;
use weft_proto::engine::v1::{
    CreateDeviceRequest, DestroyDeviceRequest, Device, ListDevicesRequest, ListDevicesResponse,
};

use crate::Flags;
use crate::pods::Pod;

/// The engine, and the flags by which devices are made there.
#[derive(Debug)]
pub(crate) struct Engine {
    client: EngineClient<Channel>,
    flags: watch::Receiver<Flags>,
}

/// What a device may send: of each that is 0, what the node's fabric says, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct DeviceLimits {
    /// Bits per second.
    pub(crate) cap_bps: u64,
    /// Work requests per second.
    pub(crate) ops_per_s: u32,
    /// The part of the node's link, a weight.
    pub(crate) share: u32,
}

impl DeviceLimits {
    /// What these do not say, as others say.
    fn or(self, others: Self) -> Self {
        let or = |own: u32, other: u32| if own == 0 { other } else { own };
        Self {
            cap_bps: match self.cap_bps {
                0 => others.cap_bps,
                cap_bps => cap_bps,
            },
            ops_per_s: or(self.ops_per_s, others.ops_per_s),
            share: or(self.share, others.share),
        }
    }
}

impl Engine {
    /// The engine that serves at this socket.
    pub(crate) fn new(socket: &Path, flags: watch::Receiver<Flags>) -> Self {
        Self {
            client: weft_proto::engine::client(socket),
            flags,
        }
    }

    /// Makes a device for a pod, with these limits in place of the fabric's.
    pub(crate) async fn create(
        &self,
        id: &str,
        pod: &Pod,
        limits: DeviceLimits,
    ) -> Result<(), Status> {
        let request = request(&self.flags.borrow(), id, pod, limits);
        self.client.clone().create_device(request).await?;
        Ok(())
    }

    /// Destroys a device, if it is there.
    pub(crate) async fn destroy(&self, id: &str) -> Result<(), Status> {
        let request = DestroyDeviceRequest {
            name: id.to_owned(),
        };
        match self.client.clone().destroy_device(request).await {
            Err(status) if status.code() != Code::NotFound => Err(status),
            _ => Ok(()),
        }
    }

    /// The devices whose ids begin so, and how the engine is.
    pub(crate) async fn list(&self, prefix: &str) -> Result<ListDevicesResponse, Status> {
        let mut client = self.client.clone();
        let listed = client.list_devices(ListDevicesRequest {}).await;
        let mut listed = listed?.into_inner();
        let is_ours = |device: &Device| device.name.starts_with(prefix);
        listed.devices.retain(is_ours);
        Ok(listed)
    }

    /// Their ids.
    pub(crate) async fn ids(&self, prefix: &str) -> Result<BTreeSet<String>, Status> {
        let devices = self.list(prefix).await?.devices.into_iter();
        Ok(devices.map(|device| device.name).collect())
    }
}

fn request(flags: &Flags, id: &str, pod: &Pod, limits: DeviceLimits) -> CreateDeviceRequest {
    let limits = limits.or(DeviceLimits {
        cap_bps: flags.cap_bps,
        ops_per_s: flags.ops_per_s,
        share: flags.share,
    });
    let tenant = match flags.cross_namespace {
        true => "",
        false => &pod.namespace,
    };
    CreateDeviceRequest {
        name: id.to_owned(),
        gid: Vec::new(),
        cap_bps: limits.cap_bps,
        ops_per_s: limits.ops_per_s,
        share: limits.share,
        tenant: tenant.to_owned(),
        owner: format!("{}/{}", pod.namespace, pod.name),
    }
}
