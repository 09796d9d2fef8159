"""Fire the schedules of a queue partition when they are due, and change them on request. Only the leader does either.

A firing is a DATA entry of one message that names the due time, the version and the next due time. The state machine accepts it only while
the schedule awaits it, so a leader that proposes a firing twice, or one that was deposed, makes no second message. Firings are admitted
like other messages: while the partition is full or the disk is, they are late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog
from raftmq.batch_header import HEADER_BYTES, BatchFormatError
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.request_error import RequestError, expired, timed_out
from raftmq.broker.partitions.appends import PartitionAppends, format_error
from raftmq.broker.partitions.pending_append import Applied
from raftmq.broker.partitions.queue.clock import QueueClock
from raftmq.broker.partitions.queue.commands import QueueCommands
from raftmq.broker.partitions.queue.config import QueueConfig
from raftmq.broker.partitions.queue.cron import check_timing
from raftmq.broker.partitions.queue.gate import QueueGate
from raftmq.broker.partitions.queue.schedule_plan import (
    Fire,
    Lookahead,
    ScheduleDefinition,
    Skip,
    decode_definition,
    definition_of,
    due_after,
    encode_definition,
    is_same_rule,
    plan,
)
from raftmq.broker.replica.deadline_timer import DeadlineTimer
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.commands import (
    ANY_VERSION,
    KEEP_DUE,
    NEVER,
    ChangeSchedule,
    DeleteSchedule,
    PutSchedule,
    SkipFirings,
)
from raftmq.fsm.queue.limits import SCHEDULE_BYTES_MAX, SCHEDULES_BYTES_MAX, SCHEDULES_MAX
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Code, Refused, ScheduleChanged
from raftmq.fsm.queue.schedules import ScheduleRow
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import encode_firing, seal_queue_batch, unpack_fields
from raftmq.raft.entry import EntryKind, Proposal
from raftmq.raft.ready import Role, RoleChange

log = structlog.get_logger(__name__)

FIRINGS_MAX: Final = 100
"""Schedules that fire together: a tenth of the messages of an entry. The next ones follow when these are applied."""
PLANNING_SECONDS: Final = 0.005
"""The time of the event loop that one round may take to compute due times. The rest follows in the next round."""
RETRY_SECONDS: Final = 0.5
"""The pause after firings that were refused."""
UNREADABLE_SECONDS: Final = 60.0
"""The pause after a schedule that this broker cannot compute. Another leader may."""
TENANT_REFUSED_SECONDS: Final = 5.0
"""The pause after a schedule whose tenant takes no message. It is longer than a look at all schedules, so that those of other tenants get
their turn."""
NEXT_LOOK_SECONDS: Final = 0.01
"""The pause after a round in which every schedule was refused for its tenant."""
_TENANT_REFUSALS: Final = frozenset({pb.TENANT_FULL, pb.TOO_MANY_TENANTS})
"""Refusals that say nothing about messages of other tenants."""


class ScheduledPartition(Protocol):
    """A queue partition as its schedules see it."""

    replica: Replica[QueuePartition]
    clock: QueueClock
    commands: QueueCommands
    gate: QueueGate
    appends: PartitionAppends

    @property
    def number(self) -> int:
        """Return the number of the partition in its topic."""
        ...

    def home_of(self, key: bytes) -> int:
        """Return the partition into which producers put the messages of a key."""
        ...

    def config(self) -> QueueConfig:
        """Return the topic's settings in force."""
        ...


class ScheduleState(NamedTuple):
    """A schedule after a change."""

    version: int
    next_due_ms: int
    """-1: it does not fire again."""
    is_paused: bool


