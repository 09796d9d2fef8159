"""Compute when a schedule is due next: by a cron expression in a time zone, at an interval, or at one point in time.

Only leaders call it. The result travels in an entry, because the time zone data of two machines may differ.

Cron expressions have the five fields of Debian's cron (minute, hour, day of month, month, day of week), and no seconds. `cronsim`
evaluates them, with its rules for changes between standard and summer time:

- An expression for certain times (minute and hour do not begin with `*`) is due once a day. A time that the spring change skips is
  due at the end of the gap: `30 2 * * *` is due at 03:00. A time that the autumn change repeats is due the first time only.
- An expression for every hour, or for every so many minutes, follows the time that really passes: it is due twice in the repeated
  hour, and not at all in the skipped one.

Every due time is after the given one, also where a rule moves one. Must not know topics or messages. Source: crontab(5) of Debian,
section "daylight saving time".
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, assert_never
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

EXPRESSION_LENGTH_MAX: Final = 200
"""Maximum characters of a cron expression. A list of all minutes has 169."""
TIMEZONE_LENGTH_MAX: Final = 64
"""Maximum characters of the name of a time zone. The longest that exists has 32."""
EVERY_MS_MIN: Final = 1000
"""The shortest interval: each firing takes an entry of the log."""
EVERY_MS_MAX: Final = 366 * 24 * 3600 * 1000
"""The longest interval: a year."""
TIME_MS_MAX: Final = 4_102_444_800_000
"""The beginning of the year 2100. Time zones are not known much longer, and `cronsim` looks 50 years ahead."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CHECK_FROM_MS: Final = 1_735_689_600_000
"""The beginning of 2025, from which an expression must match within 50 years."""


class Cron(NamedTuple):
    """At the times that an expression matches."""

    expression: str
    timezone: str = "UTC"
    """A name of the time zone database, such as Europe/Berlin."""


class Every(NamedTuple):
    """At `first_ms`, and after each interval."""

    interval_ms: int
    first_ms: int
    """Queue time of the first due time. It fixes all others: late firings do not shift them."""


class At(NamedTuple):
    """Once."""

    due_ms: int


Timing = Cron | Every | At


def check_timing(timing: Timing) -> str:
    """Return why a schedule cannot have this timing, or an empty text."""
    match timing:
        case Cron():
            return _check_cron(timing)
        case Every(interval_ms, first_ms):
            if not EVERY_MS_MIN <= interval_ms <= EVERY_MS_MAX:
                return f"the interval {interval_ms} ms is not within {EVERY_MS_MIN} ms and {EVERY_MS_MAX} ms (a year)"
            return _check_time(first_ms)
        case At(due_ms):
            return _check_time(due_ms)
        case _:
            assert_never(timing)


def next_due(timing: Timing, after_ms: int) -> int | None:
    """Return the first due time after `after_ms`, or None if there is none before `TIME_MS_MAX`.

    `timing` must have passed `check_timing`, on any broker. If this machine does not know its time zone, the result is None, too.
    """
    if after_ms >= TIME_MS_MAX:
        return None
    match timing:
        case Cron():
            due_ms = _next_match(timing, max(0, after_ms))
        case Every(interval_ms, first_ms):
            missed = max(0, (after_ms - first_ms) // interval_ms + 1)
            due_ms = first_ms + missed * interval_ms
        case At(at_ms):
            due_ms = at_ms if at_ms > after_ms else None
        case _:
            assert_never(timing)
    return due_ms if due_ms is not None and due_ms < TIME_MS_MAX else None


def _check_time(time_ms: int) -> str:
    if not 0 <= time_ms < TIME_MS_MAX:
        return f"the time {time_ms} ms is not between 1970 and 2100: give milliseconds since 1970"
    return ""


def _check_cron(cron: Cron) -> str:
    expression, timezone = cron
    if len(expression) > EXPRESSION_LENGTH_MAX:
        return f"the cron expression has {len(expression)} characters; at most {EXPRESSION_LENGTH_MAX} are allowed"
    if _zone(timezone) is None:
        return f"the time zone {timezone[:TIMEZONE_LENGTH_MAX]!r} is not known: give a name such as 'Europe/Berlin' or 'UTC'"
    if len(expression.split()) != 5:
        return (
            f"the cron expression {expression!r} does not have five fields: minute, hour, day of month, month, day of week, "
            "such as '0 9 * * mon-fri'"
        )
    try:
        due_ms = _next_match(Cron(expression), _CHECK_FROM_MS)
    except CronSimError as error:
        return f"the cron expression {expression!r} is not valid: {str(error).lower()}"
    return "" if due_ms is not None else f"the cron expression {expression!r} matches no time within 50 years"


def _next_match(cron: Cron, after_ms: int) -> int | None:
    zone = _zone(cron.timezone)
    if zone is None:
        return None
    for due in CronSim(cron.expression, _local(after_ms, zone)):
        due_ms = (due.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1)
        # In a repeated hour it names the first of two equal local times, and after a gap a time that was due already.
        if due_ms > after_ms:
            return due_ms
    return None


def _local(time_ms: int, zone: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=time_ms)).astimezone(zone)


def _zone(name: str) -> ZoneInfo | None:
    """Return a time zone, or None if it is unknown, or known to this machine alone."""
    # "localtime" is the machine's own zone, and the zones below "right/" count leap seconds, which Unix time does not
    if not name or len(name) > TIMEZONE_LENGTH_MAX or name == "localtime" or name.startswith("right/"):
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a folder of the database
        return None
