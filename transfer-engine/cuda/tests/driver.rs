//! A machine without NVIDIA's driver. Where there is a GPU, `hack/gpu.sh` runs `examples/write_and_read.rs`.

use weft_cuda::{CudaError, Gpu};

#[test]
fn a_machine_without_a_driver_is_told_what_is_missing() {
    if let Err(error) = Gpu::open(0) {
        assert!(matches!(error, CudaError::NoDriver), "{error}");
        assert!(error.to_string().contains("libcuda.so.1"), "{error}");
    }
}
