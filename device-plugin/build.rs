//! Compiles the kubelet's protocols without protoc; the output stays in the build directory.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    for (root, file) in [
        // Each of these has a root of its own: they are called api.proto.
        ("proto/deviceplugin/v1beta1", "api.proto"),
        ("proto/podresources/v1", "api.proto"),
        ("proto/dra/v1", "api.proto"),
        ("proto/drahealth/v1alpha1", "api.proto"),
        ("proto", "pluginregistration.proto"),
    ] {
        let files = protox::compile([file], [root])?;
        tonic_prost_build::configure()
            .build_transport(false)
            .compile_fds_with_config(files, prost_build::Config::new())?;
    }
    Ok(())
}
