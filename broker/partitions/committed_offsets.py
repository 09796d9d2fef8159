"""Keep the offsets of consumer groups in one partition: open, commit, reset, forget and read them.

Every change is a command in the partition's own log and is checked when it is applied. Commits are gathered (`gathered_commands`), one
entry of them in flight. Of the waiting commits of one owner only the latest is kept, because it includes the earlier ones.

Source: KIP-848 (fencing by member epoch), moved into the partition.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from raftmq.broker.base.request_error import RequestError, expired, timed_out
from raftmq.broker.replica.commands import execute, refused
from raftmq.broker.replica.gathered_commands import GatheredCommands, GatheringLimits
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.group_offsets import COMMIT_METADATA_BYTES_MAX, NO_OFFSET, GroupOffset
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
from raftmq.fsm.tables import KEY_TEXT_BYTES_MAX, is_key_text
from raftmq.offset_ranges import OffsetRangesError, decode_ranges
from raftmq.proto import queue_pb2 as pb

COMMITS_GATHERED_MAX: Final = 1000
"""Owners whose commits may wait in one partition. The next one is throttled. Two groups of ten members have twenty."""
ENTRY_BYTES_MAX: Final = 2 * 1024 * 1024
"""Notes and finished ranges of the commits in one entry, not counting the first. The rest waits for the next entry. A peer frame
holds 8 MiB."""
GATHERING: Final = GatheringLimits(COMMITS_GATHERED_MAX, COMMITS_GATHERED_MAX, ENTRY_BYTES_MAX, entries_in_flight_max=1)
UTF8_BYTES_MAX: Final = 4
"""The most bytes of one character."""
TOUCH_SECONDS_MAX: Final = 3600.0
"""An unchanged offset that is committed repeatedly is written this often, so that it counts as used."""
TOUCHES_PER_RETENTION: Final = 8
"""An unchanged offset is written at least this many times within the retention of unused offsets."""
TOUCHED_SECONDS_MAX: Final = TOUCH_SECONDS_MAX * (1 + 1 / TOUCHES_PER_RETENTION)
"""An offset that is committed repeatedly was touched within this time, whatever the retention was."""
FORGOTTEN_AT_ONCE: Final = 1000
"""Groups forgotten by one entry. The next round forgets the rest."""

ResultT = TypeVar("ResultT")


class _Owner(NamedTuple):
    group: str
    member: str
    owner_epoch: int


class _Watch(NamedTuple):
    """A time for which this replica has led and touched offsets for a retention that was not lowered."""

    term: int
    retention_seconds: float
    since: float
    """A time of the event loop."""


class PartitionOffsets:
    """The offsets of all consumer groups in one partition."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, group: Replica[LogPartition], retention_seconds: Callable[[], float]
    ) -> None:
        """Take `retention_seconds`, which returns the time after which offsets of an unused group are forgotten."""
        self._loop = loop
        self._replica = group
        self._retention_seconds = retention_seconds
        self._commits = GatheredCommands[_Owner, CommitOffset](loop, group, _encode_commits, _results_of, GATHERING)
        self._under_way: Counter[str] = Counter()
        """Commits of each consumer group that have no result yet."""
        self._watch = _Watch(-1, 0.0, 0.0)

    # ------------------------------------------------------------------------------------------------ changes

    async def open(self, command: OpenPartition, deadline: float) -> Opened:
        """Fence the partition for a new owner. Raises RequestError FENCED, NOT_READY, or as `Replica.propose`."""
        self._require_time()
        return await self._execute(command, Opened, deadline)

    async def reset(self, command: ResetOffset, deadline: float) -> None:
        """Set an offset under an epoch that no member owns.

        Raises RequestError FENCED, OFFSET_OUT_OF_RANGE, NOT_READY, or as `Replica.propose`.
        """
        self._require_time()
        await self._execute(command, Committed, deadline)

    async def forget(self, groups: tuple[str, ...], before_ms: int, deadline: float) -> int:
        """Forget the offsets of groups that were not used since `before_ms`. Return the number of forgotten groups."""
        return (await self._execute(ForgetOffsets(groups, before_ms), Forgotten, deadline)).count

    async def commit(self, command: CommitOffset, deadline: float) -> None:
        """Commit an offset. Cancelling it undoes nothing.

        Raises:
            RequestError: FENCED, OFFSET_OUT_OF_RANGE, INVALID_ARGUMENT, NOT_READY; as `Replica.propose`; REQUEST_TIMED_OUT (outcome
                unknown); LEADERSHIP_LOST (outcome unknown).
        """
        if self._loop.time() >= deadline:
            raise expired()
        _check(command)
        self._replica.require_leader()
        if self._changes_nothing(command):
            await self._confirm(deadline)
            return
        self._require_time()
        owner = _Owner(command.group, command.member, command.owner_epoch)
        future = self._commits.submit(owner, command, _size_of(command))
        self._under_way[command.group] += 1
        future.add_done_callback(lambda _: self._on_result(command.group))
        await asyncio.wait((future,), timeout=max(0.0, deadline - self._loop.time()))
        if not future.done():
            raise timed_out()
        result = future.result()
        if isinstance(result, Rejected):
            raise refused(result)

    def _require_time(self) -> None:
        """Raise RequestError unless this replica leads, and its broker's clock was compared: offsets expire by the time of their last use."""
        self._replica.require_leader()
        refusal = self._replica.refusal_of_time()
        if refusal is not None:
            raise refusal

    def _on_result(self, group: str) -> None:
        self._under_way[group] -= 1
        if not self._under_way[group]:
            del self._under_way[group]

    def _changes_nothing(self, command: CommitOffset) -> bool:
        """Return whether the commit would leave the applied state unchanged, fence included, except for a recent enough time.

        While another commit of its group is under way the answer is False, because the state before this commit is not known yet.
        """
        known = self._replica.state_machine.group_offset(command.group)
        if known is None or command.group in self._under_way:
            return False
        if (command.member, command.owner_epoch) != (known.member, known.owner_epoch):
            return False
        if (command.offset, command.metadata, command.finished) != (known.offset, known.metadata, known.finished):
            return False
        touch_ms = 1000 * min(TOUCH_SECONDS_MAX, self._retention_seconds() / TOUCHES_PER_RETENTION)
        return self._replica.now_ms() - known.touched_time_ms < int(touch_ms)

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

    def kept_seconds(self) -> float:
        """Return the time for which unused offsets are kept at this moment: the retention, or longer after it was lowered.

        For example the retention was a week, so an offset in use was touched an hour ago. An operator lowers it to half an hour. The offset
        must survive until its next commit. So a retention that is shorter than an earlier leader's interval of touches counts only when
        this leader has touched offsets for that whole time.
        """
        now, term, retention = self._loop.time(), self._replica.term, self._retention_seconds()
        watch = self._watch
        if watch.term != term or retention < watch.retention_seconds:
            watch = _Watch(term, retention, now)
        self._watch = watch._replace(retention_seconds=retention)
        if now - watch.since >= retention:
            return retention
        return max(retention, TOUCHED_SECONDS_MAX)

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


