//! The node's engine, as devices are made and destroyed there.

use std::collections::BTreeSet;

use tonic::transport::Channel;
use tonic::{Code, Status};
use weft_proto::engine::v1::engine_client::EngineClient;
use weft_proto::engine::v1::{
    CreateDeviceRequest, DestroyDeviceRequest, Device, ListDevicesRequest, ListDevicesResponse,
};

use crate::Config;
use crate::pods::Pod;

/// The engine, and what its devices may do.
#[derive(Debug)]
pub(crate) struct Engine {
    client: EngineClient<Channel>,
    cap_bps: u64,
    ops_per_s: u32,
    cross_namespace: bool,
}

impl Engine {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            client: weft_proto::engine::client(&config.engine),
            cap_bps: config.cap_bps,
            ops_per_s: config.ops_per_s,
            cross_namespace: config.cross_namespace,
        }
    }

    /// Makes a device for a pod.
    pub(crate) async fn create(&self, id: &str, pod: &Pod) -> Result<(), Status> {
        let tenant = match self.cross_namespace {
            true => "",
            false => &pod.namespace,
        };
        let request = CreateDeviceRequest {
            name: id.to_owned(),
            gid: Vec::new(),
            cap_bps: self.cap_bps,
            ops_per_s: self.ops_per_s,
            tenant: tenant.to_owned(),
            owner: format!("{}/{}", pod.namespace, pod.name),
        };
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
