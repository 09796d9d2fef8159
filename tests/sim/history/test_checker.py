"""All runs of a model broker are clean, and a run with one change is always flagged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.history.checker import FINDINGS_PER_ANOMALY_MAX, judge
from sim.history.events import Event, HistoryError, Records
from tests.support.sim.model_log import TOPIC, ModelRun

RUNS = st.builds(
    ModelRun,
    random=st.integers(0, 1 << 32).map(Random),  # drawing each choice from Hypothesis would take thirty times as long
    partitions=st.integers(1, 3),
    producers=st.integers(1, 3),
    readers=st.integers(1, 3),
    poll_max=st.integers(1, 8),
)


@given(RUNS, st.integers(0, 120))
def test_a_valid_run_is_clean(run: ModelRun, actions: int) -> None:
    events = run.run(actions)
    verdict = judge(events)
    verdict.demand_clean()
    assert verdict.event_count == len(events)
    assert verdict.outcomes.get("send", {}).get("ok", 0) <= sum(map(len, run.logs))
    assert verdict.is_read_to_the_end


@given(RUNS, st.integers(0, 60), st.data())
def test_a_run_that_was_cut_off_is_clean(run: ModelRun, actions: int, data: st.DataObject) -> None:
    """The outcome of operations under way at the end is unknown."""
    events = run.run(actions)
    judge(events[: data.draw(st.integers(0, len(events)))]).demand_clean()


# ---------------------------------------------------------------------------------------------------------- corruption


def last_polls(events: list[Event]) -> list[int]:
    """Return the polls of the last reading that returned records."""
    return [
        at
        for at, event in enumerate(events)
        if event.process == "last-reader" and event.operation == "poll" and event.kind == "ok" and event.records
    ]


def acknowledged(events: list[Event]) -> dict[str, int]:
    """Map each value to the event that acknowledged it with its offset."""
    return {
        event.value: at
        for at, event in enumerate(events)
        if event.operation == "send" and event.kind == "ok" and event.offset is not None and event.value is not None
    }


def flat(events: list[Event]) -> list[tuple[int, int, int, str]]:
    """Return event, partition, offset and value of all records of the last reading."""
    return [
        (at, batch.partition, offset, value)
        for at in last_polls(events)
        for batch in events[at].records or []
        for offset, value in zip(batch.offsets, batch.values, strict=True)
    ]


def with_last_reading(events: list[Event], change: Callable[[int, int, str], list[tuple[int, str]]]) -> list[Event]:
    """Return the run with each record of the last reading replaced by the records of `change(partition, offset, value)`."""
    changed = list(events)
    for at in last_polls(events):
        records = []
        for batch in events[at].records or []:
            pairs = [
                pair
                for offset, value in zip(batch.offsets, batch.values, strict=True)
                for pair in change(batch.partition, offset, value)
            ]
            records.append(Records(batch.topic, batch.partition, [p[0] for p in pairs], [p[1] for p in pairs]))
        changed[at] = msgspec.structs.replace(events[at], records=records)
    return changed


def drop_a_record(events: list[Event], random: Random) -> list[Event]:
    lost = random.choice([row for row in flat(events) if row[3] in acknowledged(events)])[3]
    return with_last_reading(events, lambda _, offset, value: [] if value == lost else [(offset, value)])


def lose_a_record_before_it_is_read(events: list[Event], random: Random) -> list[Event]:
    """All records after it move up, as if it had never been written."""
    _, partition, offset, _ = random.choice([row for row in flat(events) if row[3] in acknowledged(events)])

    def change(number: int, at: int, value: str) -> list[tuple[int, str]]:
        if number != partition or at < offset:
            return [(at, value)]
        return [] if at == offset else [(at - 1, value)]

    return with_last_reading(events, change)


def repeat_a_record(events: list[Event], random: Random) -> list[Event]:
    """The record is in the log twice, and offsets stay dense."""
    _, partition, offset, _ = random.choice(flat(events))

    def change(number: int, at: int, value: str) -> list[tuple[int, str]]:
        if number != partition or at < offset:
            return [(at, value)]
        return [(at, value), (at + 1, value)] if at == offset else [(at + 1, value)]

    return with_last_reading(events, change)


def swap_values(events: list[Event], random: Random) -> list[Event]:
    known = acknowledged(events)
    rows = flat(events)
    pairs = [(a, b) for a in rows for b in rows if a[1] == b[1] and a[2] < b[2] and (a[3] in known or b[3] in known)]
    if not pairs:
        return drop_a_record(events, random)
    one, other = random.choice(pairs)
    swapped = {one[3]: other[3], other[3]: one[3]}
    return with_last_reading(events, lambda _, offset, value: [(offset, swapped.get(value, value))])


def move_an_acknowledgement(events: list[Event], random: Random) -> list[Event]:
    at = random.choice(sorted(acknowledged(events).values()))
    moved = msgspec.structs.replace(events[at], offset=(events[at].offset or 0) + random.choice([1, 7, 1000]))
    return [*events[:at], moved, *events[at + 1 :]]


def call_a_success_a_failure(events: list[Event], random: Random) -> list[Event]:
    at = random.choice(sorted(acknowledged(events).values()))
    failed = msgspec.structs.replace(events[at], kind="fail", partition=None, offset=None, error="NotLeaderError")
    return [*events[:at], failed, *events[at + 1 :]]


def forget_a_send(events: list[Event], random: Random) -> list[Event]:
    forgotten = random.choice(flat(events))[3]
    return [event for event in events if event.operation != "send" or event.value != forgotten]


def poll_again(events: list[Event], random: Random) -> list[Event]:
    at = random.choice(last_polls(events))
    again = [
        msgspec.structs.replace(events[at], kind="invoke", id=10**6, records=None),
        msgspec.structs.replace(events[at], id=10**6),
    ]
    return [*events[: at + 1], *again, *events[at + 1 :]]


def cut_the_end(events: list[Event], random: Random) -> list[Event]:
    _, partition, offset, _ = random.choice([row for row in flat(events) if row[3] in acknowledged(events)])
    return with_last_reading(
        events, lambda number, at, value: [] if number == partition and at >= offset else [(at, value)]
    )


CORRUPTIONS: dict[Callable[[list[Event], Random], list[Event]], set[str]] = {
    drop_a_record: {"lost_write", "never_read"},
    lose_a_record_before_it_is_read: {"lost_write", "never_read"},
    repeat_a_record: {"duplicate"},
    swap_values: {"inconsistent_offset", "lost_write", "never_read"},
    move_an_acknowledgement: {"duplicate"},
    call_a_success_a_failure: {"aborted_read"},
    forget_a_send: {"never_sent"},
    poll_again: {"nonmonotonic_poll"},
    cut_the_end: {"never_read"},
}
"""A corruption of a run -> the anomalies of which at least one must be found."""


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
@settings(max_examples=50)
@given(run=RUNS, actions=st.integers(20, 100), seed=st.integers(0, 1 << 32))
def test_a_run_with_one_change_is_flagged(
    corrupt: Callable[[list[Event], Random], list[Event]], run: ModelRun, actions: int, seed: int
) -> None:
    for _ in range(5):  # so that every run can be corrupted
        run.send()
    events = run.run(actions)
    if not acknowledged(events):
        return
    verdict = judge(corrupt(events, Random(seed)))
    assert verdict.counts.keys() & CORRUPTIONS[corrupt], verdict.report()


def test_most_runs_can_be_corrupted() -> None:
    """Otherwise the test above would prove nothing."""
    runs = [ModelRun(Random(seed)).run(40) for seed in range(50)]
    assert sum(bool(acknowledged(events)) for events in runs) > 45
    assert sum(len(flat(events)) for events in runs) > 500


# -------------------------------------------------------------------------------------------------------------- the rest


def test_many_findings_of_one_kind_are_counted_and_not_kept() -> None:
    events = []
    for number in range(100):
        fields = {"topic": TOPIC, "value": f"v{number}"}
        events.append(Event("w", number, "invoke", "send", number, **fields))
        events.append(Event("w", number, "ok", "send", number, partition=0, offset=0, **fields))
    verdict = judge(events)
    assert verdict.counts == {"inconsistent_offset": 1}
    events = [msgspec.structs.replace(event, offset=event.id // 2 if event.kind == "ok" else None) for event in events]
    verdict = judge(events)
    assert verdict.counts["inconsistent_offset"] == 50
    assert len(verdict.findings) == FINDINGS_PER_ANOMALY_MAX
    assert "inconsistent_offset: 30 more" in verdict.report()


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([Event("w", 0, "ok", "send", 1)], "without a beginning"),
        ([Event("r", 0, "invoke", "poll", 1), Event("r", 0, "invoke", "poll", 1)], "has begun before"),
        ([Event("r", 0, "invoke", "poll", 1), Event("r", 0, "ok", "seek", 1)], "began as poll"),
        ([Event("w", 0, "invoke", "send", 1, value="a")], "topic is missing"),
        ([Event("w", 0, "invoke", "send", number, topic="t", value="a") for number in (1, 2)], "was sent to t before"),
        (
            [
                Event("r", 0, "invoke", "poll", 1),
                Event("r", 0, "ok", "poll", 1, records=[Records("t", 0, [0, 1], ["a"])]),
            ],
            "2 offsets and 1 values",
        ),
    ],
)
def test_contradicting_events_are_not_a_history(events: list[Event], reason: str) -> None:
    with pytest.raises(HistoryError, match=reason) as caught:
        judge(events)
    assert caught.value.line == len(events)
