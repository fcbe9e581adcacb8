//! Compiles the kubelet's protocols without protoc; the output stays in the build directory.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    // Each has a root of its own: both files are called api.proto.
    for root in ["proto/deviceplugin/v1beta1", "proto/podresources/v1"] {
        let files = protox::compile(["api.proto"], [root])?;
        tonic_prost_build::configure()
            .build_transport(false)
            .compile_fds_with_config(files, prost_build::Config::new())?;
    }
    Ok(())
}
