//! Parameter broadcast: after each step a trainer writes its parameters straight into the memory of inference engines.
//!
//! ```text
//! cargo run --release -p weft-transfer-engine --example broadcast
//! ```
//!
//! Each engine is in a thread of this process; nothing would change with processes on several machines. Some parameters are
//! the same at all inference engines, of others each has a slice. One scatter writes all of it. The inference engines do
//! nothing for it. A barrier tells them that the parameters are there; each of them compares a checksum, and says by a
//! barrier of its own that the trainer may write the next ones.
#![expect(clippy::print_stdout, reason = "the program talks to people")]

use std::error::Error;
use std::time::Instant;

use weft_transfer_engine::{
    EngineAddress, MemoryRegion, MrDescriptor, Options, SingleWrite, TransferEngine,
    TransferEngineConfig,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ENGINES: u64 = 3;
const STEPS: u64 = 3;
/// Parameters that all inference engines have.
const SAME_BYTES: u64 = 4 << 20;
/// Parameters of which each has its own.
const SLICE_BYTES: u64 = 2 << 20;
const CHECKSUM_BYTES: u64 = 8;
/// The memory of an inference engine: the same, its slice, the checksum of both.
const MODEL_BYTES: u64 = SAME_BYTES + SLICE_BYTES + CHECKSUM_BYTES;
/// That of the trainer: the same, all slices, all checksums.
const CHECKSUMS_OFFSET: u64 = SAME_BYTES + ENGINES * SLICE_BYTES;
const TRAINER_BYTES: u64 = CHECKSUMS_OFFSET + ENGINES * CHECKSUM_BYTES;

/// Counts at an inference engine, once a step: the parameters are there.
const UPDATED: u32 = 1;
/// Counts at the trainer, once a step for each inference engine: it has the parameters.
const LOADED: u32 = 2;

fn main() -> Result<()> {
    let start = || TransferEngine::start(TransferEngineConfig::default());
    let trainer = start()?;
    let mut engines = Vec::new();
    for _ in 0..ENGINES {
        let engine = start()?;
        let (model, descriptor) = engine.alloc(MODEL_BYTES)?;
        engines.push((engine, model, descriptor));
    }
    // In a real program the descriptors go to the trainer as messages.
    let models: Vec<_> = engines
        .iter()
        .map(|(_, _, descriptor)| descriptor.clone())
        .collect();

    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, (engine, model, _)) in (0..).zip(&engines) {
            let address = trainer.main_address();
            threads.push(scope.spawn(move || infer(number, engine, model, address)));
        }
        train(&trainer, &models)?;
        for thread in threads {
            thread
                .join()
                .map_err(|_| "an inference engine has panicked")??;
        }
        Ok(())
    })
}

fn train(engine: &TransferEngine, models: &[MrDescriptor]) -> Result<()> {
    let peers = models.iter().map(|model| model.engine.clone()).collect();
    let group = engine.add_peer_group(peers)?;
    let (parameters, _) = engine.alloc(TRAINER_BYTES)?;
    let write = |from, model: &MrDescriptor, to, bytes| SingleWrite {
        source: (parameters.clone(), from),
        destination: (model.clone(), to),
        bytes,
        immediate: None,
    };
    let to_model = |(number, model): (u64, _)| {
        let slice = SAME_BYTES + number * SLICE_BYTES;
        let checksum = CHECKSUMS_OFFSET + number * CHECKSUM_BYTES;
        [
            write(0, model, 0, SAME_BYTES),
            write(slice, model, SAME_BYTES, SLICE_BYTES),
            write(checksum, model, SAME_BYTES + SLICE_BYTES, CHECKSUM_BYTES),
        ]
    };
    // The schedule is the same in each step.
    let writes: Vec<SingleWrite> = (0..).zip(models).flat_map(to_model).collect();

    for step in 1..=STEPS {
        learn(step, &parameters)?;
        let begin = Instant::now();
        engine
            .submit_scatter(&writes, Options::default())?
            .wait()
            .into_result()?;
        // There is no order among operations, so the barrier begins when the scatter has ended.
        engine
            .submit_barrier(&group, UPDATED, Options::default())?
            .wait()
            .into_result()?;
        println!(
            "step {step}: {} bytes are at {ENGINES} engines after {:.1?}",
            ENGINES * MODEL_BYTES,
            begin.elapsed()
        );
        // The next step writes over what the engines may still load.
        let loaded = engine.expect_imm_count(LOADED, step * ENGINES, Options::default())?;
        loaded.wait().into_result()?;
    }
    Ok(())
}

/// A made-up step of training: all parameters change.
fn learn(step: u64, parameters: &MemoryRegion) -> Result<()> {
    let mut state = step;
    let mut tensor = |bytes: u64| -> Vec<u8> {
        let next = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            state.to_be_bytes()
        };
        (0..bytes / 8).flat_map(next).collect()
    };
    let same = tensor(SAME_BYTES);
    parameters.write(0, &same)?;
    for number in 0..ENGINES {
        let slice = tensor(SLICE_BYTES);
        parameters.write(SAME_BYTES + number * SLICE_BYTES, &slice)?;
        let checksum = checksum(&[same.as_slice(), &slice].concat());
        let offset = CHECKSUMS_OFFSET + number * CHECKSUM_BYTES;
        parameters.write(offset, &checksum.to_le_bytes())?;
    }
    Ok(())
}

fn infer(
    number: u64,
    engine: &TransferEngine,
    model: &MemoryRegion,
    trainer: &EngineAddress,
) -> Result<()> {
    let trainer = engine.add_peer_group(vec![trainer.clone()])?;
    for step in 1..=STEPS {
        let updated = engine.expect_imm_count(UPDATED, step, Options::default())?;
        updated.wait().into_result()?;
        let mut parameters = vec![0; (SAME_BYTES + SLICE_BYTES) as usize];
        model.read(0, &mut parameters)?;
        let mut expected = [0; CHECKSUM_BYTES as usize];
        model.read(SAME_BYTES + SLICE_BYTES, &mut expected)?;
        let checksum = checksum(&parameters);
        if checksum != u64::from_le_bytes(expected) {
            return Err(format!("step {step}, engine {number}: the checksum differs").into());
        }
        println!("step {step}: engine {number} has the parameters, checksum {checksum:016x}");
        engine
            .submit_barrier(&trainer, LOADED, Options::default())?
            .wait()
            .into_result()?;
    }
    Ok(())
}

/// FNV-1a by words of 8 bytes.
fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0.iter();
    words.fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x0100_0000_01b3)
    })
}
