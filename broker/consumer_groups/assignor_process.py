"""Run assignors: small plans on the event loop, large plans and custom assignors in a child process.

A plan of a hundred thousand partitions takes a good part of a second, and a custom assignor may never return. Neither may block
the event loop. The child receives requests and sends plans as MessagePack frames over its pipes. A child that does not answer in
time, or dies, is replaced.

`python -m raftmq.broker.consumer_groups.assignor_process` runs the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec
from raftmq.assignors.builtin import BUILTIN_ASSIGNORS
from raftmq.broker.consumer_groups.planner import Plan, PlanRequest, load_assignor, plan

INLINE_SIZE_MAX: Final = 300
"""Members, partitions and names to match in a plan that is computed on the event loop. Such a plan takes less than a millisecond."""
_LENGTH: Final = struct.Struct("<I")
_FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
_STANDARD_ERROR: Final = 2
"""The last descriptor that is meant for the child."""


class PlanError(Exception):
    """Raised when no plan was computed: the assignor failed, does not exist, or took too long."""


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    plan: Plan | None
    problem: str = ""


_ENCODE: Final = msgspec.msgpack.Encoder().encode
_DECODE_REQUEST: Final = msgspec.msgpack.Decoder(PlanRequest).decode
_DECODE_ANSWER: Final = msgspec.msgpack.Decoder(_Answer).decode


class PlanRunner(Protocol):
    """Computes plans."""

    async def run(self, request: PlanRequest) -> Plan:
        """Compute a plan. Raises PlanError."""
        ...

    def close(self) -> None:
        """Stop computing plans."""
        ...


class InlinePlanRunner:
    """Computes plans on the event loop, for the simulator and for tests."""

    async def run(self, request: PlanRequest) -> Plan:
        """Compute a plan. Raises PlanError."""
        return _plan_here(request)

    def close(self) -> None:
        """Do nothing: there is no process to end."""


class ProcessPlanRunner:
    """Computes plans in a child process, one at a time: the caller waits for a plan before it requests the next one."""

    def __init__(self, seconds_max: float) -> None:
        """Take `seconds_max`, the longest time that one plan may take."""
        self._seconds_max = seconds_max
        self._child: asyncio.subprocess.Process | None = None

    async def run(self, request: PlanRequest) -> Plan:
        """Compute a plan. Raises PlanError."""
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
            self.close()  # else its answer would be taken for that of the next request
            raise
        if answer.plan is None:
            raise PlanError(answer.problem)
        return answer.plan

    def close(self) -> None:
        """End the child process."""
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
    except (LookupError, ValueError) as error:  # no such assignor, or a pattern that only another version accepts
        raise PlanError(str(error)) from error


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more. This is the child's main loop."""
    while len(head := requests.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        data = requests.read(min(length, _FRAME_BYTES_MAX))
        try:
            request = _DECODE_REQUEST(data)
            assignor = load_assignor(request.assignor)
            answer = _Answer(plan(request, {} if assignor is None else {request.assignor: assignor}))
        except Exception as error:  # noqa: BLE001 -- any error of a custom assignor concerns only its group, which is told
            answer = _Answer(None, f"assignor failed: {error!r}"[:1000])
        encoded = _ENCODE(answer)
        answers.write(_LENGTH.pack(len(encoded)) + encoded)
        answers.flush()


def close_inherited() -> None:
    """Close the broker's descriptors that came along. Those of LMDB's files would keep the space of files that are deleted later."""
    descriptors = Path("/dev/fd")
    for entry in list(descriptors.iterdir()) if descriptors.is_dir() else ():
        if int(entry.name) > _STANDARD_ERROR:
            with contextlib.suppress(OSError):
                os.close(int(entry.name))


if __name__ == "__main__":
    close_inherited()
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # text that an assignor prints is no answer
    serve(sys.stdin.buffer, pipe)
