"""Schedules of queue topics: `Admin` offers these functions as methods.

A schedule lives in one partition of its topic, which its name determines. Must not compute due times: the partition's leader does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple, TypeVar
from zlib import crc32

from raftmq.client.base import settings
from raftmq.client.base.texts import check_text
from raftmq.client.codec.queue_batch import TimeColumns, encode_messages
from raftmq.client.connection.resolver import Resolver
from raftmq.client.queue.leader_call import call_leader
from raftmq.client.queue.new_message import (
    CheckedMessage,
    NewMessage,
    check_message,
    check_schedule_name,
    check_version,
    time_ms,
)
from raftmq.client.queue.topic import QueuePartition, QueueTopic
from raftmq.errors import InvalidArgumentError
from raftmq.message_checks import MESSAGE_BYTES_MAX, BatchLimits
from raftmq.methods import (
    CHANGE_SCHEDULE,
    DELETE_SCHEDULE,
    LIST_SCHEDULES,
    PUT_SCHEDULE,
    RequestT,
    ResponseT,
    UnaryMethod,
)
from raftmq.proto import queue_pb2 as pb

T = TypeVar("T")
CatchUp = Literal["skip", "one", "all"]
"""The treatment of firings that were missed while no leader could make them: nothing, one for all, or each (at most 1,000)."""
_CATCH_UPS: Final[dict[str, pb.CatchUp]] = {"skip": pb.SKIP_MISSED, "one": pb.FIRE_ONCE, "all": pb.FIRE_ALL}
_CATCH_UP_NAMES: Final[dict[int, CatchUp]] = {pb.SKIP_MISSED: "skip", pb.FIRE_ONCE: "one", pb.FIRE_ALL: "all"}
_LIMITS = BatchLimits(message_bytes_max=MESSAGE_BYTES_MAX)
PAGE_SCHEDULES: Final = 500
"""Schedules in one answer to a list."""


class ScheduleRule(NamedTuple):
    """The times at which a schedule fires. Exactly one of the first three is given."""

    cron: str | None
    every: timedelta | None
    at: datetime | None
    timezone: str
    catch_up: CatchUp


@dataclass(frozen=True, slots=True)
class ScheduleDescription:
    """A schedule as its partition has it."""

    name: str
    partition: int
    cron: str
    """Five fields, or empty."""
    timezone: str
    every_ms: int
    """The interval, or 0."""
    at_ms: int
    """The single firing in milliseconds since 1970, or 0."""
    catch_up: CatchUp
    is_paused: bool
    version: int
    next_due_ms: int | None
    """The next firing in milliseconds since 1970. None: it will not fire again."""
    last_fired_ms: int | None
    skipped: int
    """Firings that were missed and not made up for."""


class Schedules:
    """Calls about the schedules of one topic."""

    def __init__(self, resolver: Resolver, topic: str, timeout_seconds: float) -> None:
        self._resolver = resolver
        self._topic = QueueTopic(resolver, topic, timeout_seconds)
        self._timeout_seconds = timeout_seconds

    async def put(
        self, name: str, rule: ScheduleRule, message: NewMessage[bytes], *, is_paused: bool | None, version: int | None
    ) -> ScheduleDescription:
        """Create or replace a schedule."""
        wanted = _rule_of(rule)
        info = await self._topic.info()
        checked = check_message(message, None, info.message_bytes_max)
        partition = await self._partition_of(name)
        request = pb.PutScheduleRequest(
            metadata_revision=self._resolver.metadata_revision,
            timeout_ms=int(self._timeout_seconds * 1000),
            topic_id=partition.topic_id,
            partition=partition.partition,
            name=name,
            rule=wanted,
            message=_batch_of(checked),
            version=None if version is None else check_version(version),
        )
        if is_paused is not None:
            request.is_paused = is_paused
        answer = await self._call(partition, PUT_SCHEDULE, request)
        made = pb.Schedule(
            partition=partition.partition,
            name=name,
            rule=wanted,
            is_paused=answer.is_paused,
            version=answer.version,
            next_due_ms=answer.next_due_ms,
        )
        return _described(made)

    async def list_all(self) -> list[ScheduleDescription]:
        """Return all schedules, by name."""
        info = await self._topic.info()
        found: list[ScheduleDescription] = []
        for number, group_id in enumerate(info.group_ids):
            found += await self._list_partition(QueuePartition(info.topic_id, number, group_id))
        return sorted(found, key=lambda schedule: schedule.name)

    async def _list_partition(self, partition: QueuePartition) -> list[ScheduleDescription]:
        found: list[ScheduleDescription] = []
        after = ""
        while True:
            request = pb.ListSchedulesRequest(
                metadata_revision=self._resolver.metadata_revision,
                topic_id=partition.topic_id,
                partitions=[partition.partition],
                after_name=after,
                limit=PAGE_SCHEDULES,
            )
            answer = await self._call(partition, LIST_SCHEDULES, request, is_read=True)
            found += map(_described, answer.schedules)
            if len(answer.schedules) < PAGE_SCHEDULES:
                return found
            after = answer.schedules[-1].name

    async def change(
        self, name: str, *, pause: bool = False, resume: bool = False, run_now: bool = False
    ) -> pb.ChangeScheduleResponse:
        """Pause, resume or run a schedule."""
        partition = await self._partition_of(name)
        request = pb.ChangeScheduleRequest(
            metadata_revision=self._resolver.metadata_revision,
            timeout_ms=int(self._timeout_seconds * 1000),
            topic_id=partition.topic_id,
            partition=partition.partition,
            name=name,
            pause=pause,
            resume=resume,
            run_now=run_now,
        )
        return await self._call(partition, CHANGE_SCHEDULE, request, is_read=not run_now)

    async def delete(self, name: str) -> None:
        """Delete a schedule."""
        partition = await self._partition_of(name)
        request = pb.DeleteScheduleRequest(
            metadata_revision=self._resolver.metadata_revision,
            timeout_ms=int(self._timeout_seconds * 1000),
            topic_id=partition.topic_id,
            partition=partition.partition,
            name=name,
        )
        await self._call(partition, DELETE_SCHEDULE, request)

    async def _partition_of(self, name: str) -> QueuePartition:
        info = await self._topic.info()
        number = crc32(check_schedule_name(name).encode()) % info.schedule_partitions
        return QueuePartition(info.topic_id, number, info.group_ids[number])

    async def _call(
        self,
        partition: QueuePartition,
        method: UnaryMethod[RequestT, ResponseT],
        request: RequestT,
        *,
        is_read: bool = False,
    ) -> ResponseT:
        unchanged: Callable[[ResponseT], ResponseT] = _unchanged
        return await call_leader(
            self._resolver, partition, method, request, unchanged, self._timeout_seconds, is_read=is_read
        )


def _unchanged(answer: T) -> T:
    return answer


def _rule_of(rule: ScheduleRule) -> pb.ScheduleRule:
    given = [name for name in ("cron", "every", "at") if getattr(rule, name) is not None]
    if len(given) != 1:
        raise InvalidArgumentError(f"a schedule needs exactly one of cron, every and at, not {given or 'none'}")
    if rule.catch_up not in _CATCH_UPS:
        raise InvalidArgumentError(f"catch_up {rule.catch_up!r}: use one of {', '.join(_CATCH_UPS)}")
    made = pb.ScheduleRule(catch_up=_CATCH_UPS[rule.catch_up])
    check_text(rule.timezone, "timezone")
    if rule.cron is not None:
        check_text(rule.cron, "cron")
        if len(rule.cron.split()) != 5:
            raise InvalidArgumentError(f"cron needs five fields, such as '0 9 * * mon-fri', not {rule.cron!r}")
        made.cron, made.timezone = rule.cron, rule.timezone
    elif rule.every is not None:
        made.every_ms = _interval_ms(rule.every)
    else:
        made.at_ms = time_ms("at", rule.at)
    return made


def _interval_ms(every: object) -> int:
    if not isinstance(every, timedelta):
        raise TypeError(f"every must be a timedelta, not {every!r}")
    milliseconds = round(every / timedelta(milliseconds=1))
    if milliseconds < settings.SCHEDULE_EVERY_MS_MIN:
        raise InvalidArgumentError(f"every must be at least {settings.SCHEDULE_EVERY_MS_MIN} ms, not {every!r}")
    return milliseconds


def _batch_of(message: CheckedMessage) -> bytes:
    """Return the message that each firing enqueues, as a batch."""
    return encode_messages(
        [message.value],
        keys=None if message.key is None else [message.key],
        tenants=[message.tenant],
        priorities=[message.priority],
        expiry=TimeColumns(None if message.expires_ms is None else [message.expires_ms]),
        headers=[message.headers] if message.headers else None,
        limits=_LIMITS,
    ).seal()


def _described(schedule: pb.Schedule) -> ScheduleDescription:
    rule = schedule.rule
    return ScheduleDescription(
        schedule.name,
        schedule.partition,
        rule.cron,
        rule.timezone,
        rule.every_ms,
        rule.at_ms,
        _CATCH_UP_NAMES.get(rule.catch_up, "skip"),
        schedule.is_paused,
        schedule.version,
        schedule.next_due_ms if schedule.next_due_ms >= 0 else None,
        schedule.last_fired_ms or None,
        schedule.skipped,
    )
