//! A peer writes to memory of a GPU and reads it back; the GPU's own copy is compared with what was sent.
//! `hack/gpu.sh` runs it where there is a GPU.

#![expect(unsafe_code, reason = "memory that the program must not free")]
#![expect(clippy::print_stdout, reason = "the program says what it has done")]

use cudarc::driver::{CudaContext, DevicePtr};
use weft_cuda::{CudaError, Gpu};
use weft_transfer_engine::{
    Access, Options, Outcome, Region, SingleRead, SingleWrite, TransferEngine, TransferEngineConfig,
};

fn main() {
    const BYTES: usize = 5_000_001;
    let gpu = Gpu::open(0).expect("a GPU");
    let stream = CudaContext::new(0).expect("a GPU").default_stream();
    let tensor = stream.alloc_zeros::<u8>(BYTES + 64).expect("memory");
    let (address, _guard) = tensor.device_ptr(&stream);
    stream.synchronize().expect("the zeros are there");
    // SAFETY: the tensor is dropped behind the engines.
    let beyond = unsafe { gpu.region(address, 1 << 50, Box::new(())) };
    assert!(matches!(beyond, Err(CudaError::NotAllocated { .. })));
    // SAFETY: as before.
    let region =
        unsafe { gpu.region(address + 3, BYTES as u64, Box::new(())) }.expect("it is allocated");

    let start = || TransferEngine::start(TransferEngineConfig::default()).expect("it starts");
    let [a, b] = [start(), start()];
    let (_gpu_memory, descriptor) = b.reg_mr(region, Access::ALL).expect("it is registered");
    let written: Vec<u8> = (0..BYTES).map(|index| (index * 7 % 251) as u8).collect();
    let from = a.reg_mr(Region::share(written.clone()), Access::NONE);
    let write = SingleWrite {
        source: (from.expect("it is registered").0, 0),
        destination: (descriptor.clone(), 0),
        bytes: BYTES as u64,
        immediate: Some(1),
    };
    let written_there = a.submit_single_write(&write, Options::default());
    assert_eq!(written_there.expect("it is posted").wait(), Outcome::Done);
    let count = b.expect_imm_count(1, 1, Options::default());
    assert_eq!(count.expect("it is waited for").wait(), Outcome::Done);
    // The GPU itself has them, and nothing beside them.
    let on_gpu = stream.clone_dtoh(&tensor).expect("a copy");
    assert!(on_gpu[3..3 + BYTES] == written[..]);
    assert!(
        on_gpu[..3]
            .iter()
            .chain(&on_gpu[3 + BYTES..])
            .all(|byte| *byte == 0)
    );

    let (back, _) = a.alloc(BYTES as u64).expect("memory");
    let read = SingleRead {
        source: (descriptor, 0),
        destination: (back.clone(), 0),
        bytes: BYTES as u64,
    };
    let read = a
        .submit_read(&read, Options::default())
        .expect("it is posted");
    assert_eq!(read.wait(), Outcome::Done);
    let mut bytes = vec![0; BYTES];
    back.read(0, &mut bytes).expect("all of it");
    assert!(bytes == written);
    println!("{BYTES} bytes went to a GPU and came back");
}
