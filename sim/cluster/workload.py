"""The clients of a run: producers, consumers and an administrator of the SDK, each a process of its own.

Their operations and answers are recorded in the history and checked by the invariants. A client that fails is replaced by a new one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from raftmq.client.admin.admin import Admin
from raftmq.client.admin.descriptions import TopicDescription
from raftmq.client.base.settings import OWN_EPOCH_BITS
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.producer import Producer
from raftmq.errors import (
    ClosedClientError,
    InvalidPartitionsError,
    Outcome,
    RaftMQError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicError,
)
from raftmq.types import RecordMetadata, TopicPartition

from sim.cluster.checker import Checker
from sim.cluster.cluster import Cluster
from sim.cluster.invariants.client_errors import check_client_error
from sim.cluster.member import Member
from sim.cluster.options import Options
from sim.cluster.rpc.client_transport import ClientTransport
from sim.cluster.world.host import Host
from sim.history.events import Event
from sim.history.recorder import Recorder
from sim.history.recording_admin import RecordingAdmin
from sim.history.recording_consumer import RecordingConsumer
from sim.history.recording_producer import RecordingProducer

GROUP = "g"
"""The consumer group."""
NAME = "job"
"""The name of the producers that fence each other."""
_IN_FLIGHT_MAX = 8
_SHORT_LIVED_TOPICS = tuple(f"s{number}" for number in range(4))
_PARTITIONS_MAX = 7
"""Maximum number of partitions that a permanent topic grows to."""
_SHORT_LIVED_TOPICS_MAX = 2
"""Maximum number of them at a time."""


def name_epoch(producer: Producer) -> int:
    """Return the epoch of the producer's name. The lower bits are the producer's own epoch."""
    return producer._accumulator.producer_epoch >> OWN_EPOCH_BITS


class Workload:
    """All clients of a run."""

    def __init__(self, cluster: Cluster, checker: Checker, options: Options, rng: random.Random) -> None:
        self._cluster = cluster
        self._loop = cluster.loop
        self._checker = checker
        self._options = options
        self._rng = rng
        self.history: list[Event] = []
        self.recorder = Recorder(self.history.append, lambda: int(cluster.loop.now * 1e9))
        self.topics = [f"t{number}" for number in range(options.topics)]
        """Topics that exist during the whole run."""
        self.groups: dict[TopicPartition, int] = {}
        """The Raft group of each partition of `topics`."""
        self.is_stopping = False
        self._clients = 0
        self._value = 0
        self._short_lived: list[str] = []
        """Temporary topics that exist, as far as their administrator knows."""
        self._name_epoch = 0
        """Epoch of the newest named producer that has started. Records that older ones send after that must not be written."""
        self._tasks: list[asyncio.Task[Any]] = []
        checker.on_retention = self._on_retention
        checker.on_lost_end = self._on_lost_end
        checker.on_continued = self._on_continued
        self.outcomes: dict[str, int] = {}
        """Number of operations by outcome, for example ``send ok``."""

    # ------------------------------------------------------------------------------------------------ new clients

    def _host(self, name: str) -> Host:
        """Create the host of a new client process."""
        self._clients += 1
        low, high = self._options.clock_rates
        host = Host(name, self._clients, self._rng.uniform(low, high), 10.0 * self._clients)
        self._cluster.clients[name] = host
        return host

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a client in a process of its own."""
        task = self._loop.spawn(self._host(name), work)
        self._tasks.append(task)
        return task

    def _transport(self) -> ClientTransport:
        return ClientTransport(self._loop, self._cluster.network)

    def new_admin(self) -> Admin:
        """Create an administrator."""
        admin = Admin(
            bootstrap_servers=self._cluster.addresses(),
            transport=self._transport(),
            request_timeout_ms=self._options.request_seconds * 2000,
        )
        admin._resolver.rng.seed(self._rng.getrandbits(64))
        return admin

    def _producer(self, *, is_idempotent: bool, name: str | None = None) -> Producer:
        options = self._options
        producer = Producer(
            bootstrap_servers=self._cluster.addresses(),
            transport=self._transport(),
            enable_idempotence=is_idempotent,
            producer_name=name,
            max_block_ms=4000 if name is None else 8000,
            delivery_timeout_ms=options.delivery_seconds * 1000,
            request_timeout_ms=options.request_seconds * 1000,
            linger_ms=self._rng.choice((0, 0, 5)),
        )
        producer._resolver.rng.seed(self._rng.getrandbits(64))
        producer._dispatcher._rng.seed(self._rng.getrandbits(64))
        return producer

    def _consumer(self, *topics: str) -> Consumer:
        consumer = Consumer(
            *topics,
            bootstrap_servers=self._cluster.addresses(),
            transport=self._transport(),
            auto_offset_reset="earliest",
            request_timeout_ms=3000,
            fetch_max_wait_ms=self._rng.choice((300, 900)),
            fetch_min_bytes=self._rng.choice((1, 500)),
            max_partition_fetch_bytes=self._rng.choice((500, 1 << 20)),
        )
        consumer._resolver.rng.seed(self._rng.getrandbits(64))
        return consumer

    def count(self, what: str) -> None:
        """Count an outcome."""
        self.outcomes[what] = self.outcomes.get(what, 0) + 1

    def count_error(self, what: str, error: RaftMQError) -> None:
        """Count an error, and judge it. One that has closed a client is the defect behind it: nobody else closes it."""
        self.count(f"{what} {type(error).__name__}")
        if isinstance(error, ClosedClientError):
            self._loop.failures.append((f"a {what} client stopped", error.__cause__ or error))
        else:
            self._checker.judge(check_client_error, what, error, self._options)

    # ------------------------------------------------------------------------------------------------ life

    def create_topics(self) -> asyncio.Task[None]:
        """Create the permanent topics."""
        return self.spawn("a0", self._create_topics())

    async def _create_topics(self) -> None:
        async with RecordingAdmin(self.new_admin(), self.recorder, "a0") as admin:
            for number, topic in enumerate(self.topics):
                partitions = max(1, self._options.partitions - 2 * number)
                kept_ms = self._options.retention_ms if number == len(self.topics) - 1 else 0
                config = {"retention.ms": kept_ms} if kept_ms else None
                await self._create_topic(admin, topic, partitions, config)
                self._learn_partitions(await admin.describe_topic(topic))

    async def _create_topic(
        self, admin: RecordingAdmin, topic: str, partitions: int, config: Mapping[str, int] | None
    ) -> None:
        """Create a permanent topic. On slow links the elections of its partitions may take longer than a request."""
        try:
            await admin.create_topic(topic, partitions, self._options.replication_factor, config)
        except RequestTimedOutError:
            with suppress(TopicAlreadyExistsError):
                await self._create_topic(admin, topic, partitions, config)

    def _learn_partitions(self, topic: TopicDescription) -> None:
        """Let clients use the partitions of a permanent topic that they do not know yet."""
        for partition in topic.partitions:
            where = TopicPartition(topic.name, partition.partition)
            if where not in self.groups:
                self.groups[where] = group_id = self._checker.origin(partition.group_id)
                if self._options.retention_ms and topic.name == self.topics[-1]:
                    self._checker.retention.kept_ms[group_id] = self._options.retention_ms

    def _on_retention(self, group_id: int, before: int) -> None:
        for where, known in self.groups.items():
            if known == group_id:
                self.recorder.record_trim(where.topic, where.partition, before)

    def _on_lost_end(self, old_group_id: int, group_id: int, offset: int) -> None:
        for where, known in self.groups.items():
            if known == old_group_id:
                self.groups[where] = group_id
                self.recorder.record_recovery(where.topic, where.partition, offset)

    def _on_continued(self, old_group_id: int, group_id: int) -> None:
        """Use the old id if a description named the new group before its founder opened."""
        for where, known in self.groups.items():
            if known == group_id:
                self.groups[where] = old_group_id

    def start(self) -> None:
        """Start the clients."""
        for number in range(self._options.producers):
            is_idempotent = number >= self._options.plain_producers
            self.spawn(f"p{number}", self._produce(f"p{number}", is_idempotent=is_idempotent))
        for number in range(self._options.namesakes):
            self.spawn(f"n{number}", self._produce(f"n{number}", is_idempotent=True, name=NAME))
        for number in range(self._options.consumers):
            self.spawn(f"c{number}", self._consume(f"c{number}"))
        if self._options.admin_every:
            self.spawn("a1", self._give_orders("a1", "admin", self._options.admin_every, self._administrate))
            self.spawn("d0", self._produce_in_passing())
        if self._options.grow_every:
            self.spawn("a3", self._give_orders("a3", "growth", self._options.grow_every, self._grow))
        if self._options.trim_every:
            self.spawn("a2", self._give_orders("a2", "trim", self._options.trim_every, self._trim))
        for number in range(self._options.members):
            self.spawn(f"m{number}", self._take_part(f"m{number}"))

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(self._rng.expovariate(1.0 / seconds))

    def stopped(self) -> bool:
        """Return whether all clients have ended. Raises the error of a client that failed unexpectedly."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise RuntimeError(f"a client ended: {task.exception()!r}") from task.exception()
        return all(task.done() for task in self._tasks)

    # ------------------------------------------------------------------------------------------------ producing

    async def _produce(self, client: str, *, is_idempotent: bool, name: str | None = None) -> None:
        life = 0
        while not self.is_stopping:
            life += 1
            producer = self._producer(is_idempotent=is_idempotent, name=name)
            process = f"{client}.{life}"
            recording = RecordingProducer(producer, self.recorder, process, is_idempotent=is_idempotent)
            try:
                async with recording:
                    if name is not None:
                        self._name_epoch = max(self._name_epoch, name_epoch(producer))
                    await self._send_for_a_while(partial(self._send, process, recording), lambda: list(self.groups))
            except RaftMQError as error:
                self.count_error("producer", error)
                await self._pause(0.2)

    async def _produce_in_passing(self) -> None:
        """Send to temporary topics. These sends are not recorded in the history, since topic names are reused."""
        while not self.is_stopping:
            try:
                async with self._producer(is_idempotent=True) as producer:
                    await self._send_for_a_while(partial(self._send_in_passing, producer), self._passing)
            except RaftMQError as error:
                self.count_error("producer", error)
                await self._pause(0.2)

    def _passing(self) -> list[TopicPartition]:
        """Return the temporary topics that exist as far as the administrator knows, or all if there are none."""
        return [TopicPartition(topic, 0) for topic in self._short_lived or _SHORT_LIVED_TOPICS]

    async def _send_in_passing(self, producer: Producer, where: TopicPartition) -> None:
        value = self._new_value()
        try:
            await (await producer.send(where.topic, value, partition=where.partition))
        except RaftMQError as error:
            self.count_error("send in passing", error)
            if error.outcome is Outcome.NOT_APPLIED:
                self._checker.judge(self._checker.definite_failures.on_refused, value, type(error).__name__)
        else:
            self.count("send in passing ok")

    async def _send_for_a_while(
        self, send: Callable[[TopicPartition], Coroutine[Any, Any, None]], targets: Callable[[], list[TopicPartition]]
    ) -> None:
        until = self._loop.time() + self._rng.uniform(2.0, 8.0)
        waiting: set[asyncio.Task[None]] = set()
        while not self.is_stopping and self._loop.time() < until:
            where = self._rng.choice(targets())
            for _ in range(self._rng.choice((1, 2, 4))):
                task = asyncio.create_task(send(where))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            if len(waiting) >= _IN_FLIGHT_MAX:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            await self._pause(self._options.send_every)
        if waiting:
            await asyncio.wait(waiting)

    def _new_value(self) -> bytes:
        self._value += 1
        padding = self._rng.randrange(self._options.value_bytes_max)
        return b"v%d " % self._value + b"x" * padding

    async def _send(self, process: str, producer: RecordingProducer, where: TopicPartition) -> None:
        value = self._new_value()
        failures = self._checker.definite_failures
        sent_to = self.groups[where]
        if process.startswith("n") and name_epoch(producer.producer) < self._name_epoch:
            self.count("send succeeded")
            self._checker.judge(failures.on_refused, value, "that its name has a successor")
        try:
            delivery = await producer.send(where.topic, value, partition=where.partition)
            metadata: RecordMetadata = await delivery
        except RaftMQError as error:
            self.count_error("send", error)
            if error.outcome is Outcome.NOT_APPLIED:
                self._checker.judge(failures.on_refused, value, type(error).__name__)
        else:
            self.count("send ok")
            group_id = self.groups[where]
            self._checker.judge(
                self._checker.acknowledged.on_acknowledged, group_id, where, metadata.offset, value, sent_to
            )

    # ------------------------------------------------------------------------------------------------ consuming

    async def _consume(self, name: str) -> None:
        life = 0
        while not self.is_stopping:
            life += 1
            recording = RecordingConsumer(
                self._consumer(*self.topics), self.recorder, f"{name}.{life}", start="earliest"
            )
            try:
                async with recording:
                    await self._poll_for_a_while(recording)
            except RaftMQError as error:
                self.count_error("consumer", error)
                await self._pause(0.2)

    async def _poll_for_a_while(self, consumer: RecordingConsumer) -> None:
        until = self._loop.time() + self._rng.uniform(3.0, 9.0)
        while not self.is_stopping and self._loop.time() < until:
            try:
                found = await consumer.getmany(timeout_ms=300, max_records=self._rng.choice((5, 1000)))
                await self._pause(0.12)
                if self._rng.random() < 0.03:
                    await consumer.seek_to_beginning()
            except RaftMQError as error:
                self.count_error("poll", error)
                await self._pause(0.1)
                continue
            self.count("poll ok")
            self.judge_records(found)

    def judge_records(self, found: Any) -> None:  # noqa: ANN401 -- the SDK's mapping
        """Check the records that a consumer returned."""
        for where, records in found.items():
            group_id = self.groups[where]
            for record in records:
                self._checker.judge(self._checker.reads.on_read, group_id, record)

    # ------------------------------------------------------------------------------------------------ consumer groups

    def _member(self, member_id: str) -> Member:
        return Member(
            GROUP, member_id, self.topics, self._cluster.addresses(), self._transport(), self._checker, self._rng,
            self.count, self.count_error, 0.0 if self.is_stopping else self._options.late_share,
        )  # fmt: skip

    async def _take_part(self, name: str) -> None:
        """Run one member after the other. Some end without leaving the group."""
        life = 0
        while not self.is_stopping:
            life += 1
            until = self._loop.time() + self._rng.uniform(3.0, 9.0)
            member = self._member(f"{name}.{life}")
            try:
                await member.start()
                await member.run(partial(self._is_over, until))
            except RaftMQError as error:
                self.count_error("member", error)
            await member.close(is_orderly=self.is_stopping or self._rng.random() < 0.85)  # type: ignore[redundant-expr]  # changes while it is awaited
            await self._pause(0.2)

    def _is_over(self, until: float) -> bool:
        return self.is_stopping or self._loop.time() >= until

    async def _verify_group(self) -> None:
        """Check that the only member gets every partition and continues at the committed offsets."""
        life = 0
        while True:
            life += 1
            member = self._member(f"v.{life}")
            try:
                await member.start()
                await member.run(lambda member=member: member.has_all(self._checker.committed.ends))  # type: ignore[misc]  # bound now
                if self._options.grow_every:
                    await self._grow_beside(member)
                    await member.learn_targets(is_fresh=True)
                    await member.run(lambda member=member: member.has_all(self._checker.committed.ends))  # type: ignore[misc]
                await member.finish()
            except RaftMQError as error:
                self.count_error("verify", error)
                await asyncio.sleep(0.2)
            else:
                return
            finally:
                await member.close(is_orderly=True)

    async def _grow_beside(self, member: Member) -> None:
        """Add a partition while a member takes part in its group, since one without heartbeats may be out before the partition is there."""
        growth = asyncio.ensure_future(self._add_partition())
        try:
            await member.run(growth.done)
            await growth
        finally:
            growth.cancel()

    async def _add_partition(self) -> None:
        """Add a partition without records to a permanent topic."""
        async with self.new_admin() as admin:
            # A broker that has only just restarted may not know the last partitions.
            while (topic := await admin.describe_topic(self.topics[0])).is_unconfirmed:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.1)
            await admin.add_partitions(topic.name, len(topic.partitions) + 1)

    # ------------------------------------------------------------------------------------------------ administrating

    async def _give_orders(
        self, name: str, kind: str, every: float, order: Callable[[RecordingAdmin], Awaitable[None]]
    ) -> None:
        """Give one order after the other, `every` so many seconds, with a new administrator after each error."""
        life = 0
        while not self.is_stopping:
            life += 1
            try:
                async with RecordingAdmin(self.new_admin(), self.recorder, f"{name}.{life}") as admin:
                    while not self.is_stopping:
                        await self._pause(every)
                        await order(admin)
            except RaftMQError as error:
                self.count_error(kind, error)
                await self._pause(0.2)

    async def _administrate(self, admin: RecordingAdmin) -> None:
        """Create, grow, describe or delete a temporary topic, or alter the configuration of a permanent one."""
        alive = self._short_lived
        what = self._rng.choice(("create", "delete", "alter", "grow", "describe"))
        if what == "create" and len(alive) < _SHORT_LIVED_TOPICS_MAX:
            # names are reused for new topics
            alive.append(self._rng.choice([topic for topic in _SHORT_LIVED_TOPICS if topic not in alive]))
            await admin.create_topic(alive[-1], self._rng.choice((1, 2)), self._options.replication_factor)
        elif what == "delete" and alive:
            await admin.delete_topic(alive.pop(self._rng.randrange(len(alive))))
        elif what == "grow" and alive:
            with suppress(UnknownTopicError):
                await admin.add_partitions(self._rng.choice(alive), self._rng.choice((2, 3)))
        elif what == "alter":
            bytes_max = self._rng.choice((100_000, 200_000))
            await admin.alter_topic_config(self.topics[0], {"max.batch.bytes": bytes_max})
        else:
            await admin.describe_topic(self._rng.choice([*alive, *self.topics]))
        self.count("admin ok")

    async def _grow(self, admin: RecordingAdmin) -> None:
        """Add partitions to a permanent topic. All clients then use them, too."""
        topic = self._rng.choice(self.topics)
        present = sum(where.topic == topic for where in self.groups)
        if present < _PARTITIONS_MAX:
            with suppress(InvalidPartitionsError):  # an attempt without an answer was carried out
                await admin.add_partitions(topic, present + self._rng.choice((1, 1, 2)))
            self._learn_partitions(await admin.describe_topic(topic))
            self.count("growth ok")

    async def _trim(self, admin: RecordingAdmin) -> None:
        where = self._rng.choice(list(self.groups))
        group_id = self.groups[where]
        end = self._checker.committed.ends.get(group_id, 0)
        before = self._rng.randrange(end + 1)
        self._checker.acknowledged.on_trim(group_id, before)
        await admin.delete_records({where: before})
        self.count("trim ok")

    # ------------------------------------------------------------------------------------------------ after healing

    def verify(self) -> asyncio.Task[None]:
        """Write to every partition and read all records."""
        return self.spawn("v0", self._verify())

    async def _verify(self) -> None:
        while True:
            try:
                if self._options.grow_every:
                    await self._learn_all_partitions()
                async with RecordingProducer(
                    self._producer(is_idempotent=True), self.recorder, f"v.{self._value}"
                ) as producer:
                    for where in self.groups:
                        value = self._new_value()
                        delivery = await producer.send(where.topic, value, partition=where.partition)
                        metadata = await delivery
                        self._checker.judge(
                            self._checker.acknowledged.on_acknowledged,
                            self.groups[where],
                            where,
                            metadata.offset,
                            value,
                        )
                break
            except RaftMQError as error:
                self.count_error("verify", error)
                await asyncio.sleep(0.2)
        if self._options.members:
            await asyncio.gather(self._verify_records(), self._verify_group())
        else:
            await self._verify_records()

    async def _learn_all_partitions(self) -> None:
        async with self.new_admin() as admin:
            for topic in self.topics:
                self._learn_partitions(await admin.describe_topic(topic))

    async def _verify_records(self) -> None:
        while True:
            try:
                await self._read_all()
                return
            except RaftMQError as error:
                self.count_error("verify", error)
                await asyncio.sleep(0.2)

    async def _read_all(self) -> None:
        process = f"v.{self._value}.{len(self.history)}"
        async with RecordingConsumer(self._consumer(), self.recorder, process, start="earliest") as consumer:
            starts = await consumer.consumer.beginning_offsets(self.groups)
            found = await consumer.read_all(self.groups)
            self.judge_records(found)
            for where, group_id in self.groups.items():
                read = {record.offset: record.value or b"" for record in found[where]}
                start = min(read, default=starts[where])
                self._checker.judge(self._checker.acknowledged.check_read, group_id, start, read)
