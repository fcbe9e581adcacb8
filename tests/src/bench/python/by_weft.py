"""The Python module `weft`. PYTHONPATH has the directory of its package, WEFT_MTU the bytes of an IP packet."""

import os
import sys

import weft

import turns

role, size, address = sys.argv[1], int(sys.argv[2]), sys.argv[3]
memory = turns.Memory(size)
engine = weft.Engine(nics=[address], link="udp", mtu=int(os.environ["WEFT_MTU"]))
region = engine.reg_mr(memory.map, weft.Access.WRITE)


def initiator(name):
    def ended(operation):
        operation.wait()
        return True

    def write(places, size, outstanding):
        def post(at):
            return engine.submit_single_write((region, at), (name, at), size)

        return turns.run(places, outstanding, post, ended)

    def write_pages(lists, size, outstanding):
        def post(pairs):
            source, destination = (weft.Pages([at // size for at in side], size) for side in zip(*pairs))
            return engine.submit_paged_writes((region, source), (name, destination), size)

        return turns.run(lists, outstanding, post, ended)

    turns.initiate(memory, write, write_pages)


if role == "target":
    turns.say(region.descriptor)
    turns.serve(memory)
else:
    initiator(sys.argv[4])
