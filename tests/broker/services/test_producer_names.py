"""Names of producers run out with an error that is not retriable, and unused ones are removed on request."""

from __future__ import annotations

import pytest
from raftmq.broker.base.request_error import RETRIABLE_CODES, RequestError
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import Harness, running


async def named(node: Harness, name: str) -> int:
    answer = await node.producer_ids.init_producer(pb.InitProducerRequest(name=name, epoch=0), node.call())
    assert answer.time_ms == node.now_ms()
    return answer.producer_id


async def test_too_many_names_are_refused_for_good_until_some_are_forgotten(monkeypatch):
    monkeypatch.setattr("raftmq.fsm.metadata_producers.NAMED_PRODUCERS_MAX", 3)
    async with running() as node:
        await node.register(1, "uuid-1", feature_level_max=FEATURE_LEVEL)
        await node.feature_levels.raise_feature_level(pb.RaiseFeatureLevelRequest(), node.call())
        for name in ("a/1", "a/2"):
            await named(node, name)
        await node.producer_ids.broker_producer("copies", node.call())
        with pytest.raises(RequestError) as refused:
            await named(node, "b")
        assert refused.value.code == pb.TOO_MANY_NAMES
        assert refused.value.code not in RETRIABLE_CODES
        forget = node.producer_ids.forget_names
        planned = await forget(pb.ForgetProducerNamesRequest(dry_run=True, names_max=1), node.call())
        assert (planned.forgotten_count, planned.left_count, [each.name for each in planned.names]) == (2, 3, ["a/1"])
        assert (await forget(pb.ForgetProducerNamesRequest(prefix="b"), node.call())).forgotten_count == 0
        assert (await forget(pb.ForgetProducerNamesRequest(unused_ms=1), node.call())).forgotten_count == 0
        done = await forget(pb.ForgetProducerNamesRequest(prefix="a/"), node.call())
        assert (done.forgotten_count, done.left_count, done.limit) == (2, 1, 100_000)
        assert (await forget(pb.ForgetProducerNamesRequest(), node.call())).forgotten_count == 0, "a broker's own name"
        await named(node, "b")


async def test_marks_of_spark_are_removed_only_by_a_prefix_that_names_them():
    """Readers of whole batches would see a part of an open batch whose marks were removed as an unused name."""
    async with running() as node:
        await node.register(1, "uuid-1", feature_level_max=FEATURE_LEVEL)
        await node.feature_levels.raise_feature_level(pb.RaiseFeatureLevelRequest(), node.call())
        await named(node, "spark-batches/7")
        await named(node, "spark-ledger/7")
        forget = node.producer_ids.forget_names
        for prefix, count in (("", 1), ("spark-", 0), ("spark-batches/8", 0), ("spark-batches/", 1)):
            found = await forget(pb.ForgetProducerNamesRequest(prefix=prefix), node.call())
            assert found.forgotten_count == count, prefix
