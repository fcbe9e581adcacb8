//! The kubelet's protocols: generated code, and how its sockets are called. Tests play a kubelet by it.

use std::path::Path;
use std::time::Duration;

use tonic::transport::Channel;

/// A kubelet that has not answered by then is called again later.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A channel to a socket of the kubelet; each call connects where there is no connection.
#[must_use]
pub fn channel(socket: &Path) -> Channel {
    weft_proto::unix_channel(socket, ANSWER_TIMEOUT)
}

/// The device plugin API, v1beta1.
pub mod device_plugin {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        rustdoc::all,
        dead_code
    )]

    tonic::include_proto!("v1beta1");

    /// The version that a plugin registers with.
    pub const VERSION: &str = "v1beta1";
    /// [`Device::health`] of a device that pods can have.
    pub const HEALTHY: &str = "Healthy";
    /// And of one that they cannot.
    pub const UNHEALTHY: &str = "Unhealthy";
}

/// The Pod Resources API, v1.
pub mod pod_resources {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        rustdoc::all,
        dead_code
    )]

    tonic::include_proto!("v1");
}

/// How a plugin registers by a socket in the kubelet's directory `plugins_registry`, v1.
pub mod plugin_registration {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        rustdoc::all,
        dead_code
    )]

    tonic::include_proto!("pluginregistration");
}

/// How a driver of Dynamic Resource Allocation says how devices are, v1alpha1.
pub mod dra_health {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        rustdoc::all,
        dead_code
    )]

    tonic::include_proto!("v1alpha1");

    /// What a driver registers with that serves it.
    pub const VERSION: &str = "v1alpha1.DRAResourceHealth";
}

/// The API of drivers of Dynamic Resource Allocation, v1.
pub mod dra {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        rustdoc::all,
        dead_code
    )]

    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");

    /// What a driver registers as.
    pub const TYPE: &str = "DRAPlugin";
    /// The version that it registers with.
    pub const VERSION: &str = "v1.DRAPlugin";
}
