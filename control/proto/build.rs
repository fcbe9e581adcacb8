//! Compiles the protocol definitions without protoc; the output stays in the build directory.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new("proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let definitions = [
        "weft/agent/v1/agent.proto",
        "weft/claims/v1/claims.proto",
        "weft/engine/v1/engine.proto",
        "weft/operator/v1/operator.proto",
        "weft/volumes/v1/volumes.proto",
    ];
    let files = protox::compile(definitions, [root])?;
    let mut config = prost_build::Config::new();
    // What they hold is shown to nobody: each has a `Debug` of its own.
    config.skip_debug([
        "weft.agent.v1.Credentials",
        "weft.agent.v1.ConnectionEnd",
        "weft.agent.v1.QueuePairOffer",
        "weft.operator.v1.ReviewMetricsTokenRequest",
    ]);
    // It is left out with the message that it is in, and holds no secret.
    config.type_attribute("weft.agent.v1.ConnectionEnd.link", "#[derive(Debug)]");
    // Without the generated `AgentClient::connect(address)`: it would collide with the call Connect.
    // Callers make a `tonic::transport::Channel` and pass it to `AgentClient::new`.
    tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::codec::Codec")
        .compile_fds_with_config(files, config)?;
    Ok(())
}
