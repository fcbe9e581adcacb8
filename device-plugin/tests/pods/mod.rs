//! What a kubelet says of the devices of its pods.

use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use weft_device_plugin::kubelet::pod_resources as proto;
use weft_device_plugin::kubelet::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};

pub(crate) const RESOURCE: &str = "weft.dev/vdev";

/// The pods of a node.
#[derive(Clone, Default)]
pub(crate) struct Pods(Arc<Mutex<Vec<proto::PodResources>>>);

impl Pods {
    pub(crate) fn set(&self, pods: &[proto::PodResources]) {
        *self.0.lock().expect("no test panics here") = pods.to_vec();
    }

    /// Answers at a socket in this directory, which is made.
    pub(crate) fn serve(&self, directory: &Path) -> JoinHandle<()> {
        std::fs::create_dir(directory).expect("it is ours");
        let listener = UnixListener::bind(directory.join("kubelet.sock")).expect("it is ours");
        let lister = PodResourcesListerServer::new(self.clone());
        tokio::spawn(async move {
            let served = Server::builder()
                .add_service(lister)
                .serve_with_incoming(UnixListenerStream::new(listener));
            served.await.expect("it is served");
        })
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Pods {
    async fn list(
        &self,
        _: Request<proto::ListPodResourcesRequest>,
    ) -> Result<Response<proto::ListPodResourcesResponse>, Status> {
        let pod_resources = self.0.lock().expect("no test panics here").clone();
        let listed = proto::ListPodResourcesResponse { pod_resources };
        Ok(Response::new(listed))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<proto::AllocatableResourcesRequest>,
    ) -> Result<Response<proto::AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn get(
        &self,
        _: Request<proto::GetPodResourcesRequest>,
    ) -> Result<Response<proto::GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("nobody asks"))
    }
}

/// A pod with one container that has these devices.
pub(crate) fn pod(namespace: &str, name: &str, ids: &[&str]) -> proto::PodResources {
    let devices = proto::ContainerDevices {
        resource_name: RESOURCE.to_owned(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        topology: None,
    };
    proto::PodResources {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        containers: vec![proto::ContainerResources {
            name: "main".to_owned(),
            devices: vec![devices],
            ..proto::ContainerResources::default()
        }],
    }
}
