"""The next step of a schedule: which missed firings are made up for, and which are passed over."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue import schedule_plan
from raftmq.broker.partitions.queue.cron import Timing
from raftmq.broker.partitions.queue.schedule_plan import (
    CATCH_UP_MAX,
    MISSED_AFTER_MS,
    WALK_MAX,
    Fire,
    Lookahead,
    ScheduleDefinition,
    Skip,
    decode_definition,
    definition_of,
    encode_definition,
    plan,
    rule_of,
)
from raftmq.proto import queue_pb2 as pb

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
START = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)


def every(interval_ms: int, catch_up: pb.CatchUp = pb.SKIP_MISSED) -> ScheduleDefinition:
    return ScheduleDefinition(every_ms=interval_ms, first_ms=START, catch_up=catch_up)


def steps(definition: ScheduleDefinition, due: int, now: int) -> tuple[list[int], int, int]:
    """Follow a schedule until it is not due any more. Return the firings, the number of skipped ones and the next due time."""
    fired, skipped, ahead = [], 0, Lookahead()
    while -1 < due <= now:
        step = plan(definition, due, now, ahead)
        if step is None:
            continue
        assert step.next_due == -1 or step.next_due > due
        if isinstance(step, Fire):
            fired.append(due)
        else:
            skipped += step.count
        due = step.next_due
    return fired, skipped, due


@pytest.mark.parametrize("catch_up", [pb.SKIP_MISSED, pb.FIRE_ONCE, pb.FIRE_ALL])
def test_a_firing_in_time_is_made_by_every_schedule(catch_up: pb.CatchUp) -> None:
    assert plan(every(DAY, catch_up), START, START + 5, Lookahead()) == Fire(START + DAY)
    assert plan(every(DAY, catch_up), START, START + MISSED_AFTER_MS, Lookahead()) == Fire(START + DAY)


def test_what_was_missed_is_skipped_made_up_for_once_or_each_time() -> None:
    now = START + 3 * DAY + 3 * MINUTE
    assert steps(every(DAY), START, now) == ([], 4, START + 4 * DAY)
    assert steps(every(DAY, pb.FIRE_ONCE), START, now) == ([START + 3 * DAY], 3, START + 4 * DAY)
    each = [START + number * DAY for number in range(4)]
    assert steps(every(DAY, pb.FIRE_ALL), START, now) == (each, 0, START + 4 * DAY)


def test_a_schedule_that_skips_still_makes_the_last_firing_if_it_is_young() -> None:
    assert steps(every(1_000), START, START + 5_500) == ([START + 5_000], 5, START + 6_000)


@pytest.mark.parametrize(
    "definition",
    [
        ScheduleDefinition(every_ms=MINUTE, first_ms=START, catch_up=pb.FIRE_ALL),
        ScheduleDefinition(cron="* * * * *", catch_up=pb.FIRE_ALL),
    ],
    ids=["interval", "cron"],
)
def test_the_last_thousand_are_made_up_for_and_the_others_are_counted(definition: ScheduleDefinition) -> None:
    fired, skipped, next_due = steps(definition, START, START + 1_500 * MINUTE)
    assert fired == [START + number * MINUTE for number in range(501, 1_501)]
    assert (skipped, next_due) == (501, START + 1_501 * MINUTE)


@pytest.mark.parametrize("cron", ["* * * * *", "0 * * * *", "0 9 * * *"])
def test_no_step_of_an_outage_of_months_computes_many_due_times(cron: str, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []

    def due_after(timing: Timing, after_ms: int) -> int:
        computed[-1] += 1
        return real(timing, after_ms)

    real = schedule_plan.due_after
    monkeypatch.setattr(schedule_plan, "due_after", due_after)
    definition = ScheduleDefinition(cron=cron, catch_up=pb.FIRE_ALL)
    due, now, ahead = real(definition.timing, START), START + 70 * DAY, Lookahead()
    for _ in range(3_000):
        if due > now:
            break
        computed.append(0)
        step = plan(definition, due, now, ahead)
        due = due if step is None else step.next_due
    assert max(computed) <= WALK_MAX
    assert sum(computed[-100:]) < 300, "what was computed once is not computed again"


def test_a_step_that_was_not_done_is_planned_again() -> None:
    definition, now, ahead = (
        ScheduleDefinition(cron="* * * * *", catch_up=pb.FIRE_ALL),
        START + 1_500 * MINUTE,
        Lookahead(),
    )
    while (step := plan(definition, START, now, ahead)) is None:
        pass
    assert isinstance(step, Skip)
    again = plan(definition, START, now, ahead)
    assert isinstance(again, Skip)
    assert step.count <= again.count <= 501
    assert again.next_due == START + again.count * MINUTE
    fired, skipped, _ = steps(definition, again.next_due, now)
    assert (len(fired), skipped + again.count) == (CATCH_UP_MAX, 501)


def test_one_step_over_a_year_of_minutes_is_bounded() -> None:
    step = plan(ScheduleDefinition(cron="* * * * *"), START, START + 366 * DAY, Lookahead())
    assert isinstance(step, Skip)
    assert step.next_due == START + step.count * MINUTE


def test_a_single_firing_ends_its_schedule() -> None:
    at = ScheduleDefinition(at_ms=START)
    assert plan(at, START, START, Lookahead()) == Fire(-1)
    assert plan(at, START, START + MISSED_AFTER_MS + 1, Lookahead()) == Skip(-1, 1)


@given(
    st.sampled_from([1_000, 7_000, MINUTE, 17 * MINUTE]),
    st.sampled_from([pb.SKIP_MISSED, pb.FIRE_ONCE, pb.FIRE_ALL]),
    st.integers(0, 3 * CATCH_UP_MAX * MINUTE // 10),
)
def test_every_due_time_is_fired_or_counted(interval: int, catch_up: pb.CatchUp, late: int) -> None:
    fired, skipped, next_due = steps(every(interval, catch_up), START, START + late)
    due_count = late // interval + 1
    assert len(fired) + skipped == due_count
    assert fired == sorted(set(fired))
    assert next_due == START + due_count * interval
    assert len(fired) <= {pb.SKIP_MISSED: 1, pb.FIRE_ONCE: 1, pb.FIRE_ALL: CATCH_UP_MAX}[catch_up]
    assert fired or catch_up == pb.SKIP_MISSED


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (pb.ScheduleRule(), "exactly one"),
        (pb.ScheduleRule(cron="* * * * *", every_ms=5_000), "exactly one"),
        (pb.ScheduleRule(cron="61 * * * *"), "not valid"),
        (pb.ScheduleRule(cron="* * * * *", timezone="Mars/Olympus"), "not known"),
        (pb.ScheduleRule(every_ms=1), "interval"),
        (pb.ScheduleRule(at_ms=-5), "1970"),
        (pb.ScheduleRule(every_ms=5_000, catch_up=7), "catch_up"),
    ],
    ids=repr,
)
def test_a_wrong_rule_is_refused(rule: pb.ScheduleRule, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        definition_of(rule, b"", START)
    assert refused.value.code == pb.INVALID_ARGUMENT


def test_a_definition_comes_back_and_one_of_a_newer_version_may_have_more_fields() -> None:
    rule = pb.ScheduleRule(cron="0 9 * * mon-fri", timezone="Europe/Berlin", catch_up=pb.FIRE_ALL)
    definition = definition_of(rule, b"message", START)
    content = encode_definition(definition)
    assert decode_definition(content) == definition
    assert rule_of(definition) == rule
    assert content[0] == 0x97
    assert decode_definition(b"\x98" + content[1:] + b"\x01") == definition
    assert decode_definition(b"\xc1") is None
