"""Start worker processes, send them commands and collect their events."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from examples.demo_jobs.worker import Event

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 30.0
STOP_SECONDS = 10.0
"""The longest times for a worker to be ready, and to end when its input has ended."""

_decode = msgspec.json.Decoder(Event).decode


async def within(seconds: float, waiting: Awaitable[object], failure: str) -> None:
    """Wait for a limited time. Raises `TimeoutError` with a text for the user."""
    try:
        await asyncio.wait_for(waiting, seconds)
    except TimeoutError:
        raise TimeoutError(f"{failure} within {seconds:.0f} s") from None


class WorkerProcess:
    """One worker. Its process has ended when the context is left."""

    def __init__(self, number: int, process: Process, on_event: Callable[[Event], None]) -> None:
        self.number = number
        self._ready = asyncio.Event()
        self._process = process
        self._on_event = on_event
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, number: int, servers: str, topic: str, on_event: Callable[[Event], None]) -> Self:
        """Start a process. It waits for `begin`."""
        command = (sys.executable, "-m", "examples.demo_jobs.worker", servers, topic)
        return cls(number, await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE), on_event)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading

    async def wait_ready(self) -> None:
        """Wait until the worker can begin. Raises `TimeoutError`."""
        await within(START_SECONDS, self._ready.wait(), f"worker {self.number} did not start")

    def begin(self) -> None:
        """Let the worker serve messages."""
        self._command(b"start\n")

    def hang(self) -> None:
        """Let every handler that begins from now on hang."""
        self._command(b"hang\n")

    async def kill(self) -> None:
        """Send SIGKILL, and read the events that the worker had printed."""
        self._process.kill()
        await self._process.wait()
        await self._reading

    async def stop(self) -> None:
        """End the worker's input, and wait until it has ended. Raises `TimeoutError`."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await within(STOP_SECONDS, self._process.wait(), f"worker {self.number} did not stop")
        await self._reading

    def _command(self, line: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line)  # a few bytes: the pipe takes them

    async def _read(self) -> None:
        lines = self._process.stdout
        assert lines is not None, "it was started with a pipe"
        async for line in lines:
            event = _decode(line)
            if event.kind == "ready":
                self._ready.set()
            else:
                self._on_event(event)


async def start_workers(
    stack: AsyncExitStack, count: int, servers: str, topic: str, on_event: Callable[[Event], None]
) -> list[WorkerProcess]:
    """Start workers simultaneously, and return them when all are ready. They end with the stack."""
    workers = [
        await stack.enter_async_context(await WorkerProcess.start(number, servers, topic, on_event))
        for number in range(1, count + 1)
    ]
    for worker in workers:
        await worker.wait_ready()
    return workers
