"""How a coroutine waits for an operation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._weft import Operation


async def ended(operation: Operation) -> None:
    """Waits for the end. Raises as `Operation.wait` does."""
    if not operation.done():
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def tell() -> None:
            # On the callback thread. A closed loop has nobody who waits.
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                pass

        if operation._on_end(tell):
            await future
    operation.wait()
