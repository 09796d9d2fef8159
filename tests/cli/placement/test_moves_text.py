"""Moves as tables and sentences."""

from __future__ import annotations

import pytest
from raftmq.cli.placement.moves_text import activity_of, held_by, more_than_shown, move_rows, without_place_of
from raftmq.client.admin.move_descriptions import BalancingSettings, MovesDescription, PartitionMove
from raftmq.types import TopicPartition


def move(size_bytes: int | None, copied_bytes: int) -> PartitionMove:
    return PartitionMove("t", 0, (1,), (2,), "drain", size_bytes, copied_bytes)


def described(*moves: PartitionMove, waiting: int = 0, rebuilding: int = 0) -> MovesDescription:
    return MovesDescription(BalancingSettings(True, 8, 0), moves, waiting, rebuilding, 0, (), 1)


@pytest.mark.parametrize(
    ("moves", "sentence"),
    [
        (described(), "no partition is moving"),
        (described(move(100, 45)), "1 partition moving (45 % copied)"),
        (described(move(100, 50), move(300, 0), waiting=2), "2 partitions moving (12 % copied), 2 waiting"),
        (described(move(100, 0)), "1 partition moving"),
        (described(move(None, 7)), "1 partition moving"),
        (described(move(100, 120)), "1 partition moving (100 % copied)"),
        (described(rebuilding=2), "2 partitions rebuilding a lost replica first"),
    ],
)
def test_an_unknown_share_is_not_shown_as_0_percent(moves: MovesDescription, sentence: str) -> None:
    assert activity_of(moves) == sentence


def test_unknown_sizes_are_marked_in_a_table() -> None:
    rows = move_rows([move(None, 0), move(200, 50)])
    assert [row[-3:] for row in rows] == [("?", "?", "?"), (200, 50, "25 %")]


def test_partitions_without_a_place_are_counted_and_the_first_are_named() -> None:
    assert without_place_of(0, ()) == ""
    one = without_place_of(1, (TopicPartition("t", 3),))
    assert one == "1 replica has no other broker that can take it now: t/3"
    many = without_place_of(200, tuple(TopicPartition("t", n) for n in range(100)))
    assert many.startswith("200 replicas have no other broker that can take them now: t/0, t/1, ")
    assert many.endswith("t/9 and 190 more")


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ((0, 0, False), "nothing"),
        ((1, 0, False), "1 replica"),
        ((2, 1, False), "2 replicas and 1 leadership"),
        ((2, 2, True), "2 replicas, 2 leaderships and a vote on metadata"),
    ],
)
def test_the_holdings_of_a_broker_are_one_phrase(held: tuple[int, int, bool], words: str) -> None:
    replicas, leaders, is_voter = held
    assert held_by(replicas, leaders, is_metadata_voter=is_voter) == words


def test_a_plan_that_is_longer_than_its_answer_says_so() -> None:
    assert [more_than_shown(1_200, 1_000), more_than_shown(3, 3)] == ["and 200 moves more", ""]
