"""Run model brokers in a thread, for tests that call Spark, whose sessions belong to the test's own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.fake_queue import FakeMessage, FakeQueue

T = TypeVar("T")


class ModelBrokers:
    """Two model brokers. Their state is used on their own loop only, by `call`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, cluster: FakeCluster) -> None:
        self._loop = loop
        self._cluster = cluster
        self.bootstrap_servers = cluster.bootstrap_servers

    def call(self, function: Callable[[FakeCluster], T]) -> T:
        """Return the function's result, which must not be used by the brokers any more."""

        async def run() -> T:
            return function(self._cluster)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def create_queue(self, name: str, partitions: int = 1) -> None:
        self.call(lambda cluster: cluster.create_queue(name, partitions))

    def change(self, topic: str, partition: int, function: Callable[[FakeQueue], T]) -> T:
        """Change the messages of a partition."""
        return self.call(lambda cluster: function(cluster.topics[topic].partitions[partition].queue))

    def messages(self, topic: str) -> list[list[FakeMessage]]:
        """Return the messages of each partition by sequence."""
        return self.call(
            lambda cluster: [
                sorted(partition.queue.messages.values(), key=lambda message: message.sequence)
                for partition in cluster.topics[topic].partitions
            ]
        )

    def bodies(self, topic: str) -> list[bytes]:
        """Return the sorted bodies of all messages."""
        return sorted(message.body for messages in self.messages(topic) for message in messages)


@contextmanager
def model_brokers() -> Iterator[ModelBrokers]:
    """Run two brokers until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="model-brokers")
    thread.start()
    cluster = FakeCluster(brokers=2)
    try:
        asyncio.run_coroutine_threadsafe(cluster.__aenter__(), loop).result()
        yield ModelBrokers(loop, cluster)
        asyncio.run_coroutine_threadsafe(cluster.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
