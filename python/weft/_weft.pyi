"""Types of the part that is written in Rust. Its docs are in `help(weft)`."""

from collections.abc import Callable, Generator, Iterable
from types import TracebackType
from typing import Any, Literal, Protocol, final, type_check_only

# For type checkers only, which bring it: `collections.abc.Buffer` is there from Python 3.12 on.
from typing_extensions import Buffer, Self

from ._types import Access, Counts, NicPair, Outcome, Pages, SingleWrite, TransferFailed

__all__ = ["Engine", "MemoryRegion", "Operation", "PeerGroup", "Watcher", "_close_all"]

def _close_all() -> None: ...
@type_check_only
class _SupportsDLPack(Protocol):
    def __dlpack_device__(self) -> tuple[Any, Any]: ...
    def __dlpack__(self) -> Any: ...

_OnDone = Callable[[TransferFailed | None], object]
_Local = MemoryRegion | tuple[MemoryRegion, int]
_Remote = str | tuple[str, int]

@final
class Engine:
    def __new__(
        cls,
        *,
        nics: Iterable[str] = ["127.0.0.1"],
        link: Literal["auto", "network", "udp", "tcp", "shm", "xdp"] = "auto",
        port_count: int = 16,
        ports: tuple[int, int] = (20000, 32767),
        workers: int = 1,
        cpus: Iterable[int] | None = None,
        mtu: int = 1500,
        encryption: Literal["off", "required"] = "off",
        stall_timeout: float = 10.0,
        connect_timeout: float = 5.0,
        cancel_timeout: float = 1.0,
        watch_interval: float = 0.00005,
    ) -> Self: ...
    @property
    def main_address(self) -> str: ...
    def link(self, peer: str) -> tuple[str, str] | None: ...
    def nic_pairs(self) -> list[NicPair]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...
    def reg_mr(self, buffer: Buffer | _SupportsDLPack, access: Access = Access.NONE) -> MemoryRegion: ...
    def alloc(self, bytes: int) -> MemoryRegion: ...
    def connect(
        self, peer: str, *, deadline: float = 30.0, on_done: _OnDone | None = None
    ) -> Operation: ...
    def submit_single_write(
        self,
        source: _Local,
        destination: _Remote,
        bytes: int | None = None,
        *,
        immediate: int | None = None,
        deadline: float = 30.0,
        on_done: _OnDone | None = None,
    ) -> Operation: ...
    def submit_paged_writes(
        self,
        source: tuple[MemoryRegion, Pages],
        destination: tuple[str, Pages],
        page_bytes: int,
        *,
        immediate: int | None = None,
        deadline: float = 30.0,
        on_done: _OnDone | None = None,
    ) -> Operation: ...
    def submit_scatter(
        self, writes: Iterable[SingleWrite], *, deadline: float = 30.0, on_done: _OnDone | None = None
    ) -> Operation: ...
    def submit_read(
        self,
        source: _Remote,
        destination: _Local,
        bytes: int | None = None,
        *,
        deadline: float = 30.0,
        on_done: _OnDone | None = None,
    ) -> Operation: ...
    def submit_send(
        self,
        peer: str,
        message: Buffer,
        immediate: int | None = None,
        *,
        deadline: float = 30.0,
        on_done: _OnDone | None = None,
    ) -> Operation: ...
    def submit_recvs(self, bytes: int, count: int, handler: Callable[[bytes, int | None], object]) -> None: ...
    def add_peer_group(self, peers: Iterable[str]) -> PeerGroup: ...
    def submit_barrier(
        self, group: PeerGroup, immediate: int, *, deadline: float = 30.0, on_done: _OnDone | None = None
    ) -> Operation: ...
    def expect_imm_count(
        self, immediate: int, count: int, *, deadline: float = 30.0, on_done: _OnDone | None = None
    ) -> Operation: ...
    def imm_count(self, immediate: int) -> int: ...
    def free_imm(self, immediate: int) -> int: ...
    def alloc_watcher(self, handler: Callable[[int, int], object]) -> Watcher: ...
    def remove_peer(self, peer: str) -> None: ...
    def counts(self) -> Counts: ...

@final
class MemoryRegion:
    @property
    def descriptor(self) -> str: ...
    @property
    def memory(self) -> memoryview: ...
    def __len__(self) -> int: ...
    def deregister(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...

@final
class Operation:
    def wait(self) -> None: ...
    def wait_for(self, seconds: float) -> bool: ...
    def done(self) -> bool: ...
    def outcome(self) -> Outcome | None: ...
    def exception(self) -> TransferFailed | None: ...
    def cancel(self) -> None: ...
    def __await__(self) -> Generator[Any, None, None]: ...
    def _on_end(self, tell: Callable[[], object]) -> bool: ...

@final
class PeerGroup: ...

@final
class Watcher:
    def add(self, value: int) -> None: ...
    @property
    def value(self) -> int: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...
