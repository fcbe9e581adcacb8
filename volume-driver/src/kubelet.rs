//! The kubelet's protocols: generated code. Tests play a kubelet by it.

/// The Container Storage Interface, v1.
pub mod csi {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        rustdoc::all,
        dead_code
    )]

    tonic::include_proto!("csi.v1");
}

/// How the kubelet learns of a driver.
pub mod registration {
    #![allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        rustdoc::all,
        dead_code
    )]

    tonic::include_proto!("pluginregistration");

    /// [`PluginInfo::type`] of a driver of volumes.
    pub const TYPE: &str = "CSIPlugin";
    /// The version of CSI by which the kubelet calls one.
    pub const VERSION: &str = "1.0.0";
}