class QueueSchedules:
    """The schedules of one partition."""

    def __init__(self, loop: asyncio.AbstractEventLoop, partition: ScheduledPartition) -> None:
        self._loop = loop
        self._partition = partition
        self._timer = DeadlineTimer(loop, self._fire_due)
        self._retry_at = 0.0
        self._under_way = 0
        """Proposals of the present round that are not applied yet."""
        self._resting: dict[str, float] = {}
        """Schedules that this broker cannot compute, or whose tenant takes no message, and the loop time of the next attempt."""
        self._ahead: dict[tuple[str, int], Lookahead] = {}
        """Of the schedules that are behind, by name and version."""
        self._throttle = LogThrottle()
        replica = partition.replica
        replica.progress_listeners.append(self._fire_due)
        replica.role_listeners.append(self._on_role)

    def _on_role(self, change: RoleChange) -> None:
        if change.role is not Role.LEADER:
            self._timer.cancel()
            self._resting.clear()
            self._ahead.clear()
            self._retry_at = 0.0

    # ------------------------------------------------------------------------------------------------------------- firing

    def wake(self) -> None:
        """Look again at what is due: the timer does not see that the queue clock jumped, or that a doubted leadership was confirmed."""
        self._fire_due()

    def _fire_due(self) -> None:
        """Begin a round of firings, or set the timer to the next one."""
        replica, clock = self._partition.replica, self._partition.clock
        if self._under_way or not replica.is_leader or replica.applier.is_suspended:
            return
        schedules = replica.state_machine.schedules
        first = schedules.next_due()
        if first is None:
            return
        now, now_ms = self._loop.time(), clock.read_ms()
        if first[0] > now_ms or now < self._retry_at or not clock.is_running:
            wait_ms = max(1, first[0] - now_ms) if clock.is_running else clock.unknown_pause_ms
            self._timer.set(max(self._retry_at, now + wait_ms / 1000))
            return
        self._retry_at = now + RETRY_SECONDS
        names = [
            name
            for name in schedules.due_by(now_ms, FIRINGS_MAX + len(self._resting))
            if self._resting.get(name, 0.0) <= now
        ]
        if names and not self._begin_round(names[:FIRINGS_MAX], now_ms):
            self._retry_at = now + NEXT_LOOK_SECONDS
        if not self._under_way:
            self._timer.set(self._retry_at)

    def _begin_round(self, names: list[str], now_ms: int) -> bool:
        """Propose the next step of each schedule, as far as the time suffices. Return False if all of them rest now."""
        table = self._partition.replica.state_machine.schedules.table
        began_at = self._loop.time()
        payloads: list[bytes] = []
        was_tried = False
        self._partition.appends.start_term()
        for name in names:
            row = table.get(name)
            assert row is not None, "a due schedule exists"
            definition = self._readable(name, row)
            if definition is None or not self._is_home(name, definition):
                continue
            step = self._plan(name, row, definition, now_ms)
            if isinstance(step, Skip):
                was_tried = True
                self._skip(SkipFirings(name, row.version, row.next_due, step.next_due, step.count))
            elif step is not None:
                refusal = self._partition.gate.admit_messages(unpack_fields(definition.message, 0, 1))
                if refusal is not None and refusal.code in _TENANT_REFUSALS:
                    self._rest(name, TENANT_REFUSED_SECONDS)
                elif refusal is not None:
                    was_tried = True
                    break  # the partition is full
                else:
                    was_tried = True
                    payloads.append(
                        encode_firing(name.encode(), row.version, row.next_due, step.next_due, definition.message)
                    )
            if self._loop.time() - began_at > PLANNING_SECONDS:
                break
        if payloads:
            self._propose(payloads)
        return was_tried

    def _plan(self, name: str, row: ScheduleRow, definition: ScheduleDefinition, now_ms: int) -> Fire | Skip | None:
        key = (name, row.version)
        ahead = self._ahead.pop(key, None) or Lookahead()
        step = plan(definition, row.next_due, now_ms, ahead)
        if step is None or NEVER < step.next_due <= now_ms:
            if len(self._ahead) >= SCHEDULES_MAX:
                self._ahead.clear()  # most are those of deleted schedules
            self._ahead[key] = ahead
        return step

    def _readable(self, name: str, row: ScheduleRow) -> ScheduleDefinition | None:
        """Return the definition of a schedule, or None if this broker cannot read it or does not know its time zone."""
        definition = decode_definition(row.definition)
        reason = "its definition is of a newer version" if definition is None else check_timing(definition.timing)
        if not reason:
            self._resting.pop(name, None)
            return definition
        self._rest(name, UNREADABLE_SECONDS)
        if self._throttle.is_due(name):
            log.warning("schedule_not_computed", group_id=self._partition.replica.group_id, reason=reason)
        return None

    def _is_home(self, name: str, definition: ScheduleDefinition) -> bool:
        """Return whether the message of a schedule belongs into this partition. The number of partitions may have changed since it was put."""
        reason = self._reason_against(definition.message, 0)
        if not reason:
            return True
        self._rest(name, UNREADABLE_SECONDS)
        if self._throttle.is_due(name):
            log.warning("schedule_not_fired", group_id=self._partition.replica.group_id, reason=reason)
        return False

    def _rest(self, name: str, seconds: float) -> None:
        """Leave a schedule alone for a while."""
        if len(self._resting) >= SCHEDULES_MAX:
            self._resting.clear()
        self._resting[name] = self._loop.time() + seconds

    def _skip(self, command: SkipFirings) -> None:
        try:
            future = self._partition.commands.submit(command)
        except RequestError:
            return
        self._under_way += 1
        future.add_done_callback(self._on_applied)

    def _propose(self, payloads: list[bytes]) -> None:
        gate = self._partition.gate
        try:
            self._partition.commands.require_clock()
            _, applied = self._partition.replica.propose([Proposal(EntryKind.DATA, one, 1) for one in payloads])
        except RequestError:
            gate.on_refused()
            return
        gate.on_proposed(applied)
        self._under_way += 1
        applied.add_done_callback(self._on_applied)

    def _on_applied(self, done: asyncio.Future[object] | Applied) -> None:
        is_done = not done.cancelled() and done.exception() is None
        self._under_way -= 1
        if not self._under_way:
            if is_done:
                self._retry_at = 0.0
            self._fire_due()

    # ------------------------------------------------------------------------------------------------------------ changing

    async def put(self, request: pb.PutScheduleRequest, deadline: float) -> ScheduleState:
        """Create or replace a schedule. One whose rule stays the same keeps its due times, and a paused one stays paused unless it is
        resumed in so many words: a deploy puts its schedules again, and must not undo the decision of an operator.

        Raises:
            RequestError: INVALID_ARGUMENT, CORRUPT_BATCH, RECORD_TOO_LARGE, VERSION_CONFLICT, TOO_MANY_SCHEDULES, the refusals of
                appends, and those of `QueueCommands.execute`.
        """
        while True:
            try:
                return await self._put(request, deadline)
            except RequestError as error:
                # between the look at the schedule and its change somebody else changed it
                if error.code != pb.VERSION_CONFLICT or request.HasField("version"):
                    raise

    async def _put(self, request: pb.PutScheduleRequest, deadline: float) -> ScheduleState:
        self._require_writes()
        now_ms = self._partition.clock.read_ms()
        wanted = definition_of(request.rule, self._message_of(request.message), now_ms)
        before = self._partition.replica.state_machine.schedule(request.name)
        known = None if before is None else decode_definition(before.definition)
        was_paused = before is not None and before.is_paused
        is_paused = request.is_paused if request.HasField("is_paused") else was_paused
        if before is not None and known is not None and is_same_rule(known, wanted) and before.next_due != NEVER:
            wanted = msgspec.structs.replace(wanted, first_ms=known.first_ms)
            next_due_ms, due = before.next_due, KEEP_DUE
            if was_paused and not is_paused and next_due_ms <= now_ms:
                next_due_ms = due = due_after(wanted.timing, now_ms)  # as `_pause` resumes
        else:
            next_due_ms = due = due_after(wanted.timing, now_ms)
        if next_due_ms == NEVER:
            raise RequestError(
                pb.INVALID_ARGUMENT, f"the schedule {request.name!r} would never fire: its time has passed"
            )
        content = encode_definition(wanted)
        if len(content) > SCHEDULE_BYTES_MAX:
            raise RequestError(
                pb.RECORD_TOO_LARGE,
                f"a schedule has at most {SCHEDULE_BYTES_MAX} bytes with its message, but this one has {len(content)}: let the "
                "message name its data instead",
            )
        seen = 0 if before is None else before.version
        command = PutSchedule(
            request.name, content, due, is_paused, request.version if request.HasField("version") else seen
        )
        return await self._change(command, next_due_ms, deadline)

    def _message_of(self, batch: bytes) -> bytes:
        """Return the message of a batch, without the header."""
        try:
            header = self._partition.gate.check(batch, self._partition.config().batch_bytes_max)
        except BatchFormatError as error:
            raise format_error(error, 0) from None
        if header.record_count != 1 or header.producer_id:
            raise RequestError(
                pb.INVALID_ARGUMENT, "the message of a schedule is a batch of one message without a producer"
            )
        self._require_home(batch, HEADER_BYTES)
        return batch[HEADER_BYTES:]

    def _require_home(self, message: bytes, offset: int) -> None:
        reason = self._reason_against(message, offset)
        if reason:
            raise RequestError(pb.INVALID_ARGUMENT, reason)

    def _reason_against(self, message: bytes, offset: int) -> str:
        """Return why the message of a schedule must not be put into this partition, or an empty text.

        Puts go to the partition of their key, and a schedule is in the partition of its name, which it keeps when its key changes. The
        order of a key holds within a partition only.
        """
        keys = unpack_fields(message, offset, 1).keys
        key = keys[0] if keys is not None else None
        partition = self._partition
        if key is None or (home := partition.home_of(key)) == partition.number:
            return ""
        return (
            f"the topic has ordered.by.key, and the key of the schedule's message belongs to partition {home}, but the schedule's name to "
            f"partition {partition.number}: leave out its key, choose another name, or use a topic with one partition"
        )

    async def change(self, request: pb.ChangeScheduleRequest, deadline: float) -> ScheduleState:
        """Pause or resume a schedule, and fire it now. Raises as `put`, and UNKNOWN_SCHEDULE."""
        if request.pause and request.resume:
            raise RequestError(pb.INVALID_ARGUMENT, "a schedule is paused or resumed, not both")
        row = self._existing(request.name)
        state = ScheduleState(row.version, row.next_due, row.is_paused)
        if request.pause or request.resume:
            if request.resume:
                self._require_writes()
            state = await self._pause(request, deadline)
        elif request.HasField("version") and request.version != row.version:
            raise _conflict(request.name)
        if request.run_now:
            await self._run_now(self._existing(request.name), deadline)
        return state

    async def _pause(self, request: pb.ChangeScheduleRequest, deadline: float) -> ScheduleState:
        while True:
            try:
                return await self._try_pause(request, self._existing(request.name), deadline)
            except RequestError as error:
                # somebody else changed the schedule, so that it has another due time
                if error.code != pb.VERSION_CONFLICT or request.HasField("version"):
                    raise

    async def _try_pause(self, request: pb.ChangeScheduleRequest, row: ScheduleRow, deadline: float) -> ScheduleState:
        next_due_ms, due, version = row.next_due, KEEP_DUE, ANY_VERSION
        now_ms = self._partition.clock.read_ms()
        if request.resume and row.is_paused and NEVER < next_due_ms <= now_ms:
            # a pause is intended: its firings were not missed
            timing = self._definition_of(row).timing
            reason = check_timing(timing)
            if reason:  # of a time zone that this broker lacks
                raise RequestError(pb.INVALID_ARGUMENT, f"the schedule cannot be resumed: {reason}")
            next_due_ms = due = due_after(timing, now_ms)
            version = row.version
        version = request.version if request.HasField("version") else version
        command = ChangeSchedule(request.name, due, request.pause, version)
        return await self._change(command, next_due_ms, deadline)

    async def _run_now(self, row: ScheduleRow, deadline: float) -> None:
        """Enqueue a schedule's message once more."""
        message = self._definition_of(row).message
        self._require_home(message, 0)
        batch, gate = seal_queue_batch(message, message_count=1), self._partition.gate
        self._partition.appends.start_term()
        self._partition.commands.require_clock()
        refusal = gate.admit_messages(unpack_fields(batch, HEADER_BYTES, 1))
        if refusal is not None:
            raise refusal
        if self._loop.time() >= deadline:
            gate.on_refused()
            raise expired()
        try:
            _, applied = self._partition.replica.propose([Proposal(EntryKind.DATA, batch, 1)])
        except RequestError:
            gate.on_refused()
            raise
        gate.on_proposed(applied)
        await asyncio.wait((applied,), timeout=max(0.0, deadline - self._loop.time()))
        if not applied.done():
            raise timed_out()
        applied.result()

    async def delete(self, request: pb.DeleteScheduleRequest, deadline: float) -> None:
        """Delete a schedule. Raises as `put`, and UNKNOWN_SCHEDULE."""
        version = request.version if request.HasField("version") else ANY_VERSION
        await self._change(DeleteSchedule(request.name, version), NEVER, deadline)

    async def _change(
        self, command: PutSchedule | ChangeSchedule | DeleteSchedule, next_due_ms: int, deadline: float
    ) -> ScheduleState:
        result = await self._partition.commands.execute(command, ScheduleChanged, deadline)
        if isinstance(result, Refused):
            raise _REFUSALS.get(result.code, _invalid)(command.name)
        self._resting.pop(command.name, None)  # the reason may be gone
        return ScheduleState(result.version, next_due_ms, not isinstance(command, DeleteSchedule) and command.is_paused)

    def _existing(self, name: str) -> ScheduleRow:
        row = self._partition.replica.state_machine.schedule(name)
        if row is None:
            raise _unknown(name)
        return row

    def _definition_of(self, row: ScheduleRow) -> ScheduleDefinition:
        definition = decode_definition(row.definition)
        if definition is None:
            raise RequestError(pb.UNSUPPORTED_VERSION, "a newer broker wrote this schedule: upgrade this one")
        return definition

    def _require_writes(self) -> None:
        """Refuse like an append: a schedule makes messages."""
        refusal = self._partition.replica.refusal_of_writes()
        if refusal is not None:
            raise refusal


def _unknown(name: str) -> RequestError:
    return RequestError(pb.UNKNOWN_SCHEDULE, f"there is no schedule {name[:249]!r}")


def _conflict(name: str) -> RequestError:
    return RequestError(pb.VERSION_CONFLICT, f"the schedule {name[:249]!r} has another version: list it and try again")


def _too_many(_name: str) -> RequestError:
    return RequestError(
        pb.TOO_MANY_SCHEDULES,
        f"the partition has {SCHEDULES_MAX} schedules already, or {SCHEDULES_BYTES_MAX} bytes of them: delete some, let their messages name "
        "their data instead, or use another topic",
    )


def _invalid(name: str) -> RequestError:
    return RequestError(pb.INVALID_ARGUMENT, f"the schedule {name[:249]!r} breaks a bound of the partition")


_REFUSALS: Final[dict[int, Callable[[str], RequestError]]] = {
    Code.NO_SUCH_SCHEDULE: _unknown,
    Code.VERSION_CONFLICT: _conflict,
    Code.TOO_MANY_SCHEDULES: _too_many,
}
