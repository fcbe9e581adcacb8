"""A hundred devices of one node, each with a queue pair that is connected to one of the other node.

many.py          at the node of the devices: writes to the other by all of them, reads that back and compares it, again and
                 again. For each line that it is given it says when all have done so once more; at the end it ends.
many.py ADDRESS  at the other, until the first has ended.

Neither may get an asynchronous event.
"""

import json
import os
import select
import socket
import sys

from pyverbs import enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

PORT = 18_800
NAMES = [f"weft{number}" for number in range(1, 101)]
BYTES = 64


class End:
    """A queue pair, and memory: what it writes or what is written, and then what it reads."""

    def __init__(self, context):
        self.context = context
        self.pd = PD(context)
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        self.mr = MR(self.pd, 2 * BYTES, access)
        self.cq = CQ(context, 4)
        cap = QPCap(max_send_wr=2, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))

    def name(self):
        return [self.context.query_gid(1, 0).gid, self.qp.qp_num, self.mr.buf, self.mr.rkey]

    def connect(self, peer):
        gid, qp_num, self.address, self.rkey = peer
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = qp_num
        attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=GID(gid), sgid_index=0), is_global=1, port_num=1)
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = 14, 7, 7, 12
        self.qp.to_rts(attr)

    def post(self, opcode, offset):
        wr = SendWR(opcode=opcode, num_sge=1, sg=[SGE(self.mr.buf + offset, BYTES, self.mr.lkey)])
        wr.set_wr_rdma(self.rkey, self.address)
        self.qp.post_send(wr)

    def begin(self, text):
        self.mr.write(text, BYTES)
        self.post(e.IBV_WR_RDMA_WRITE, 0)
        self.post(e.IBV_WR_RDMA_READ, BYTES)

    def end(self, text):
        done = 0
        while done < 2:
            count, found = self.cq.poll()
            for wc in found:
                assert wc.status == e.IBV_WC_SUCCESS, f"{self.context.name}: status {wc.status}"
            done += count
        assert self.mr.read(BYTES, BYTES) == text.encode()


def exchange(stream, ends):
    stream.write(json.dumps([end.name() for end in ends]) + "\n")
    stream.flush()
    for end, peer in zip(ends, json.loads(stream.readline()), strict=True):
        end.connect(peer)
    # The other is connected as well.
    stream.write("connected\n")
    stream.flush()
    assert stream.readline() == "connected\n"


def sockets():
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        # The directory itself is there no more.
        if os.path.lexists(path) and os.readlink(path).startswith("socket:"):
            yield int(name)


def assert_no_event(devices):
    """Nothing is to be read from any socket: each device has one for events, and one that ends with the engine."""
    found = list(sockets())
    assert len(found) >= 2 * devices, found
    poll = select.poll()
    for descriptor in found:
        poll.register(descriptor, select.POLLIN)
    assert poll.poll(0) == []


def go_round(ends, number):
    texts = [f"round {number} of {end.context.name}".ljust(BYTES) for end in ends]
    for end, text in zip(ends, texts):
        end.begin(text)
    for end, text in zip(ends, texts):
        end.end(text)


def write(ends):
    number = 0
    while True:
        is_asked = select.select([sys.stdin], [], [], 0)[0] and os.read(sys.stdin.fileno(), 64)
        if is_asked == b"":
            return
        go_round(ends, number)
        number += 1
        if is_asked:
            print(f"{len(ends)} devices have written and read", flush=True)


if len(sys.argv) > 1:
    context = Context(name="weft0")
    ends = [End(context) for _ in NAMES]
    stream = socket.create_connection((sys.argv[1], PORT)).makefile("rw")
    exchange(stream, ends)
    stream.readline()
else:
    ends = [End(Context(name=name)) for name in NAMES]
    listening = socket.create_server(("", PORT))
    stream = listening.accept()[0].makefile("rw")
    exchange(stream, ends)
    write(ends)
assert_no_event(len({end.context for end in ends}))
if len(sys.argv) == 1:
    stream.write("end\n")
    stream.flush()
    # Its queue pairs go last.
    stream.readline()
