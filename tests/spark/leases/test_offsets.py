"""The leases of a batch as Spark keeps them, and in portions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.spark.base.offsets import Position, TopicOffsets
from raftmq.spark.leases.offsets import (
    NO_LEASES,
    BatchLeases,
    LeaseRun,
    PartitionName,
    joined_runs,
    leases_from_json,
    portions,
)

TOKENS = st.dictionaries(st.integers(0, 60) | st.integers(1 << 62, (1 << 63) - 1), st.integers(1, 4), min_size=1)
LEASES = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 12)), TOKENS.map(lambda found: joined_runs(found.items()))
).map(lambda found: BatchLeases({PartitionName(topic, ord(topic), n): runs for (topic, n), runs in found.items()}))
GROUPED = LEASES.map(
    lambda found: replace(found, groups={name: 7 + name.partition for name in found.runs if name.partition % 3})
)


def tokens_of(runs: tuple[LeaseRun, ...] | list[LeaseRun]) -> list[tuple[int, int]]:
    return [(run.first_sequence + at, run.lease_number) for run in runs for at in range(run.message_count)]


@given(GROUPED)
def test_leases_return_from_their_text(leases: BatchLeases) -> None:
    assert leases_from_json(json.loads(json.dumps(leases.to_json()))) == leases


@given(LEASES)
def test_equal_leases_are_equal_texts(leases: BatchLeases) -> None:
    other = BatchLeases(dict(reversed(list(leases.runs.items()))))
    assert json.dumps(other.to_json()) == json.dumps(leases.to_json())


@given(TOKENS, st.integers(1, 7))
def test_runs_and_their_portions_have_each_message_once(tokens: dict[int, int], messages_max: int) -> None:
    runs = joined_runs(tokens.items())
    assert tokens_of(runs) == sorted(tokens.items())
    found = list(portions(runs, messages_max))
    assert [token for portion in found for token in tokens_of(portion)] == sorted(tokens.items())
    assert [len(tokens_of(portion)) for portion in found[:-1]] == [messages_max] * (len(found) - 1)
    assert 0 < len(tokens_of(found[-1])) <= messages_max


def test_a_batch_of_neighboring_messages_has_a_short_text() -> None:
    runs = joined_runs([*((n, 1) for n in range(100, 10_000)), (10_001, 2)])
    leases = BatchLeases({PartitionName("jobs", 3, 0): runs})
    assert leases.to_json() == {"@leases": 1, "jobs": {"0": "100+9900,1#2", "topic_id": 3}}
    assert leases.count == 9_901


@pytest.mark.parametrize(
    "written",
    [
        Position({"jobs": TopicOffsets(3, {0: 12})}).to_json(),
        {"@leases": 2},
        {"@leases": 1, "jobs": 3},
        {"@leases": 1, "jobs": {"0": "1,x", "topic_id": 3}},
    ],
)
def test_another_checkpoint_is_refused(written: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"in the offsets of a query|the checkpoint is not"):
        leases_from_json(written)


def test_a_new_query_has_leased_nothing() -> None:
    assert NO_LEASES.to_json() == {"@leases": 1}
    assert leases_from_json(NO_LEASES.to_json()).count == 0


def test_a_message_that_was_leased_twice_in_a_batch_has_both_tokens() -> None:
    leases = BatchLeases({PartitionName("jobs", 3, 0): joined_runs([(5, 1), (5, 2), (6, 2)])}, "c-1")
    assert leases.to_json()["@cluster"] == "c-1"
    assert leases_from_json(leases.to_json()) == leases
