"""Offsets as Spark stores them in checkpoints."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.spark.base.offsets import Position, TopicOffsets, position_from_json

TOPICS = st.dictionaries(
    st.text("abc._-", min_size=1, max_size=4),
    st.builds(
        TopicOffsets,
        st.integers(1, 99),
        st.dictionaries(st.integers(0, 200), st.integers(0, 1 << 60), max_size=5),
        st.dictionaries(st.integers(0, 200), st.integers(1, 1 << 60), max_size=5),
    ),
    max_size=4,
)
PLAIN = st.builds(Position, TOPICS)
POSITIONS = st.builds(Position, TOPICS, st.one_of(st.none(), PLAIN))


@given(POSITIONS)
def test_positions_survive_json(position: Position) -> None:
    assert position_from_json(json.loads(json.dumps(position.to_json()))) == position


@given(POSITIONS, st.randoms())
def test_equal_positions_have_equal_text(position: Position, random) -> None:
    """Spark compares the texts: the same offsets in another order would count as new data endlessly."""

    def shuffle(numbers: Mapping[int, int]) -> dict[int, int]:
        return dict(random.sample(sorted(numbers.items()), len(numbers)))

    items = list(position.topics.items())
    random.shuffle(items)
    shuffled = Position(
        {name: TopicOffsets(known.topic_id, shuffle(known.offsets), shuffle(known.groups)) for name, known in items},
        position.initial,
    )
    assert json.dumps(shuffled.to_json()) == json.dumps(position.to_json())


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    position = Position({"b": TopicOffsets(2, {10: 1, 9: 2}), "a": TopicOffsets(1, {})})
    assert json.dumps(position.to_json()) == '{"a": {"topic_id": 1}, "b": {"9": 2, "10": 1, "topic_id": 2}}'


def test_json_that_is_not_a_position_is_refused() -> None:
    with pytest.raises(ValueError, match="not a topic's offsets"):
        position_from_json({"t": 5})


def test_a_topic_that_was_created_again_has_no_offsets_in_an_old_position() -> None:
    position = Position({"t": TopicOffsets(7, {0: 12})})
    assert position.get("t", 7, 0) == 12
    assert position.get("t", 8, 0) is None
    assert position.get("t", 7, 1) is None


def test_offsets_of_an_earlier_version_name_no_groups_and_stay_as_they_are() -> None:
    """Another text would be a batch without records."""
    written = {"t": {"0": 12, "1": 7, "topic_id": 3}}
    assert position_from_json(written).to_json() == written
    assert position_from_json(written).group("t", 0) == 0
    named = {"t": {"0": 12, "topic_id": 3, "group_ids": {"0": 5}}}
    assert position_from_json(named).to_json() == named
    assert position_from_json(named).group("t", 0) == 5
