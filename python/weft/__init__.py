"""Weft moves memory between processes: fast, by address, with a deadline on every operation.

Each process starts an engine. It opens memory to its peers and gives them the descriptor, a str:

>>> import weft
>>> receiver = weft.Engine()
>>> there = receiver.alloc(1024)
>>> descriptor = there.descriptor

A peer writes its own memory there. Nothing is copied before it is sent. The write ends when the bytes are at the other end:

>>> sender = weft.Engine()
>>> data = bytearray(b"some bytes")
>>> here = sender.reg_mr(data)
>>> sender.submit_single_write(here, descriptor, immediate=1).wait()

The receiver sees the count of the immediate 1 grow when the bytes are there:

>>> receiver.expect_imm_count(1, 1).wait()
>>> bytes(there.memory[:10])
b'some bytes'

A failure is an exception that names the peer, the path, the stage and the cause:

>>> receiver.close()
>>> try:
...     sender.submit_single_write(here, descriptor, deadline=5).wait()
... except weft.TransferFailed as failed:
...     print(failed.outcome)
Outcome.FAILED
>>> sender.close()

`help(weft.Engine)` has all operations, with examples.
"""

from __future__ import annotations

from ._types import Access, Counts, NicPair, Outcome, Pages, Reusable, SingleWrite, TransferFailed, Unconfirmed
from ._weft import Engine, MemoryRegion, Operation, PeerGroup, Watcher

__all__ = [
    "Access",
    "Counts",
    "Engine",
    "MemoryRegion",
    "NicPair",
    "Operation",
    "Outcome",
    "Pages",
    "PeerGroup",
    "Reusable",
    "SingleWrite",
    "TransferFailed",
    "Unconfirmed",
    "Watcher",
]
