"""Decide the next step of a schedule that is due: fire, or pass over firings that were missed.

A definition is the content of a schedule's row that the state machine does not read. Must not know replicas or the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import msgspec
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.cron import At, Cron, Every, Timing, check_timing, next_due
from raftmq.fsm.queue.commands import NEVER
from raftmq.proto import queue_pb2 as pb

MISSED_AFTER_MS: Final = 60_000
"""A firing that is later than this was missed, and only a schedule that catches up makes it. A change of the leader takes less."""
CATCH_UP_MAX: Final = 1_000
"""Missed firings that a schedule makes up for at most. Earlier ones are passed over."""
WALK_MAX: Final = 256
"""Due times that one step computes, about. It bounds the time of a step to a few milliseconds."""
_MINUTE_MS: Final = 60_000


class ScheduleDefinition(msgspec.Struct, frozen=True, array_like=True):
    """A schedule's rule and message, as MessagePack. Fields may be appended. One of `cron`, `every_ms` and `at_ms` is set."""

    cron: str = ""
    timezone: str = ""
    every_ms: int = 0
    first_ms: int = 0
    """The first due time of an interval."""
    at_ms: int = 0
    catch_up: int = 0
    """A number of `CatchUp`."""
    message: bytes = b""
    """The columns and the body of a batch of one message."""

    @property
    def timing(self) -> Timing:
        """Return the rule as the calendar knows it."""
        if self.cron:
            return Cron(self.cron, self.timezone or "UTC")
        return Every(self.every_ms, self.first_ms) if self.every_ms else At(self.at_ms)


_DECODER = msgspec.msgpack.Decoder(ScheduleDefinition)
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Fire:
    """Enqueue the message of the firing that is due."""

    next_due: int


@dataclass(frozen=True, slots=True)
class Skip:
    """Pass over firings."""

    next_due: int
    count: int


@dataclass(slots=True)
class Lookahead:
    """The missed firings of a schedule that makes up for every one, as far as its steps have computed them, so that none does it again."""

    due: int = NEVER
    """The firing from which it counts."""
    place: int = NEVER
    """The last firing that was computed."""
    count: int = 0
    """The firings from `due` to `place`, without one of both."""
    following: int = NEVER
    """The firing from which it counts when the last step was done."""
    passed: int = 0
    """The firings from `due` to `following`, without one of both."""

    def begin(self, due_ms: int) -> None:
        """Count from another firing, if the last step was done."""
        if due_ms == self.due:
            return
        self.count -= self.passed
        if due_ms != self.following or self.count <= 0:
            self.place, self.count = due_ms, 0
        self.due = due_ms


def encode_definition(definition: ScheduleDefinition) -> bytes:
    """Return the content of a schedule's row."""
    return _ENCODER.encode(definition)


def decode_definition(content: bytes) -> ScheduleDefinition | None:
    """Invert `encode_definition`. None: a newer version wrote it in a way that this one cannot read."""
    try:
        return _DECODER.decode(content)
    except (msgspec.MsgspecError, ValueError):
        return None


def definition_of(rule: pb.ScheduleRule, message: bytes, now_ms: int) -> ScheduleDefinition:
    """Return the definition that a rule of the protocol means. Its interval begins now.

    Raises:
        RequestError: INVALID_ARGUMENT.
    """
    given = [name for name in ("cron", "every_ms", "at_ms") if getattr(rule, name)]
    if len(given) != 1:
        raise RequestError(
            pb.INVALID_ARGUMENT, f"a schedule needs exactly one of cron, every_ms and at_ms, not {given or 'none'}"
        )
    if rule.catch_up not in pb.CatchUp.values():
        raise RequestError(pb.INVALID_ARGUMENT, f"the value {rule.catch_up} of catch_up is unknown")
    definition = ScheduleDefinition(
        rule.cron,
        rule.timezone,
        rule.every_ms,
        now_ms + rule.every_ms if rule.every_ms else 0,
        rule.at_ms,
        rule.catch_up,
        message,
    )
    reason = check_timing(definition.timing)
    if reason:
        raise RequestError(pb.INVALID_ARGUMENT, reason)
    return definition


def rule_of(definition: ScheduleDefinition) -> pb.ScheduleRule:
    """Return the rule in terms of the protocol."""
    return pb.ScheduleRule(
        cron=definition.cron,
        timezone=definition.timezone,
        every_ms=definition.every_ms,
        at_ms=definition.at_ms,
        catch_up=cast("pb.CatchUp", definition.catch_up),
    )


def is_same_rule(one: ScheduleDefinition, other: ScheduleDefinition) -> bool:
    """Return whether two schedules are due at the same times, apart from the beginning of an interval."""
    return (one.cron, one.timezone, one.every_ms, one.at_ms) == (
        other.cron,
        other.timezone,
        other.every_ms,
        other.at_ms,
    )


def due_after(timing: Timing, after_ms: int) -> int:
    """Return the first due time after a time, or NEVER."""
    found = next_due(timing, after_ms)
    return NEVER if found is None else found


def plan(definition: ScheduleDefinition, due_ms: int, now_ms: int, ahead: Lookahead) -> Fire | Skip | None:
    """Return the next step of a schedule that awaits the firing of `due_ms`, which is not after now. None: look again, with the same `ahead`.

    The rule must be one that this machine can compute (`check_timing`).
    """
    timing = definition.timing
    if definition.catch_up == pb.FIRE_ALL:
        return _make_up(timing, due_ms, now_ms, ahead)
    following, skipped = due_after(timing, due_ms), 0
    place = due_ms
    while NEVER < following <= now_ms and skipped < WALK_MAX:
        place, skipped = following, skipped + 1
        following = due_after(timing, place)
    if skipped:
        return Skip(place, skipped)
    if definition.catch_up == pb.SKIP_MISSED and now_ms - due_ms > MISSED_AFTER_MS:
        return Skip(following, 1)
    return Fire(following)


def _make_up(timing: Timing, due_ms: int, now_ms: int, ahead: Lookahead) -> Fire | Skip | None:
    """Pass over the firings that are too many to make up for, if there are any, else fire. None: it is not known yet."""
    shortest_ms = timing.interval_ms if isinstance(timing, Every) else _MINUTE_MS
    if now_ms - due_ms < CATCH_UP_MAX * shortest_ms:
        return Fire(due_after(timing, due_ms))
    if isinstance(timing, Every):
        count = (now_ms - due_ms) // timing.interval_ms + 1 - CATCH_UP_MAX
        return Skip(due_ms + count * timing.interval_ms, count) if count > 0 else Fire(due_after(timing, due_ms))
    ahead.begin(due_ms)
    for _ in range(WALK_MAX // 2):
        if ahead.count > CATCH_UP_MAX + WALK_MAX // 2 or not NEVER < ahead.place <= now_ms:
            break
        ahead.place, ahead.count = due_after(timing, ahead.place), ahead.count + 1
    if ahead.count <= CATCH_UP_MAX and NEVER < ahead.place <= now_ms:
        return None
    following, passed = due_ms, 0
    while passed < max(1, min(ahead.count - CATCH_UP_MAX, WALK_MAX // 2)):
        following, passed = due_after(timing, following), passed + 1
    ahead.following, ahead.passed = following, passed
    return Skip(following, passed) if ahead.count > CATCH_UP_MAX else Fire(following)
