"""Due times of schedules (`broker/partitions/queue/cron.py`)."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from raftmq.broker.partitions.queue.cron import (
    EVERY_MS_MAX,
    EVERY_MS_MIN,
    EXPRESSION_LENGTH_MAX,
    TIME_MS_MAX,
    At,
    Cron,
    Every,
    check_timing,
    next_due,
)

BERLIN = "Europe/Berlin"
EVERYWHERE = ("*", "*/3", "1", "2-4", "1,5", "5/2")
"""Texts that are valid in each field."""
YEAR_2026_MS = 1_767_225_600_000


def ms(text, zone="UTC"):
    """The milliseconds of a local time. `*` at its end: the second one of a repeated hour."""
    local = datetime.fromisoformat(text.rstrip("*")).replace(tzinfo=ZoneInfo(zone), fold=text.endswith("*"))
    return int(local.timestamp() * 1000)


def due_after(timing, after_ms) -> int:
    due_ms = next_due(timing, after_ms)
    assert due_ms is not None
    return due_ms


def dues(timing, after, count, zone="UTC"):
    """The next due times as local times, `*` for the second one of a repeated hour."""
    found, after_ms = [], ms(after, zone)
    for _ in range(count):
        after_ms = due_after(timing, after_ms)
        local = datetime.fromtimestamp(after_ms / 1000, ZoneInfo(zone))
        found.append(f"{local:%m-%d %H:%M}" + "*" * local.fold)
    return found


def test_an_expression_is_evaluated_in_its_time_zone():
    assert next_due(Cron("0 9 * * mon-fri", BERLIN), ms("2026-01-02 09:00", BERLIN)) == ms("2026-01-05 08:00")
    assert next_due(Cron("0 9 * * mon-fri", BERLIN), ms("2026-07-03 09:00", BERLIN)) == ms("2026-07-06 07:00")


def test_a_due_time_is_after_the_given_one_to_the_millisecond():
    timing = Cron("30 * * * *")
    assert next_due(timing, ms("2026-01-01 00:30") - 1) == ms("2026-01-01 00:30")
    assert next_due(timing, ms("2026-01-01 00:30")) == ms("2026-01-01 01:30")
    assert next_due(timing, ms("2026-01-01 00:30") + 1) == ms("2026-01-01 01:30")


# In Berlin, 2026-03-29 has no time from 02:00 to 03:00, and 2026-10-25 has these times twice.


def test_a_time_that_the_spring_change_skips_is_due_at_the_end_of_the_gap():
    assert dues(Cron("30 2 * * *", BERLIN), "2026-03-28 00:00", 3, BERLIN) == [
        "03-28 02:30",
        "03-29 03:00",
        "03-30 02:30",
    ]


def test_two_times_in_the_gap_are_due_once():
    assert dues(Cron("15,45 2 * * *", BERLIN), "2026-03-29 00:00", 3, BERLIN) == [
        "03-29 03:00",
        "03-30 02:15",
        "03-30 02:45",
    ]


def test_a_time_that_the_autumn_change_repeats_is_due_the_first_time_only():
    assert dues(Cron("30 2 * * *", BERLIN), "2026-10-24 12:00", 2, BERLIN) == ["10-25 02:30", "10-26 02:30"]


def test_a_schedule_that_begins_in_the_repeated_hour_is_not_due_in_the_past():
    assert dues(Cron("30 2 * * *", BERLIN), "2026-10-25 02:15*", 1, BERLIN) == ["10-26 02:30"]


def test_an_hourly_schedule_follows_the_time_that_passes():
    hourly = Cron("30 * * * *", BERLIN)
    assert dues(hourly, "2026-03-29 01:00", 2, BERLIN) == ["03-29 01:30", "03-29 03:30"]
    assert dues(hourly, "2026-10-25 01:00", 4, BERLIN) == ["10-25 01:30", "10-25 02:30", "10-25 02:30*", "10-25 03:30"]


def test_every_few_minutes_has_no_gap_and_no_repetition():
    timing, after_ms = Cron("*/20 * * * *", BERLIN), ms("2026-10-25 00:00", BERLIN)
    found = [after_ms := due_after(timing, after_ms) for _ in range(20)]
    assert {after - before for before, after in pairwise(found)} == {20 * 60_000}


def test_a_zone_with_a_change_of_half_an_hour():
    """Lord Howe: on 2026-10-04 the clock goes from 02:00 to 02:30."""
    lord_howe = "Australia/Lord_Howe"
    assert dues(Cron("15 2 * * *", lord_howe), "2026-10-03 12:00", 2, lord_howe) == ["10-04 02:30", "10-05 02:15"]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        ["30 2 * * *", "0 3 * * *", "59 1,2 * * *", "*/7 * * * *", "0 */2 * * *", "5 0 1 * *", "0 0 * * 1#2"]
    ),
    st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC", "Africa/Casablanca"]),
    st.integers(YEAR_2026_MS, YEAR_2026_MS + EVERY_MS_MAX),
)
def test_due_times_rise_and_none_is_between_two_of_them(expression, zone, after_ms):
    """From any point before a due time, the same due time is next."""
    timing = Cron(expression, zone)
    first_ms = due_after(timing, after_ms)
    second_ms = due_after(timing, first_ms)
    assert after_ms < first_ms < second_ms
    assert next_due(timing, (after_ms + first_ms) // 2) == first_ms
    assert next_due(timing, second_ms - 1) == second_ms


def test_an_interval_is_counted_from_its_beginning():
    timing = Every(60_000, first_ms=ms("2026-01-01 00:00"))
    assert next_due(timing, 0) == ms("2026-01-01 00:00")
    assert next_due(timing, ms("2026-01-01 00:00") - 1) == ms("2026-01-01 00:00")
    assert next_due(timing, ms("2026-01-01 00:00")) == ms("2026-01-01 00:01")
    assert next_due(timing, ms("2026-01-01 12:34") + 5) == ms("2026-01-01 12:35")


def test_one_point_in_time_is_due_once():
    assert next_due(At(1000), 999) == 1000
    assert next_due(At(1000), 1000) is None


def test_nothing_is_due_after_the_last_time():
    for timing in (Cron("0 0 1 1 *"), Every(EVERY_MS_MIN, 0)):
        assert next_due(timing, TIME_MS_MAX - 1) is None
        assert next_due(timing, 10 * TIME_MS_MAX) is None


def test_a_time_zone_that_only_another_broker_knows_makes_nothing_due():
    assert next_due(Cron("* * * * *", "Mars/Olympus"), 0) is None


@pytest.mark.parametrize(
    ("timing", "problem"),
    [
        (Cron("0 9 * * mon-fri", BERLIN), ""),
        (Cron("0 0 L * *"), ""),
        (Cron("0 0 29 2 *"), ""),
        (Cron("0 9 * *"), "five fields"),
        (Cron("0 0 9 * * *"), "five fields"),
        (Cron(""), "five fields"),
        (Cron("@daily"), "five fields"),
        (Cron("61 9 * * *"), "bad minute"),
        (Cron("0 9 30 2 *"), "bad day-of-month"),
        (Cron("0 0 */20 2 mon#5"), "matches no time"),
        (Cron("0," * EXPRESSION_LENGTH_MAX + "0 * * * *"), "characters"),
        (Cron("* * * * *", "Mars/Olympus"), "time zone"),
        (Cron("* * * * *", ""), "time zone"),
        (Cron("* * * * *", "Europe"), "time zone"),
        (Cron("* * * * *", "../../etc/passwd"), "time zone"),
        (Cron("* * * * *", "/etc/localtime"), "time zone"),
        (Cron("* * * * *", "localtime"), "time zone"),
        (Cron("* * * * *", "right/Europe/Berlin"), "time zone"),
        (Cron("* * * * *", "a\0b"), "time zone"),
        (Cron("* * * * *", "x" * 1000), "time zone"),
        (Every(EVERY_MS_MIN, 0), ""),
        (Every(EVERY_MS_MIN - 1, 0), "interval"),
        (Every(EVERY_MS_MAX + 1, 0), "interval"),
        (Every(EVERY_MS_MIN, -1), "between 1970 and 2100"),
        (At(YEAR_2026_MS), ""),
        (At(TIME_MS_MAX), "between 1970 and 2100"),
    ],
)
def test_a_refused_timing_names_the_problem(timing, problem):
    text = check_timing(timing)
    assert problem in text
    assert bool(text) is bool(problem)
    assert len(text) < 600


@settings(max_examples=400, deadline=None)
@given(st.text("0123456789*/,-#LWMONJAN ²ß\t", max_size=30) | st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_judged_without_an_error(expression, timezone):
    assert isinstance(check_timing(Cron(expression, timezone)), str)
    assert isinstance(check_timing(Cron(expression)), str)


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(
        *(st.sampled_from([*EVERYWHERE, *special]) for special in ([], [], ["31", "L", "LW"], ["jan"], ["mon#2", "1L"]))
    ),
    st.integers(0, TIME_MS_MAX - 51 * EVERY_MS_MAX),
)
def test_what_passed_the_check_has_a_next_due_time(fields, after_ms):
    timing = Cron(" ".join(fields), BERLIN)
    assume(not check_timing(timing))
    assert due_after(timing, after_ms) > after_ms


def test_the_last_moments_of_a_leap_day():
    assert next_due(Cron("59 23 29 2 *"), ms("2026-01-01 00:00")) == ms("2028-02-29 23:59")
    assert datetime.fromtimestamp(ms("2028-02-29 23:59") / 1000, UTC) + timedelta(minutes=1) == datetime(
        2028, 3, 1, tzinfo=UTC
    )
