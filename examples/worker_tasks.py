"""Provide handlers for `raftmq worker run`, which the guide to workers explains.

They run in threads. `print` writes its `end` separately, so that lines of two threads could mix. So each line is printed as one text.
"""

import asyncio
import json

from raftmq import Record


def handle(record: Record) -> None:
    """Print the task. A record that is not JSON fails at every attempt."""
    task = json.loads(record.value or b"")
    print(f"{record.partition}/{record.offset} {(record.key or b'').decode()} {task['do']}\n", end="", flush=True)


async def handle_async(record: Record) -> None:
    """Print the task on an event loop, which suits handlers that mostly wait for other services."""
    await asyncio.sleep(0.01)
    handle(record)


def handle_slowly(record: Record) -> None:
    """Compute for a while. Run it with `--executor process` to use every core."""
    total = sum(number * number for number in range(100_000))
    print(f"{record.partition}/{record.offset} {total % 97}\n", end="", flush=True)
