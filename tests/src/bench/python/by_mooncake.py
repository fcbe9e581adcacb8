"""Mooncake's TransferEngine over TCP. PYTHONPATH has the directory of its package."""

import sys

from mooncake.engine import TransferEngine

import turns

role, size, address = sys.argv[1], int(sys.argv[2]), sys.argv[3]
memory = turns.Memory(size)
engine = TransferEngine()
if engine.initialize(address, "P2PHANDSHAKE", "tcp", "") != 0:
    sys.exit("Mooncake does not start")
if engine.register_memory(memory.address, size) != 0:
    sys.exit("Mooncake does not register memory")


def initiator(name):
    peer, there = name.split("/")
    there = int(there)

    def ended(batch):
        state = engine.transfer_check_status(batch)
        if state < 0:
            sys.exit(f"a write has failed: {state}")
        return state == 1

    def write(places, size, outstanding):
        def post(at):
            return engine.transfer_submit_write(peer, memory.address + at, there + at, size)

        return turns.run(places, outstanding, post, ended)

    def write_pages(lists, size, outstanding):
        def post(pairs):
            ours = [memory.address + source for source, _ in pairs]
            theirs = [there + destination for _, destination in pairs]
            return engine.batch_transfer_async_write(peer, ours, theirs, [size] * len(pairs))

        return turns.run(lists, outstanding, post, ended)

    turns.initiate(memory, write, write_pages)


if role == "target":
    turns.say(f"{address}:{engine.get_rpc_port()}/{memory.address}")
    turns.serve(memory)
else:
    initiator(sys.argv[4])
