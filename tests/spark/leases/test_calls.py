"""The calls of a stream that leases messages, alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from raftmq.errors import RaftMQError
from raftmq.spark.leases import calls
from raftmq.spark.leases.calls import LeasedBlock, Wanted, lease_ready
from raftmq.spark.leases.offsets import PartitionName


@pytest.mark.parametrize(("granted_ms", "expected"), [(1000, 4), (0, 10)], ids=["short", "not known"])
async def test_a_batch_is_gathered_within_the_leases_that_the_topic_grants(
    monkeypatch: pytest.MonkeyPatch, granted_ms: int, expected: int
) -> None:
    """A third of the wanted lease was gathered for, so with a short lease.max.ms the first messages came again in the same batch."""
    passed = [0.0]

    async def poll(*_: object) -> tuple[list[LeasedBlock], list[RaftMQError]]:
        passed[0] += 0.1
        name = PartitionName("q", 1, 0)
        return [LeasedBlock(name, ((round(passed[0] * 10), 1),), b"", 7, granted_ms)], []

    monkeypatch.setattr(calls, "_poll", poll)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: passed[0])
    resolver: Any = SimpleNamespace(
        leader=lambda group_id: 1, address=lambda leader: "a:1", rng=SimpleNamespace(shuffle=lambda found: None)
    )
    topics: Any = {"q": SimpleNamespace(group_ids=[7])}
    found = await lease_ready(resolver, topics, Wanted(10, 1 << 20, 60_000, ()), 0, 30.0)
    assert len(found) == expected
