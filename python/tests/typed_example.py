"""A program that mypy --strict accepts. Where it says `type: ignore`, mypy must find a mistake, else it complains."""

from __future__ import annotations

import array
import asyncio
import mmap

import numpy

import weft


def told(error: weft.TransferFailed | None) -> None:
    if error is not None:
        print(error.peer, error.path, error.stage.lower(), error.cause.lower(), error.outcome.name)


async def all_of(operations: list[weft.Operation]) -> None:
    await asyncio.gather(*operations)
    for operation in operations:
        await operation


def main() -> None:
    with weft.Engine(nics=["127.0.0.1", "127.0.0.2"], mtu=1500, encryption="off") as engine:
        regions = [
            engine.reg_mr(bytearray(8), weft.Access.READ | weft.Access.WRITE),
            engine.reg_mr(array.array("d", [1.0]), access=weft.Access.ALL),
            engine.reg_mr(mmap.mmap(-1, 4096)),
            engine.reg_mr(numpy.zeros(4)),
            engine.alloc(100),
        ]
        source, destination = regions[0], (regions[-1].descriptor, 10)
        write = weft.SingleWrite(source, destination, immediate=3)
        operations = [
            engine.submit_single_write((source, 1), destination, 5, immediate=1, deadline=0.5, on_done=told),
            engine.submit_scatter([write, weft.SingleWrite((source, 2), regions[-1].descriptor, 4)]),
            engine.submit_paged_writes(
                (source, weft.Pages([0, 1], 4)), (regions[-1].descriptor, weft.Pages([1, 2], stride=4, offset=1)), 4
            ),
            engine.submit_read(destination, (source, 4), 4),
            engine.submit_send(engine.main_address, b"bytes", 2),
            engine.submit_barrier(engine.add_peer_group([engine.main_address]), 9),
            engine.expect_imm_count(9, 1),
        ]
        asyncio.run(all_of(operations))
        error: weft.TransferFailed | None = operations[0].exception()
        outcome: weft.Outcome | None = operations[0].outcome()
        view: memoryview = regions[-1].memory
        counts: int = engine.counts().operations + engine.imm_count(9) + engine.free_imm(9)
        print(error, outcome, view[0], counts)
        with engine.alloc_watcher(lambda old, new: print(old + new)) as watcher:
            watcher.add(watcher.value)

        engine.reg_mr("no buffer")  # type: ignore[arg-type]
        engine.submit_single_write(source, source)  # type: ignore[arg-type]
        engine.submit_read(source, source)  # type: ignore[arg-type]
        engine.expect_imm_count("9", 1)  # type: ignore[arg-type]
        engine.submit_single_write(source, destination, immediate="1")  # type: ignore[arg-type]
        engine.submit_single_write(source, destination, on_done=lambda: None)  # type: ignore[arg-type, misc]
        weft.Engine(encryption="sometimes")  # type: ignore[arg-type]
        operations[0].no_such_method()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
