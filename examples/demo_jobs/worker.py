"""Run one worker as a process, so that it can be killed: ``python -m examples.demo_jobs.worker SERVERS TOPIC``.

It obeys lines on its standard input: ``start``, ``hang`` (its handlers never end from then on), and the end of the input, at which it
stops. It prints a line for each `Event`. A job counts as done only when `Message.ack` has returned: the settlement was accepted.
"""

import asyncio
import os
import signal
import sys
import time
from typing import Literal, NoReturn

import msgspec
from raftmq import Message, Queue
from raftmq.errors import LeaseLostError, RaftMQError

from examples.demo_jobs.jobs import Flight, read_flight

HANDLERS = 16
"""Jobs that one worker does simultaneously."""
WORK_SECONDS = 0.004
"""The time for which a handler waits for another service, such as one that sends texts."""
BUSY_FLIGHTS = 10
"""The service is busy at the first attempt for each flight whose number is a multiple of this."""

EventKind = Literal["ready", "begun", "held", "done", "retried", "dead", "lost", "unknown"]
"""``begun``: a handler starts. ``held``: it hangs. ``done``, ``retried``, ``dead``: the settlement was accepted. ``lost``: the lease had ended, and nothing
was changed. ``unknown``: the settlement got no answer."""


class Event(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened to a job."""

    kind: EventKind
    row: int = -1
    attempt: int = 0
    seconds: float = 0.0
    """Wall-clock time of a beginning."""


class NeedsAgentError(Exception):
    """Raised for a flight that no program can help with, however often it tries."""


class BusyError(Exception):
    """Raised when another attempt may succeed."""


def report(event: Event) -> None:
    """Print an event. The line is in the pipe when this returns, so that it survives a SIGKILL."""
    os.write(1, msgspec.json.encode(event) + b"\n")


async def help_passengers(flight: Flight, attempt: int) -> None:
    """Do the job. It fails always for cancelled and diverted flights, and at first for some others."""
    await asyncio.sleep(WORK_SECONDS)
    trouble = flight.trouble
    if trouble == "cancelled":
        raise NeedsAgentError("the flight was cancelled: an agent must find another one")
    if trouble == "diverted":
        raise BusyError("nobody answers at the airport where it landed")
    if attempt == 1 and flight.flight % BUSY_FLIGHTS == 0:
        raise BusyError("the text service is busy")


async def settle(message: Message[bytes]) -> EventKind:
    """Do a job and settle its message by the outcome. Return the event that happened."""
    try:
        try:
            await help_passengers(read_flight(message.value), message.attempt)
        except NeedsAgentError as error:
            await message.reject(str(error))
            return "dead"
        except BusyError as error:
            is_kept = await message.release(None, error=str(error))
            return "retried" if is_kept else "dead"
        await message.ack()
    except LeaseLostError:
        return "lost"
    except RaftMQError:
        return "unknown"
    return "done"


class JobWorker:
    """Serves messages with several handlers, until it is cancelled."""

    def __init__(self, queue: Queue[bytes]) -> None:
        self.is_hanging = False
        self._queue = queue

    async def run(self) -> None:
        """Serve messages without an end."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(HANDLERS):
                tasks.create_task(self._serve())

    async def _serve(self) -> NoReturn:
        while True:
            message = await self._queue.get()
            assert message is not None, "there is no limit to the wait"
            row = int(message.id or -1)
            report(Event("begun", row, message.attempt, time.time()))
            if self.is_hanging:
                report(Event("held", row, message.attempt))
                await asyncio.get_running_loop().create_future()
            report(Event(await settle(message), row, message.attempt))


async def standard_input() -> asyncio.StreamReader:
    """Return a reader of the commands."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def main(servers: str, topic: str) -> None:
    """Obey commands until their end."""
    commands = await standard_input()
    async with Queue(topic, bootstrap_servers=servers) as queue:
        worker = JobWorker(queue)
        report(Event("ready"))
        await commands.readline()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(worker.run())
            while await commands.readline():
                worker.is_hanging = True
            running.cancel()


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches every process of the terminal; this one ends with its input
    asyncio.run(main(*sys.argv[1:]))
