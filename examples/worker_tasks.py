"""Handlers for `raftmq worker run`: see the guide to workers.

They run in threads, and `print` writes its `end` on its own, so that two threads' lines could run into each other: each line is one text.
"""

import asyncio
import json

from raftmq import Record


def handle(record: Record) -> None:
    """Print what is to be done. What is no JSON cannot be done, however often it is tried."""
    task = json.loads(record.value or b"")
    print(f"{record.partition}/{record.offset} {(record.key or b'').decode()} {task['do']}\n", end="", flush=True)


async def handle_async(record: Record) -> None:
    """The same on an event loop, for handlers that wait for other services most of the time."""
    await asyncio.sleep(0.01)
    handle(record)


def handle_slowly(record: Record) -> None:
    """The same for work that computes: run it with `--executor process` to use every core."""
    total = sum(number * number for number in range(100_000))
    print(f"{record.partition}/{record.offset} {total % 97}\n", end="", flush=True)
