"""`Admin.forget_producer_names` against fake brokers."""

from __future__ import annotations

import pytest
from raftmq import Admin, ProducerNameDescription, errors
from raftmq.client.connection.resolver import Resolver
from raftmq.client.producer.sequenced_append import SequencedAppender

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.memory_transport import MemoryTransport


async def test_unused_names_are_counted_and_removed():
    fake = FakeCluster(brokers=1)
    transport = MemoryTransport(fake)
    resolver = Resolver(transport.addresses, transport)
    await resolver.start(10)
    for name in ("a/1", "a/2", "b"):
        await SequencedAppender(resolver).claim(name, 7)
    await resolver.close()
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        planned = await admin.forget_producer_names(prefix="a/", unused_seconds=1, dry_run=True)
        assert (planned.count, planned.left_count, planned.limit) == (2, 3, 100_000)
        assert planned.names[0] == ProducerNameDescription("a/1", 7, 1.5)
        done = await admin.forget_producer_names(prefix="a/", unused_seconds=1)
        assert (done.count, done.left_count) == (2, 1)
        for wrong in (-1, 1e10, float("nan")):
            with pytest.raises(errors.InvalidArgumentError):
                await admin.forget_producer_names(unused_seconds=wrong)
        with pytest.raises(TypeError):
            await admin.forget_producer_names(unused_seconds="1d")
