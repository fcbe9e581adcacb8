"""NIXL with UCX. UCX_TLS and UCX_NET_DEVICES say over what, PYTHONPATH has NIXL's folder `nixl_cu12`."""

import base64
import pickle
import sys

# NIXL without its package, which asks for numpy. All that moves bytes is in here.
import _bindings as nixl

import turns

role, size = sys.argv[1], int(sys.argv[2])
memory = turns.Memory(size)
# Without a thread of its own: NIXL goes on when it is asked how far it is.
agent = nixl.nixlAgent(role, nixl.nixlAgentConfig(False))
agent.createBackend("UCX", {})
region = nixl.nixlRegDList(nixl.DRAM_SEG)
region.addDesc((memory.address, size, 0, ""))
agent.registerMem(region)


def initiator(name):
    metadata, there = pickle.loads(base64.b64decode(name))
    peer = agent.loadRemoteMD(metadata).decode()

    def ended(request):
        state = agent.getXferStatus(request)
        if state not in (nixl.NIXL_SUCCESS, nixl.NIXL_IN_PROG):
            sys.exit(f"a write has failed: {state}")
        return state == nixl.NIXL_SUCCESS

    def post(request):
        agent.postXferReq(request)
        return request

    def request(pairs, size):
        ours, theirs = nixl.nixlXferDList(nixl.DRAM_SEG), nixl.nixlXferDList(nixl.DRAM_SEG)
        for source, destination in pairs:
            ours.addDesc((memory.address + source, size, 0))
            theirs.addDesc((there + destination, size, 0))
        return agent.createXferReq(nixl.NIXL_WRITE, ours, theirs, peer, b"")

    def measure(lists, size, outstanding):
        # Before the clock starts: NIXL posts a request that was made before, as often as a program likes.
        requests = [request(pairs, size) for pairs in lists]
        took = turns.run(requests, outstanding, post, ended)
        for made in requests:
            agent.releaseXferReq(made)
        return took

    def write(places, size, outstanding):
        return measure([[(at, at)] for at in places], size, outstanding)

    turns.initiate(memory, write, measure)


if role == "target":
    turns.say(base64.b64encode(pickle.dumps((agent.getLocalMD(), memory.address))).decode())
    turns.serve(memory, lambda: agent.getNotifs({}))
else:
    initiator(sys.argv[4])
