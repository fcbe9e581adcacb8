"""Parameter broadcast: after each step a trainer writes its parameters into the memory of three inference engines.

    pip install ./python numpy
    python examples/broadcast.py

Each is a process. Some parameters are the same at all inference engines, of others each has a slice. One scatter writes all
of it: the inference engines do nothing for it. A barrier to the group of them tells them that the parameters are there. Each
compares a checksum, and says by a barrier of its own that the trainer may write the next ones.
"""

import multiprocessing
import time
import zlib

import numpy
import weft

ENGINES, STEPS = 3, 3
SAME, SLICE = 1 << 20, 1 << 19  # parameters that all have, and those of a slice
UPDATED, LOADED = 1, 2  # immediates, each counts once a step: at an inference engine; for each of them at the trainer

# The memory of an inference engine.
MODEL = numpy.dtype([("same", numpy.float32, SAME), ("slice", numpy.float32, SLICE), ("checksum", numpy.uint32)])


def checksum_of(same, own_slice):
    return zlib.crc32(own_slice, zlib.crc32(same))


def train(engine, models, group):
    """Writes the parameters of all steps into models, by their descriptors."""
    same, slices = numpy.zeros(SAME, numpy.float32), numpy.zeros((ENGINES, SLICE), numpy.float32)
    checksums = numpy.zeros(ENGINES, numpy.uint32)
    sources = [engine.reg_mr(array) for array in (same, slices, checksums)]

    # The schedule is the same in each step: all of `same`, and this engine's part of the others.
    offsets = [MODEL.fields[name][1] for name in MODEL.names]
    writes = []
    for number, model in enumerate(models):
        starts = [0, number * slices[0].nbytes, number * checksums.itemsize]
        sizes = [same.nbytes, slices[0].nbytes, checksums.itemsize]
        for source, start, offset, size in zip(sources, starts, offsets, sizes):
            writes.append(weft.SingleWrite((source, start), (model, offset), size))

    random = numpy.random.default_rng(1)
    for step in range(1, STEPS + 1):
        # A made-up step: all parameters change.
        same += random.standard_normal(SAME, numpy.float32)
        slices += random.standard_normal((ENGINES, SLICE), numpy.float32)
        checksums[:] = [checksum_of(same, each) for each in slices]
        begin = time.monotonic()
        engine.submit_scatter(writes).wait()
        # There is no order among operations, so the barrier begins when the scatter has ended.
        engine.submit_barrier(group, UPDATED).wait()
        took = time.monotonic() - begin
        print(f"step {step}: {ENGINES * MODEL.itemsize} bytes are at {ENGINES} engines after {took * 1000:.1f} ms")
        # The next step writes over what the engines may still load.
        engine.expect_imm_count(LOADED, step * ENGINES).wait()


def infer(number, trainer, pipe):
    """An inference engine."""
    with weft.Engine() as engine:
        region = engine.alloc(MODEL.itemsize)
        model = numpy.frombuffer(region.memory, MODEL)[0]
        pipe.send((engine.main_address, region.descriptor))
        trainer = engine.add_peer_group([trainer])
        for step in range(1, STEPS + 1):
            engine.expect_imm_count(UPDATED, step).wait()
            checksum = checksum_of(model["same"], model["slice"])
            if checksum != model["checksum"]:
                raise RuntimeError(f"step {step}, engine {number}: the checksum differs")
            pipe.send(checksum)
            engine.submit_barrier(trainer, LOADED).wait()


def main():
    context = multiprocessing.get_context("spawn")
    with weft.Engine() as engine:
        processes = []
        for number in range(ENGINES):
            # In a real program, the addresses and descriptors are messages.
            pipe, there = context.Pipe()
            process = context.Process(target=infer, args=(number, engine.main_address, there), daemon=True)
            process.start()
            processes.append((process, pipe))
        peers, models = zip(*(pipe.recv() for _, pipe in processes))
        train(engine, models, engine.add_peer_group(peers))
        for number, (process, pipe) in enumerate(processes):
            for step in range(1, STEPS + 1):
                print(f"step {step}: engine {number} has the parameters, checksum {pipe.recv():08x}")
            process.join()


if __name__ == "__main__":
    main()
