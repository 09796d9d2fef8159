"""The queue topics of a run and their clients. After healing the partitions are emptied, and the history is judged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from math import inf
from typing import Any

from raftmq.client.admin.admin import Admin
from raftmq.errors import RaftMQError, UnsupportedVersionError
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.queue.limits import LEASE_MS_MIN
from raftmq.fsm.queue.topic_config import queue_settings

from sim.cluster.cluster import Cluster
from sim.cluster.options import Options
from sim.cluster.queues import services
from sim.cluster.queues.ledger import Ledger
from sim.cluster.queues.meddler import Meddler
from sim.cluster.queues.options import QUEUE_LEVEL, QueueOptions
from sim.cluster.queues.port import CallFailedError, QueuePort
from sim.cluster.queues.producer import QueueProducer
from sim.cluster.queues.requests import Requests
from sim.cluster.queues.worker import Worker
from sim.cluster.rpc.client_transport import ClientTransport
from sim.history.queues.operations import Drained, LeaseTaken, Outcome

ORDERED_TOPIC, PLAIN_TOPIC, LETTERS_TOPIC = "q-ordered", "q-plain", "q-letters"
_DRAIN_LEASE_MS = 5_000
_DRAIN_MESSAGES = 8
STUCK_SECONDS = 25.0
"""Time after which a partition that gives nothing more is called stuck. It is above the longest lease with its grace, and the longest delay."""

Spawn = Callable[[str, Coroutine[Any, Any, Any]], asyncio.Task[Any]]


def backoff_ms_min(config: Mapping[str, str]) -> int:
    """Return the least delay after a failed attempt by the settings of a topic: the first one, with all of its jitter."""
    settings = queue_settings(config)
    delay_ms = min(settings.backoff_base_ms, settings.backoff_max_ms)
    return delay_ms - delay_ms * settings.backoff_jitter_percent // 100


class QueueWorkload:
    """All clients of queue topics of a run."""

    def __init__(
        self,
        cluster: Cluster,
        options: Options,
        queue_options: QueueOptions,
        rng: random.Random,
        spawn: Spawn,
        on_error: Callable[[str, RaftMQError], None],
    ) -> None:
        """Take `spawn`, which runs a client in a process of its own, and `on_error`, which is told of its errors."""
        self.ledger = Ledger(cluster, options, queue_options, rng)
        self._cluster = cluster
        self._run_options = options
        self.options = queue_options
        self._rng = rng
        self._spawn = spawn
        self._on_error = on_error

    # ------------------------------------------------------------------------------------------------ topics

    def create_topics(self) -> asyncio.Task[None]:
        """Create the queue topics."""
        return self._spawn("qa", self._create_topics())

    async def _create_topics(self) -> None:
        options = self.options
        common = {
            "lease.ms": str(max(options.lease_ms, LEASE_MS_MIN)),
            "fairness": options.fairness,
            "tenant.weights": "a=3,b=1",
            "dedupe.window.ms": str(options.dedupe_window_ms),
            "single.active.consumer": str(options.is_single_active).lower(),
            **options.config,
        }
        plain = {
            "attempts.max": str(options.attempts_max),
            "message.ttl.ms": str(options.message_ttl_ms),
            "expired.keep": str(self._rng.random() < 0.5).lower(),
            "partition.tenant.max.leased": str(options.leased_per_tenant_max),
        }
        if options.has_dead_letters:
            await self._create(LETTERS_TOPIC, {})
            plain["dead.letter.topic"] = LETTERS_TOPIC
        topics = {ORDERED_TOPIC: {**common, "ordered.by.key": "true"}, PLAIN_TOPIC: {**common, **plain}}
        for name, config in topics.items():
            for group_id in await self._create(name, config):
                self.ledger.groups.append(group_id)
                self.ledger.backoffs_ms[group_id] = backoff_ms_min(config)
                if name == ORDERED_TOPIC:
                    self.ledger.ordered[group_id] = None

    async def _create(self, name: str, config: dict[str, str]) -> list[int]:
        """Create a topic, whatever happens, and return its groups. A cluster of an old level refuses it, and is raised."""
        while True:
            admin = Admin(
                bootstrap_servers=self._cluster.addresses(),
                transport=ClientTransport(self._cluster.loop, self._cluster.network),
                request_timeout_ms=self._run_options.request_seconds * 2000,
            )
            admin._resolver.rng.seed(self._rng.getrandbits(64))
            try:
                async with admin:
                    try:
                        await admin.create_topic(
                            name, self.options.partitions, self._run_options.replication_factor, config,
                            kind="queue", if_not_exists=True,
                        )  # fmt: skip
                    except UnsupportedVersionError:
                        self.ledger.counts["queue levels raised"] += 1
                        await admin.raise_feature_level(
                            FEATURE_LEVEL
                        )  # never that of a next version: it may be taken back
                        continue
                    described = await admin.describe_topic(name)
                    return [partition.group_id for partition in described.partitions]
            except RaftMQError as error:
                self._on_error("queue admin", error)
                await asyncio.sleep(0.3)

    # ------------------------------------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the clients."""
        if self.options.starts_at_level < QUEUE_LEVEL:  # otherwise they exist
            self.create_topics()
        for number in range(self.options.producers):
            self._spawn(f"qp{number}", self._live(f"qp{number}", self._produce))
        for number in range(self.options.workers):
            self._spawn(f"qw{number}", self._live(f"qw{number}", self._work))
        for number in range(self.options.meddlers):
            self._spawn(f"qm{number}", self._live(f"qm{number}", self._meddle))

    async def _live(self, name: str, life: Callable[[str, QueuePort, int], Coroutine[Any, Any, None]]) -> None:
        """Live one life after the other, each with one partition."""
        ledger, lives = self.ledger, 0
        while not ledger.is_stopping():
            if not ledger.groups:
                await self._pause()
                continue
            lives += 1
            await life(f"{name}.{lives}", self._port(self.options.lost_share), self._rng.choice(ledger.groups))

    def _port(self, lost_share: float) -> QueuePort:
        return QueuePort(
            self._cluster, random.Random(self._rng.getrandbits(64)), lost_share, partial(self._on_error, "queue call")
        )

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.expovariate(1.0 / self.options.pause_seconds))

    def _until(self) -> Callable[[], bool]:
        """Return whether a life that begins now is over."""
        end = self.ledger.now + self._rng.uniform(1.0, 5.0)
        return lambda: self.ledger.is_stopping() or self.ledger.now >= end

    async def _produce(self, process: str, port: QueuePort, group_id: int) -> None:
        producer, is_over = QueueProducer(process, self.ledger, port, group_id), self._until()
        while not is_over() and not producer.is_over:
            await producer.put(self._rng.choice((1, 1, 2, 5)))
            await self._pause()

    async def _work(self, process: str, port: QueuePort, group_id: int) -> None:
        worker, is_over = Worker(process, self.ledger, port, group_id), self._until()
        if self._rng.random() < 0.7:
            await worker.open()
        while not is_over():
            lease_ms = self._rng.choice((self.options.lease_ms, 250))
            taken = await worker.lease(self._rng.choice((1, 1, 3, 8)), lease_ms)
            if taken is None:
                await self._pause()
                continue
            await asyncio.sleep(self._rng.choice((0.0, 0.02, 0.1, lease_ms / 800)))
            if self._rng.random() < 0.08:
                return  # it dies with its leases
            if self.options.chain_share and self._rng.random() < self.options.chain_share:
                await worker.chain(taken)
            else:
                await worker.settle(taken)
        await worker.close()

    async def _meddle(self, process: str, port: QueuePort, group_id: int) -> None:
        meddler, is_over = Meddler(Requests(process, self.ledger, port, group_id)), self._until()
        while not is_over():
            await meddler.meddle()
            await self._pause()

    # ------------------------------------------------------------------------------------------------ the end

    @property
    def overdue_seconds(self) -> float:
        """Return the time that `drain` has waited for the overdue schedules of a partition, at most."""
        return max(self.ledger.overdue_seconds.values(), default=0.0)

    async def drain(self) -> None:
        """Wait for the copies of the dead, then lease and accept everything in all partitions."""
        await asyncio.gather(*(self._await_copies(group_id) for group_id in self.ledger.groups))
        await asyncio.gather(*(self._drain(group_id) for group_id in self.ledger.groups))

    async def _await_copies(self, group_id: int) -> None:
        """Wait until the dead letter topic has all dead messages of a partition."""
        port, left = self._port(0.0), 1
        while left:
            try:
                left = (await port.call(group_id, services.uncopied)).result
            except CallFailedError:
                left = 1
            await asyncio.sleep(0.1 if left else 0.0)

    async def _drain(self, group_id: int) -> None:
        process, ledger = f"qv{group_id}", self.ledger
        port = self._port(0.0)
        worker, meddler = Worker(process, ledger, port, group_id), Meddler(Requests(process, ledger, port, group_id))
        await meddler.resume()
        await meddler.end_schedules()
        moved_at, left = ledger.now, {"unknown": 1}
        while left and ledger.now < moved_at + STUCK_SECONDS:
            taken = await worker.lease(_DRAIN_MESSAGES, _DRAIN_LEASE_MS, is_choosy=False)
            if taken is not None:
                await self._accept(worker, taken)
                moved_at = ledger.now
                continue
            try:
                answered = await port.call(group_id, services.count)
            except CallFailedError:
                await asyncio.sleep(0.2)
                continue
            left = {state: count for state, count in answered.result.items() if count}
            await meddler.end_schedules()  # one may have been proposed long ago
            if left.get("dead"):
                await meddler.redrive_all()
            if left.get("ready") or left.get("lined"):
                await meddler.resume()  # a pause may have been proposed long ago
        ledger.record(Drained(process, group_id, moved_at, inf, Outcome.OK, 0, tuple(left.items())))

    @staticmethod
    async def _accept(worker: Worker, taken: LeaseTaken) -> None:
        tokens = [(one.sequence, one.lease_number) for one in taken.messages]
        await worker.send(tokens, [(1, 0)] * len(tokens), taken.leased_ms)
