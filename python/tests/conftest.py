"""Engines for tests: on 127.0.0.1, with few ports, so that many fit one machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import pytest

import weft

# Nothing here takes a tenth of this on an idle machine.
PATIENCE = 60.0


@pytest.fixture
def engine() -> Iterator[Callable[..., weft.Engine]]:
    """Starts engines, and closes them after the test."""
    engines: list[weft.Engine] = []

    def start(**settings: object) -> weft.Engine:
        engines.append(weft.Engine(**{"port_count": 4, **settings}))  # type: ignore[arg-type]
        return engines[-1]

    yield start
    for each in engines:
        each.close()


@pytest.fixture
def pair(engine: Callable[..., weft.Engine]) -> tuple[weft.Engine, weft.Engine]:
    return engine(), engine()


def pattern(length: int) -> bytes:
    """Bytes that differ from place to place."""
    state, out = 1, bytearray()
    while len(out) < length:
        state = (state * 6364136223846793005 + 99) % 2**64
        out += state.to_bytes(8, "little")
    return bytes(out[:length])


def until(condition: Callable[[], bool]) -> bool:
    """Asks again until it holds, or until patience ends."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        gc.collect()
        time.sleep(0)
    return True