def _check(command: CommitOffset) -> None:
    """Check everything that needs no state, before proposing: an entry that is too large fails all of its commits.

    Raises RequestError INVALID_ARGUMENT.
    """
    if command.member and not is_key_text(command.member):
        raise RequestError(pb.INVALID_ARGUMENT, f"a member id has at most {KEY_TEXT_BYTES_MAX} bytes")
    if len(command.metadata.encode()) > COMMIT_METADATA_BYTES_MAX:
        raise RequestError(pb.INVALID_ARGUMENT, f"a commit's note has at most {COMMIT_METADATA_BYTES_MAX} bytes")
    try:
        decode_ranges(command.offset, command.finished)
    except OffsetRangesError as error:
        raise RequestError(pb.INVALID_ARGUMENT, str(error)) from None


def _size_of(command: CommitOffset) -> int:
    return len(command.metadata) * UTF8_BYTES_MAX + len(command.finished)


def _encode_commits(commands: Sequence[CommitOffset]) -> bytes:
    return encode_command(commands[0] if len(commands) == 1 else CommitOffsets(tuple(commands)))


def _results_of(result: object, count: int) -> Sequence[object]:
    """Return the result of each commit of an entry."""
    if isinstance(result, Results):
        return result.results
    return [result] * count  # a single commit, or a rejection of the whole entry
