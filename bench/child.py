"""Run a module of this folder as a process of its own, and read the lines that it prints.

In the process of a load a measurement would wait for the load's own event loop.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def child(on_line: Callable[[str], None], module: str, *arguments: str) -> AsyncIterator[asyncio.Task[None]]:
    """Run `python -m module` until the block ends, after its first line. The yielded task is done if it ends before."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments), stdout=asyncio.subprocess.PIPE
    )
    lines = process.stdout
    assert lines is not None

    async def read() -> None:
        async for line in lines:
            on_line(line.decode())

    await lines.readline()  # the first one waits for connections
    reader = asyncio.create_task(read())
    try:
        yield reader
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await reader
