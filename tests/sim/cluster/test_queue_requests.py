"""Requests of operators are repeated after lost answers, and each attempt is an operation of the history."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest
from raftmq.fsm.queue.commands import CancelJob, Change, ChangeItem, ChangeOperation, StartJob
from raftmq.fsm.queue.results import Changed, JobProgress, JobStarted

from sim.cluster.queues import requests
from sim.cluster.queues.meddler import Meddler
from sim.cluster.queues.port import Answered, CallFailedError
from sim.cluster.queues.requests import ATTEMPTS_MAX, Requests
from sim.history.queues.operations import Alteration, Answer, Operation, Outcome, Swept

LOST = CallFailedError("no answer", is_definite=False)
ELSEWHERE = CallFailedError("not the leader", is_definite=True)
REFUSED = CallFailedError("invalid", is_definite=True, is_final=True)


class Port:
    """A port that answers as it is told, and remembers the requests."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.items: list[Any] = []

    async def call(self, _group_id: int, service: Any) -> Answered:
        self.items.append(service.args[0])
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Answered(answer, 5_000)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_RETRY_SECONDS", 1e-9)


def meddler_of(port: Port) -> tuple[Meddler, list[Operation]]:
    recorded: list[Operation] = []
    ledger = SimpleNamespace(
        now=2.0, rng=random.Random(1), counts=Counter(), see=lambda *_: None, record=recorded.append,
        ended=lambda *, is_answered: 2.0 if is_answered else inf,
    )  # fmt: skip
    return Meddler(Requests("qm", cast("Any", ledger), cast("Any", port), 7)), recorded


ITEM = ChangeItem(ChangeOperation.CANCEL, 3)


def test_a_change_is_repeated_until_it_is_answered() -> None:
    port = Port(LOST, ELSEWHERE, Changed((0,), (2,)))
    meddler, recorded = meddler_of(port)

    asyncio.run(meddler.send([ITEM]))

    assert port.items == [Change((ITEM,))] * 3
    found = [(one.outcome, one.ended, one.messages[0].answer) for one in recorded if isinstance(one, Alteration)]
    assert found == [
        (Outcome.UNKNOWN, inf, None),
        (Outcome.FAILED, 2.0, None),
        (Outcome.OK, 2.0, Answer.DONE),
    ]


def test_a_refusal_is_not_repeated_and_a_silence_not_without_end() -> None:
    for answers, sent in (([REFUSED], 1), ([LOST] * 9, ATTEMPTS_MAX)):
        port = Port(*answers)
        asyncio.run(meddler_of(port)[0].send([ITEM]))
        assert len(port.items) == sent


def test_a_job_whose_start_is_repeated_may_run_twice() -> None:
    port = Port(LOST, JobStarted(4), LOST, JobProgress(2, is_finished=True))
    meddler, recorded = meddler_of(port)

    asyncio.run(meddler.redrive_all())

    starts = [item for item in port.items if isinstance(item, StartJob)]
    assert len(starts) == 2
    assert [(one.outcome, one.ended) for one in recorded if isinstance(one, Swept)] == [
        (Outcome.UNKNOWN, inf),
        (Outcome.OK, 2.0),
    ]
    assert not any(isinstance(item, CancelJob) for item in port.items)
    assert port.answers == []
