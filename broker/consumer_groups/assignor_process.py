"""Runs assignors beside the broker: small plans at once, large ones and foreign assignors in a child process.

A plan of a hundred thousand partitions takes a good part of a second, and an assignor that somebody installed may take for
ever: neither may hold up the loop. The child gets requests and gives plans as MessagePack frames over its pipes; one that
does not answer in time, or dies, is replaced.

As a program (`python -m raftmq.broker.consumer_groups.assignor_process`) it is the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from typing import BinaryIO, Final, Protocol

import msgspec
from raftmq.assignors.builtin import BUILTIN_ASSIGNORS
from raftmq.broker.consumer_groups.planner import Plan, PlanRequest, load_assignor, plan

INLINE_SIZE_MAX: Final = 300
"""Members, partitions and names to match that are divided at once: less than a millisecond."""
_LENGTH: Final = struct.Struct("<I")
_FRAME_BYTES_MAX: Final = 256 * 1024 * 1024


class PlanError(Exception):
    """No plan was made: the assignor failed, is not there, or took too long."""


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    plan: Plan | None
    problem: str = ""


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE_REQUEST: Final = msgspec.msgpack.Decoder(PlanRequest).decode
_DECODE_ANSWER: Final = msgspec.msgpack.Decoder(_Answer).decode


class PlanRunner(Protocol):
    """Something that computes plans."""

    async def run(self, request: PlanRequest) -> Plan:
        """Compute a plan. Raises PlanError."""
        ...

    def close(self) -> None:
        """Compute no more."""
        ...


class InlinePlanRunner:
    """Computes on the loop: for the simulator and for tests."""

    async def run(self, request: PlanRequest) -> Plan:
        """See `PlanRunner`."""
        return _plan_here(request)

    def close(self) -> None:
        """See `PlanRunner`."""


class ProcessPlanRunner:
    """Computes beside the loop. One plan at a time: its caller waits for one before it asks for the next."""

    def __init__(self, seconds_max: float) -> None:
        """`seconds_max`: how long one plan may take."""
        self._seconds_max = seconds_max
        self._child: asyncio.subprocess.Process | None = None

    async def run(self, request: PlanRequest) -> Plan:
        """See `PlanRunner`."""
        if request.assignor in BUILTIN_ASSIGNORS and request.size <= INLINE_SIZE_MAX:
            return _plan_here(request)
        try:
            async with asyncio.timeout(self._seconds_max):
                answer = await self._ask(request)
        except TimeoutError as error:
            self.close()
            raise PlanError(f"no answer within {self._seconds_max:g} s") from error
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
            self.close()
            raise PlanError(f"the assignor's process failed: {error!r}") from error
        except asyncio.CancelledError:
            self.close()  # its answer would be taken for that of the next request
            raise
        if answer.plan is None:
            raise PlanError(answer.problem)
        return answer.plan

    def close(self) -> None:
        """See `PlanRunner`."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()

    async def _ask(self, request: PlanRequest) -> _Answer:
        child = self._child
        if child is None or child.returncode is not None:
            child = self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "raftmq.broker.consumer_groups.assignor_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        assert child.stdin is not None
        assert child.stdout is not None
        data = _ENCODE(request)
        child.stdin.write(_LENGTH.pack(len(data)) + data)
        await child.stdin.drain()
        (length,) = _LENGTH.unpack(await child.stdout.readexactly(_LENGTH.size))
        return _DECODE_ANSWER(await child.stdout.readexactly(length))


def _plan_here(request: PlanRequest) -> Plan:
    try:
        return plan(request)
    except (LookupError, ValueError) as error:  # no such assignor; a pattern that another version took
        raise PlanError(str(error)) from error


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """The child: answer until there are no more requests."""
    while len(head := requests.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        data = requests.read(min(length, _FRAME_BYTES_MAX))
        try:
            request = _DECODE_REQUEST(data)
            assignor = load_assignor(request.assignor)
            answer = _Answer(plan(request, {} if assignor is None else {request.assignor: assignor}))
        except Exception as error:  # noqa: BLE001 -- whatever a foreign assignor raises is its group's problem, and told
            answer = _Answer(None, f"assignor failed: {error!r}"[:1000])
        encoded = _ENCODE(answer)
        answers.write(_LENGTH.pack(len(encoded)) + encoded)
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
