"""The state that is committed with an offset: it round-trips through its note, and an error is raised when it does not fit."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.client.connection.resolver import TopicInfo
from raftmq.client.producer.partitioner import crc32_partition, murmur2_partition
from raftmq.client.transformer.output_state import OutputState, PartitionState, TopicState
from raftmq.client.transformer.routing import route
from raftmq.errors import TransformStateError
from raftmq.types import Record

from tests.support.client.transform_world import made

NUMBERS = st.integers(0, (1 << 64) - 1)
PARTITIONS = st.dictionaries(
    st.integers(0, 5000), st.builds(PartitionState, st.integers(0, 1 << 50), st.integers(0, 9)), max_size=20
)
TOPICS = st.dictionaries(NUMBERS, st.builds(TopicState, st.integers(1, 5000), PARTITIONS), max_size=5)
STATES = st.builds(OutputState, NUMBERS, NUMBERS, NUMBERS, NUMBERS, TOPICS)


@given(STATES)
def test_a_state_round_trips_through_its_note(state: OutputState) -> None:
    note = state.encode()
    assert note.isascii()
    assert OutputState.decode(note) == state


@given(STATES, st.integers(0, 200))
def test_a_truncated_note_is_refused_or_no_state(state: OutputState, length: int) -> None:
    note = state.encode()
    with suppress(TransformStateError):
        assert OutputState.decode(note[: min(length, len(note) - 1)]) != state


def test_hundreds_of_output_partitions_fit_and_the_error_for_more_gives_the_limit() -> None:
    def state(count: int) -> OutputState:
        partitions = {number: PartitionState(1_000_000_000) for number in range(count)}
        return OutputState(1 << 63, 1 << 40, 1 << 50, 1 << 31, {1: TopicState(count, partitions)})

    assert len(state(530).encode()) <= 4096
    with pytest.raises(TransformStateError, match=r"writes to 1000 output partitions.* enough for about 541:"):
        state(1000).encode()


def topic(partition_count: int, topic_id: int = 1) -> TopicInfo:
    return TopicInfo("out", topic_id, tuple(range(partition_count)))


def test_a_changed_number_of_partitions_is_used_only_if_the_owner_is_alone() -> None:
    state = OutputState(1, 1, 0, 0).declared([topic(3)], is_alone=True)
    assert state.declared([topic(5)], is_alone=False) is state
    assert state.declared([topic(5)], is_alone=True).topics[1].partition_count == 5
    assert state.declared([topic(5, topic_id=2)], is_alone=False).topics[2].partition_count == 5


@pytest.mark.parametrize(
    ("partitioner", "output", "partition"),
    [
        (crc32_partition, made("out", "v", b"key"), crc32_partition(b"key", 3)),
        (murmur2_partition, made("out", "v", b"key"), murmur2_partition(b"key", 3)),
        (crc32_partition, made("out", "v", None), 7 % 3),
        (crc32_partition, made("out", "v", b""), 7 % 3),
        (murmur2_partition, made("out", "v", b""), murmur2_partition(b"", 3)),
        (crc32_partition, made("out", "v", b"key", partition=4), 4),
    ],
)
def test_partition_key_or_record_determine_an_outputs_partition(partitioner, output, partition) -> None:
    state = OutputState(1, 1, 0, 0).declared([topic(3)], is_alone=True)
    record = Record("in", 7, 0, 0, b"other", b"v")
    (stretch,) = route([record], [[output]], {"out": topic(5)}, state, partitioner).stretches
    assert stretch.partition == partition
