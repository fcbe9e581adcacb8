//! Compiles the kubelet's protocols without protoc; the output stays in the build directory.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    for (file, root) in [
        ("csi.proto", "proto/csi"),
        ("api.proto", "proto/pluginregistration/v1"),
    ] {
        let files = protox::compile([file], [root])?;
        tonic_prost_build::configure()
            .build_transport(false)
            .compile_fds_with_config(files, prost_build::Config::new())?;
    }
    Ok(())
}
