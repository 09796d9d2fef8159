"""The requests of batch marks are repeated while their failure may pass, for a connection that a test scripts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TypeVar, cast

import pytest
from raftmq.client.connection.resolver import Resolver
from raftmq.errors import NoLeaderError, NotReadyError, RaftMQError, UnknownTopicError
from raftmq.spark.atomic import mark_calls
from raftmq.spark.atomic.batch_marks import Answer, Ask, FindEnds
from raftmq.spark.atomic.mark_calls import run_marks

T = TypeVar("T")
TOPIC_ID = 7


class Connection:
    """Answer with the given errors first, then with ends."""

    def __init__(self, *errors: RaftMQError) -> None:
        self.errors = list(errors)
        self.resolver = cast("Resolver", None)  # these steps change no marks

    def run(self, coroutine_of: Callable[[], Coroutine[object, object, T]]) -> T:
        raise AssertionError(coroutine_of)

    def ends(self, topic: str, topic_id: int, count: int) -> tuple[int, ...]:
        assert (topic, topic_id) == ("t", TOPIC_ID)
        if self.errors:
            raise self.errors.pop(0)
        return (5,) * count


def ends_of_two() -> Generator[Ask, Answer, tuple[int, ...]]:
    return (yield FindEnds(2)).ends


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mark_calls, "WAIT_SECONDS", 0)


def test_ends_are_asked_for_again_while_leaders_change() -> None:
    connection = Connection(NoLeaderError("t/0"), NotReadyError("older"))
    assert run_marks(connection, "t", TOPIC_ID, ends_of_two(), 60) == (5, 5)


def test_ends_are_given_up_after_the_time_limit() -> None:
    with pytest.raises(NoLeaderError):
        run_marks(Connection(NoLeaderError("t/0")), "t", TOPIC_ID, ends_of_two(), 0)


def test_the_end_of_a_deleted_topic_is_not_asked_for_again() -> None:
    with pytest.raises(UnknownTopicError):
        run_marks(Connection(UnknownTopicError("t")), "t", TOPIC_ID, ends_of_two(), 60)
