"""Keep the offsets of consumer groups in one partition: open, commit, reset, forget and read them.

Every change is a command in the partition's own log and is checked when it is applied. Commits that arrive while another one is
under way wait and become one entry. Of the commits of one owner only the latest is kept, because it includes the earlier ones. So
a commit is as quick as a write, and a partition never has more than one entry of commits in flight.

Source: KIP-848 (fencing by member epoch), moved into the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from raftmq.broker.base.request_error import RequestError, expired, timed_out
from raftmq.broker.replica.commands import execute, refused
from raftmq.broker.replica.replica import THROTTLE_RETRY_MS, Replica
from raftmq.fsm.group_offsets import NO_OFFSET, GroupOffset
from raftmq.fsm.log_commands import (
    CommitOffset,
    CommitOffsets,
    Committed,
    ForgetOffsets,
    Forgotten,
    LogPartitionCommand,
    Opened,
    OpenPartition,
    ResetOffset,
    Results,
    encode_command,
)
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata_commands import Rejected
from raftmq.offset_ranges import OffsetRangesError, decode_ranges
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import EntryKind, Proposal

COMMITS_GATHERED_MAX: Final = 1000
"""Owners whose commits may wait in one partition. The next one is throttled. Two groups of ten members have twenty."""
ENTRY_BYTES_MAX: Final = 2 * 1024 * 1024
"""Notes and finished ranges of the commits in one entry, not counting the first. The rest waits for the next entry. A peer frame
holds 8 MiB."""
UTF8_BYTES_MAX: Final = 4
"""The most bytes of one character."""
TOUCH_SECONDS_MAX: Final = 3600.0
"""An unchanged offset that is committed repeatedly is written this often, so that it counts as used."""
TOUCHES_PER_RETENTION: Final = 8
"""An unchanged offset is written at least this many times within the retention of unused offsets."""
FORGOTTEN_AT_ONCE: Final = 1000
"""Groups forgotten by one entry. The next round forgets the rest."""

ResultT = TypeVar("ResultT")


class _Owner(NamedTuple):
    group: str
    member: str
    owner_epoch: int


class _Waiting:
    """The latest commit of an owner, and the callers that wait for it."""

    __slots__ = ("command", "futures")

    def __init__(self, command: CommitOffset) -> None:
        self.command = command
        self.futures: list[asyncio.Future[None]] = []


class PartitionOffsets:
    """The offsets of all consumer groups in one partition."""

    def __init__(self, loop: asyncio.AbstractEventLoop, group: Replica[LogPartition], retention_seconds: float) -> None:
        """Take `retention_seconds`, the time after which offsets of an unused group are forgotten."""
        self._loop = loop
        self._replica = group
        self._touch_ms = int(1000 * min(TOUCH_SECONDS_MAX, retention_seconds / TOUCHES_PER_RETENTION))
        self._waiting: dict[_Owner, _Waiting] = {}
        self._in_flight: asyncio.Future[list[object]] | None = None
        self._groups_in_flight: frozenset[str] = frozenset()
        """The groups with commits in `_in_flight`."""

    # ------------------------------------------------------------------------------------------------ changes

    async def open(self, command: OpenPartition, deadline: float) -> Opened:
        """Fence the partition for a new owner. Raises RequestError FENCED, or as `Replica.propose`."""
        return await self._execute(command, Opened, deadline)

    async def reset(self, command: ResetOffset, deadline: float) -> None:
        """Set an offset under an epoch that no member owns. Raises RequestError FENCED, OFFSET_OUT_OF_RANGE, or as `Replica.propose`."""
        await self._execute(command, Committed, deadline)

    async def forget(self, groups: tuple[str, ...], before_ms: int, deadline: float) -> int:
        """Forget the offsets of groups that were not used since `before_ms`. Return the number of forgotten groups."""
        return (await self._execute(ForgetOffsets(groups, before_ms), Forgotten, deadline)).count

    async def commit(self, command: CommitOffset, deadline: float) -> None:
        """Commit an offset. Cancelling it undoes nothing.

        Raises:
            RequestError: FENCED, OFFSET_OUT_OF_RANGE, INVALID_ARGUMENT; as `Replica.propose`; REQUEST_TIMED_OUT (outcome
                unknown); LEADERSHIP_LOST (outcome unknown).
        """
        if self._loop.time() >= deadline:
            raise expired()
        _check_finished(command)
        self._replica.require_leader()
        if self._changes_nothing(command):
            await self._confirm(deadline)
            return
        owner = _Owner(command.group, command.member, command.owner_epoch)
        waiting = self._waiting.get(owner)
        if waiting is None:
            if len(self._waiting) >= COMMITS_GATHERED_MAX:
                raise RequestError(
                    pb.THROTTLED, "too many commits wait in this partition", retry_after_ms=THROTTLE_RETRY_MS
                )
            waiting = self._waiting[owner] = _Waiting(command)
        waiting.command = command
        future: asyncio.Future[None] = self._loop.create_future()
        waiting.futures.append(future)
        if self._in_flight is None:
            self._flush()
        await asyncio.wait((future,), timeout=max(0.0, deadline - self._loop.time()))
        if not future.done():
            raise timed_out()
        future.result()

    def _changes_nothing(self, command: CommitOffset) -> bool:
        """Return whether the commit would leave the applied state unchanged, fence included, except for a recent enough time.

        While another commit of its group is under way the answer is False, because the state before this commit is not known yet.
        """
        known = self._replica.state_machine.group_offset(command.group)
        if known is None or command.group in self._groups_in_flight:
            return False
        if any(owner.group == command.group for owner in self._waiting):
            return False
        if (command.member, command.owner_epoch) != (known.member, known.owner_epoch):
            return False
        if (command.offset, command.metadata, command.finished) != (known.offset, known.metadata, known.finished):
            return False
        return self._replica.now_ms() - known.touched_time_ms < self._touch_ms

    async def _confirm(self, deadline: float) -> None:
        """Wait until a quorum confirms that no other leader existed when the state was read. It then held every committed entry.

        This costs a round of messages, whereas an entry would stay in every replica's log as long as the records around it.
        Nothing is proposed after the wait, because a later commit of the same owner may have overtaken this one.
        """
        term = self._replica.term
        try:
            async with asyncio.timeout_at(deadline):
                await self._replica.read_index()
        except TimeoutError:
            raise timed_out() from None
        if self._replica.term != term or not self._replica.is_leader:
            raise self._replica.not_leader()

    def _flush(self) -> None:
        waiting = self._take_waiting()
        commands = tuple(one.command for one in waiting)
        payload = encode_command(commands[0] if len(commands) == 1 else CommitOffsets(commands))
        try:
            _, applied = self._replica.propose([Proposal(EntryKind.COMMAND, payload)])
        except RequestError as error:
            for one in waiting:
                _answer(one.futures, error)
            return
        self._in_flight = applied
        self._groups_in_flight = frozenset(command.group for command in commands)
        applied.add_done_callback(lambda done: self._on_applied(waiting, done))

    def _take_waiting(self) -> list[_Waiting]:
        """Remove and return the oldest waiting commits, as many as one entry may hold."""
        taken: list[_Waiting] = []
        size = 0
        for owner, one in list(self._waiting.items()):
            size += len(one.command.metadata) * UTF8_BYTES_MAX + len(one.command.finished)
            if taken and size > ENTRY_BYTES_MAX:
                break
            taken.append(one)
            del self._waiting[owner]
        return taken

    def _on_applied(self, waiting: list[_Waiting], done: asyncio.Future[list[object]]) -> None:
        self._in_flight = None
        self._groups_in_flight = frozenset()
        failure = done.exception() if not done.cancelled() else None
        if failure is not None or done.cancelled():
            for one in waiting:
                _answer(one.futures, failure or timed_out())
        else:
            result = done.result()[0]
            results = result.results if isinstance(result, Results) else (result,)
            # a command that could not be decoded was rejected as a whole
            for one, found in zip(waiting, results * len(waiting) if len(results) == 1 else results, strict=True):
                _answer(one.futures, refused(found) if isinstance(found, Rejected) else None)
        if self._waiting:
            self._flush()

    async def _execute(self, command: LogPartitionCommand, result_type: type[ResultT], deadline: float) -> ResultT:
        return await execute(self._replica, encode_command(command), result_type, deadline)

    # ------------------------------------------------------------------------------------------------ reading

    def is_known(self, group: str) -> bool:
        """Return whether the group ever opened the partition or committed here."""
        return self._replica.state_machine.group_offset(group) is not None

    def of(self, group: str) -> GroupOffset:
        """Return the applied offset of a group. Callers that need the latest one must confirm it first."""
        return self._replica.state_machine.group_offset(group) or GroupOffset()

    def lag_records(self, known: GroupOffset) -> int:
        """Return the number of records at or after the committed offset that still exist, or -1 if nothing was ever committed."""
        machine = self._replica.state_machine
        if known.offset == NO_OFFSET:
            return -1
        return max(0, machine.next_offset - max(known.offset, machine.log_start_offset))

    def finished_records(self, known: GroupOffset) -> int:
        """Return how many of those records are finished according to the last commit."""
        start_offset = self._replica.state_machine.log_start_offset
        ranges = decode_ranges(known.offset, known.finished)
        return sum(max(0, end - max(start, start_offset)) for start, end in ranges)

    # ------------------------------------------------------------------------------------------------ expiry

    async def expire(self, is_alive: Callable[[str], bool], before_ms: int, deadline: float) -> int:
        """Forget groups that are not alive and were not used since `before_ms`, if this replica leads.

        Returns:
            The number of forgotten groups.
        """
        if not self._replica.is_leader:
            return 0
        idle = [
            group
            for group, known in self._replica.state_machine.group_offsets()
            if known.touched_time_ms < before_ms and not is_alive(group)
        ]
        return await self.forget(tuple(idle[:FORGOTTEN_AT_ONCE]), before_ms, deadline) if idle else 0


def _check_finished(command: CommitOffset) -> None:
    """Check everything that needs no state, before proposing. Raises RequestError INVALID_ARGUMENT."""
    try:
        decode_ranges(command.offset, command.finished)
    except OffsetRangesError as error:
        raise RequestError(pb.INVALID_ARGUMENT, str(error)) from None


def _answer(futures: list[asyncio.Future[None]], error: BaseException | None) -> None:
    for future in futures:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                future.add_done_callback(
                    lambda done: done.exception()
                )  # retrieve it, because the request may have ended
