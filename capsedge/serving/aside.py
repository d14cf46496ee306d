"""Work on large requests beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
_SMALL = 2**14  # bytes that take a millisecond or two
# One thread: however many large requests come, one at a time takes the memory that reading it needs.
_READER = ThreadPoolExecutor(1, "capsedge-requests")


async def aside(
    size: int,
    function: Callable[Arguments, Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """The result of a function whose work grows with a size in bytes: at once, or in a thread of its own."""
    if size <= _SMALL:
        return function(*args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_READER, lambda: function(*args, **kwargs))
