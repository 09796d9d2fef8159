"""The answer to an order to form a cluster may be lost, and later answers must not hide that."""

from __future__ import annotations

from typing import Any, cast

import pytest
from raftmq.client.admin.formation import FormedCluster, form_cluster
from raftmq.client.connection.transport import Connection, Transport
from raftmq.errors import NotFormedError, NotReadyError, Outcome, RaftMQError, RequestTimedOutError, UnreachableError
from raftmq.methods import FORM_CLUSTER
from raftmq.proto import queue_pb2 as pb

Answer = RaftMQError | pb.FormClusterResponse | pb.DescribeClusterResponse


class Broker:
    """A broker whose answers are written down. The last one of each kind is repeated."""

    cluster_id = ""
    address = "broker:9400"
    uses_threads = False

    def __init__(self, *, questions: list[Answer], orders: list[Answer]) -> None:
        self.questions = questions
        self.orders = orders

    def connect(self, address: str) -> Connection:
        return cast("Connection", self)

    async def call(self, method: object, request: object, timeout_seconds: float) -> Any:
        answers = self.orders if method is FORM_CLUSTER else self.questions
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, RaftMQError):
            raise answer
        return answer

    async def close(self) -> None:
        pass


async def form(broker: Broker, seconds: float = 0.1) -> FormedCluster:
    return await form_cluster("broker:9400", seconds, transport=cast("Transport", broker))


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.client.admin.formation.RETRY_SECONDS", 0.001)


def lost() -> RaftMQError:
    error = RequestTimedOutError("no answer")
    error.outcome = Outcome.UNKNOWN
    return error


@pytest.mark.parametrize(
    ("questions", "orders"),
    [([NotFormedError("waits")], [lost(), NotReadyError("asks its peers")]), ([NotFormedError("waits"), UnreachableError("is down")], [lost()])],
    ids=["a later order is refused", "a later question fails"],
)  # fmt: skip
async def test_an_order_without_an_answer_is_reported_although_later_ones_fail(
    questions: list[Answer], orders: list[Answer]
) -> None:
    with pytest.raises(RequestTimedOutError) as reported:
        await form(Broker(questions=questions, orders=orders))
    assert reported.value.outcome is Outcome.UNKNOWN


async def test_a_question_without_an_answer_leaves_no_doubt() -> None:
    with pytest.raises(NotReadyError):
        await form(Broker(questions=[lost(), NotFormedError("waits")], orders=[NotReadyError("asks its peers")]))


async def test_a_cluster_that_an_order_without_an_answer_formed_is_found() -> None:
    found = pb.DescribeClusterResponse(cluster_id="c1")
    broker = Broker(questions=[NotFormedError("waits"), found], orders=[lost()])
    assert await form(broker, 5.0) == FormedCluster("c1", is_new=False)
