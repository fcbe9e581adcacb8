"""Writes 8 MiB from one node's memory into another's by NIXL.

`python3 write.py` waits at one node, `python3 write.py ADDRESS` writes from another one. UCX_TLS and UCX_NET_DEVICES say by
which device, PYTHONPATH has NIXL's folder `nixl_cu12`, and HOME is one that NIXL may look into, or it fails.
"""

import array
import ctypes
import pickle
import socket
import sys

# NIXL without its package, which asks for numpy. All that moves bytes is in here.
import _bindings as nixl

PORT = 18_600
BYTES = 8 << 20
NOTE = b"written"
# No eight bytes of it are alike.
PATTERN = array.array("Q", range(1, BYTES // 8 + 1)).tobytes()


class Agent:
    """NIXL with UCX and nothing else, and the memory that is written from or into."""

    def __init__(self, name):
        # Without a thread of its own, which never rests: NIXL goes on when it is asked how far it is.
        self.nixl = nixl.nixlAgent(name, nixl.nixlAgentConfig(False))
        self.nixl.createBackend("UCX", {})
        self.memory = ctypes.create_string_buffer(BYTES)
        region = nixl.nixlRegDList(nixl.DRAM_SEG)
        region.addDesc((self.address(), BYTES, 0, ""))
        self.nixl.registerMem(region)

    def address(self):
        return ctypes.addressof(self.memory)

    def wait_for_note(self):
        notes = {}
        while not notes:
            notes = self.nixl.getNotifs({})
        return notes

    def write_to(self, name, address):
        ours, theirs = nixl.nixlXferDList(nixl.DRAM_SEG), nixl.nixlXferDList(nixl.DRAM_SEG)
        ours.addDesc((self.address(), BYTES, 0))
        theirs.addDesc((address, BYTES, 0))
        request = self.nixl.createXferReq(nixl.NIXL_WRITE, ours, theirs, name, NOTE)
        state = self.nixl.postXferReq(request)
        while state == nixl.NIXL_IN_PROG:
            state = self.nixl.getXferStatus(request)
        self.nixl.releaseXferReq(request)
        return state


def wait():
    # Before NIXL begins: who waits for this port then meets its end, if it fails.
    with socket.create_server(("", PORT)) as server:
        agent = Agent("target")
        peer, _ = server.accept()
    with peer:
        peer.sendall(pickle.dumps((agent.nixl.getLocalMD(), agent.address())))
        peer.shutdown(socket.SHUT_WR)
        notes = agent.wait_for_note()
        if notes != {"writer": [NOTE]}:
            sys.exit(f"another note came: {notes}")
        if agent.memory.raw != PATTERN:
            pairs = zip(agent.memory.raw, PATTERN)
            differ = sum(ours != theirs for ours, theirs in pairs)
            sys.exit(f"{differ} of {BYTES} bytes are not what was written")
        print(f"{BYTES} bytes have come")


def write(address):
    agent = Agent("writer")
    agent.memory.raw = PATTERN
    with socket.create_connection((address, PORT)) as peer:
        told = peer.makefile("rb").read()
        if not told:
            sys.exit("the other side has failed")
        metadata, memory = pickle.loads(told)
        name = agent.nixl.loadRemoteMD(metadata).decode()
        state = agent.write_to(name, memory)
        if state != nixl.NIXL_SUCCESS:
            sys.exit(f"the write has failed: {state}")
        # Until the other side has looked at it.
        peer.recv(1)
    print(f"{BYTES} bytes are written")


if len(sys.argv) == 1:
    wait()
else:
    write(sys.argv[1])
