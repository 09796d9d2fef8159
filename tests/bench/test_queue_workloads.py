"""Run the queue workloads on a real cluster at the smallest scale, and check that early messages are counted. No speed is judged."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench import queue_workloads
from bench.queue_workloads import QUEUE_WORKLOADS, queue_due
from bench.raftmq_cluster import raftmq_systems
from bench.runner import run_interleaved
from bench.workloads import QUICK, Client, Taken

SCALE = replace(QUICK, queue_latency=20)


@pytest.mark.e2e
@pytest.mark.long
def test_every_queue_workload_runs_and_no_message_is_early() -> None:
    figures: dict[str, dict[str, list[float]]] = {}
    with raftmq_systems() as systems:
        for name, workload in QUEUE_WORKLOADS.items():
            (sample,), failures = run_interleaved(workload, systems, QUICK, 1, lambda text: None)
            assert failures == []
            figures[name] = sample.figures
    assert {name: set(found) for name, found in figures.items()} == {
        name: {figure.name for figure in workload.figures} for name, workload in QUEUE_WORKLOADS.items()
    }
    assert figures["queue_due"].pop("early") == [0]
    assert all(math.isfinite(value) and value > 0 for found in figures.values() for (value,) in found.values())


class FakeQueue(Client):
    """Delivers a message so many seconds after its due time. A negative number makes it early."""

    def __init__(self, late_seconds: float) -> None:
        self._late_seconds = late_seconds
        self._messages: asyncio.Queue[bytes] = asyncio.Queue()

    async def put(self, topic: str, values: Sequence[bytes]) -> None:
        for value in values:
            self._messages.put_nowait(value)

    async def put_at(self, topic: str, value: bytes, due: float) -> None:
        wait = due + self._late_seconds - time.time()
        asyncio.get_running_loop().call_later(wait, self._messages.put_nowait, value)

    async def take(self, topic: str, count: int) -> Sequence[Taken]:
        return [Taken(await self._messages.get(), None)]

    async def accept(self, topic: str, taken: Sequence[Taken]) -> None: ...


@pytest.mark.parametrize(("late_seconds", "early"), [(-10.0, SCALE.queue_latency), (0.01, 0)])
async def test_early_messages_are_counted_and_not_reported_as_punctual(
    monkeypatch: pytest.MonkeyPatch, late_seconds: float, early: int
) -> None:
    monkeypatch.setattr(queue_workloads, "DUE_MS", (100, 150))
    found = await queue_due(FakeQueue(late_seconds), "queue", SCALE, 1.0)
    assert found["early"] == early
    assert (found["p50"] < 0) is (early > 0)
