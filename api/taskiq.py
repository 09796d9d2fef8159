"""A broker for taskiq over a queue topic: ``pip install 'raftmq[taskiq]'``.

::

    broker = RaftMQBroker("tasks", bootstrap_servers="localhost:9400")

    @broker.task
    async def resize(image: int) -> None: ...

    await resize.kicker().with_labels(tenant="acme", delay=30).kiq(17)

Start workers with ``taskiq worker module:broker``. Must not know more of RaftMQ than `Queue`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial

from raftmq.extras import require

require("taskiq", "raftmq.taskiq")

from raftmq.client.queue.message import Message  # noqa: E402 - only if the extra is installed
from raftmq.client.queue.new_message import check_lease  # noqa: E402 - as above
from raftmq.client.queue.queue import Queue  # noqa: E402 - as above
from raftmq.errors import RaftMQError  # noqa: E402 - as above
from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage  # noqa: E402 - as above

log = logging.getLogger("raftmq")


class RaftMQBroker(AsyncBroker):
    """Sends taskiq's tasks through a queue topic, which must exist.

    A task is acknowledged when taskiq says so, by default after its result is saved. Until then its lease is renewed. A task whose worker
    dies is delivered to another one.

    These labels of a task concern its message: ``delay`` (seconds), ``priority`` (smaller first), ``tenant``, ``key`` and ``id``
    (for deduplication). Neither a task's own id nor the label of a retry is used for deduplication, because taskiq's retries send a task again
    before the first attempt is acknowledged.

    Args:
        topic: the queue topic.
        bootstrap_servers: any of the cluster's brokers.
        lease_ms: the length of leases, from 1 s to 12 h. None: the topic's.
        tenants: execute only tasks of these subtrees of tenants. Empty: of all.
        client_id: a name for logs.
        result_backend: where taskiq stores results. None: it drops them.
        task_id_generator: as in taskiq.
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9400",
        lease_ms: float | None = None,
        tenants: Sequence[str] = (),
        client_id: str = "raftmq-taskiq",
        result_backend: AsyncResultBackend[object] | None = None,
        task_id_generator: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(result_backend=result_backend, task_id_generator=task_id_generator)
        self._make_queue = partial(Queue, topic, bootstrap_servers=bootstrap_servers, client_id=client_id)
        self._lease_ms = None if lease_ms is None else check_lease(lease_ms)
        self._tenants = tuple(tenants)
        self._queue: Queue[bytes] | None = None

    async def startup(self) -> None:
        """Connect, then run taskiq's own start. Raises as `raftmq.Queue.start`."""
        queue: Queue[bytes] = self._make_queue()
        await queue.start()
        self._queue = queue
        await super().startup()

    async def shutdown(self) -> None:
        """Run taskiq's own end, then close. Tasks that were not begun are given back."""
        try:
            await super().shutdown()
        finally:
            queue, self._queue = self._queue, None
            if queue is not None:
                await queue.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Enqueue a task. It is on disk on a majority when this returns. Raises as `raftmq.Queue.put`."""
        labels = message.labels
        await self._started().put(
            message.message,
            key=_text(labels.get("key")),
            tenant=_text(labels.get("tenant")),
            priority=int(labels.get("priority") or 0),
            delay_ms=float(labels.get("delay") or 0) * 1000,
            id=None
            if labels.get("_retries")
            else _text(labels.get("id")),  # a retry repeats the labels, and is no duplicate
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks as they are leased, with the function that acknowledges each."""
        async for message in self._started().messages(lease_ms=self._lease_ms, tenants=self._tenants):
            passed_on = [AckableMessage(data=message.value, ack=partial(_ack, message))]
            del message  # no reference stays here, which would hold the lease of a task that taskiq dropped
            yield passed_on.pop()

    def _started(self) -> Queue[bytes]:
        if self._queue is None:
            raise RuntimeError("the broker is not started: await broker.startup()")
        return self._queue


async def _ack(message: Message[bytes]) -> None:
    """Acknowledge a task. If that fails, it is executed again, which taskiq cannot prevent."""
    try:
        await message.ack()
    except RaftMQError as error:
        log.warning("task_not_acknowledged sequence=%d error=%s", message.sequence, error)


def _text(label: object) -> str | None:
    return None if label is None else str(label)
