"""What is plain in the interface: flags, outcomes, exceptions and tuples."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ._weft import MemoryRegion


class Access(enum.IntFlag):
    """What peers may do to a region. Combine them with `|`.

    >>> import weft
    >>> weft.Access.READ | weft.Access.WRITE in weft.Access.ALL
    True
    """

    NONE = 0
    """Nothing: the memory is the source of own writes."""
    WRITE = 1
    """Write to it. Own reads write to it too."""
    READ = 2
    """Read it."""
    ATOMIC = 4
    """Change words of it."""
    ALL = 7
    """All of it."""


class Outcome(enum.Enum):
    """How an operation ended. It ends once."""

    DONE = 1
    """The bytes of a write or a send are at the other end, or those of a read here; a count is reached."""
    REUSABLE = 2
    """It was stopped, and no byte of it lands any more: the memory at both ends may be reused.

    Some bytes may have landed before."""
    UNCONFIRMED = 3
    """It was stopped, and the peer has not confirmed that: bytes may still land."""
    FAILED = 4
    """It failed. Bytes may still land, unless the stage is `Connect` or `Post`."""


class TransferFailed(Exception):
    """An operation has not done its work."""

    peer: str | None
    """The peer; None for a count, which any peer may reach."""
    path: str | None
    """The two ends of the connection, once there is one."""
    stage: str
    """How far the operation was: `Connect`, `Post`, `Transfer` or `Count`. At `Connect` and `Post` no byte has left."""
    cause: str
    """Why it ended, a stable name such as `PeerEnded`. The text of the exception says more, and what to do."""
    outcome: Outcome = Outcome.FAILED
    """The same as `Operation.outcome()`."""

    def __init__(self, text: str, peer: str | None, path: str | None, stage: str, cause: str) -> None:
        super().__init__(text, peer, path, stage, cause)
        self.peer = peer
        self.path = path
        self.stage = stage
        self.cause = cause

    def __str__(self) -> str:
        return str(self.args[0])


class Reusable(TransferFailed):
    """It was stopped by `cancel()` or its deadline, and no byte of it lands any more: the memory may be reused."""

    outcome = Outcome.REUSABLE


class Unconfirmed(TransferFailed):
    """It was stopped by `cancel()` or its deadline, and the peer has not confirmed that: bytes may still land."""

    outcome = Outcome.UNCONFIRMED


class Pages(NamedTuple):
    """Pages of a region: page `indices[i]` begins at `offset + indices[i] * stride` bytes."""

    indices: Sequence[int]
    """Which pages."""
    stride: int
    """Bytes from the beginning of a page to that of the next."""
    offset: int = 0
    """Where page 0 begins."""


class SingleWrite(NamedTuple):
    """A write of `Engine.submit_scatter`, with the arguments of `Engine.submit_single_write`."""

    source: MemoryRegion | tuple[MemoryRegion, int]
    """The region, or (region, offset), to write from."""
    destination: str | tuple[str, int]
    """The peer's descriptor, or (descriptor, offset), to write to."""
    bytes: int | None = None
    """How many bytes; None writes to the end of the source."""
    immediate: int | None = None
    """Counts once at the peer when all bytes are there."""


class NicPair(NamedTuple):
    """The paths between a NIC of an engine and one of its peers."""

    here: str
    """The address of the engine's NIC."""
    there: str
    """That of the peer's."""
    paths: int
    """How many paths there are."""
    live_paths: int
    """Those that carry data: 0 where the two do not reach each other."""
    sent_chunks: int
    """Chunks sent, resends included."""
    lost_chunks: int
    """Those of them that were declared lost."""


class Counts(NamedTuple):
    """What an engine has: a program that leaks sees it here."""

    peers: int
    """Peers that this engine has connected to, or is connecting to."""
    connections: int
    """Connections of the NICs."""
    operations: int
    """Operations that have not ended."""
    counters: int
    """Counters of immediates."""
    regions: int
    """Registered regions, with those of receives."""


for _type in (Access, Outcome, TransferFailed, Reusable, Unconfirmed, Pages, SingleWrite, NicPair, Counts):
    # Where users find them.
    _type.__module__ = "weft"
