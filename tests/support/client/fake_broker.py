# ruff: noqa: N802 - the names of gRPC's servicer methods
"""Provide a FAKE cluster for the SDK's tests: real grpc.aio servers on loopback over one shared dictionary, no Raft, no disk.

It keeps the promises that a client relies on: dense offsets, sequences validated as by a leader, one leader with an epoch per partition, and
typed errors in the status details. A test can make it misbehave. ``tests/e2e`` uses the real broker.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as PackedAny
from google.rpc import status_pb2
from raftmq.batch_header import parse_header, validate
from raftmq.call_metadata import CLUSTER_KEY
from raftmq.message_checks import BatchLimits
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as rpc
from raftmq.queue_batch import validate_queue

from tests.support.client.fake_config import FakeConfigService
from tests.support.client.fake_data_port import FakeDataPort
from tests.support.client.fake_moves import FakeMoves, FakeMovesService
from tests.support.client.fake_queue import AckHook, FakeQueue, FakeQueueService, FakeStream
from tests.support.client.fake_recovery import FakeLosses, FakeRecoveryService

BATCH_BYTES_MAX = 3 << 20
QUEUE_LIMITS = BatchLimits(message_bytes_max=3 << 20)


def detail(code: int, message: str = "", **fields: int) -> pb.ErrorDetail:
    retriable = {
        pb.NOT_LEADER,
        pb.LEADERSHIP_LOST,
        pb.THROTTLED,
        pb.NO_LEADER,
        pb.NOT_READY,
        pb.REQUEST_TIMED_OUT,
        pb.DISK_FULL,
        pb.QUEUE_FULL,
        pb.TENANT_FULL,
    }
    unknown = {pb.LEADERSHIP_LOST, pb.REQUEST_TIMED_OUT}
    return pb.ErrorDetail(
        code=code,
        message=message or pb.ErrorCode.Name(code),
        retriable=code in retriable,
        outcome=pb.UNKNOWN_OUTCOME if code in unknown else pb.NOT_APPLIED,
        **fields,
    )


async def abort(context, error: pb.ErrorDetail) -> None:
    packed = PackedAny()
    packed.Pack(error)
    status = status_pb2.Status(
        code=grpc.StatusCode.FAILED_PRECONDITION.value[0], message=error.message, details=[packed]
    )
    metadata = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.message, trailing_metadata=metadata)


class ClusterCheck(grpc.aio.ServerInterceptor):
    """An interceptor that refuses calls for another cluster, as a broker does."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def intercept_service(self, continuation, handler_call_details):
        handler = await continuation(handler_call_details)
        wanted = dict(handler_call_details.invocation_metadata).get(CLUSTER_KEY, "")
        self._cluster.clusters_called[handler_call_details.method.rpartition("/")[2]] = wanted
        if wanted in ("", self._cluster.cluster_id) or handler is None:
            return handler

        async def refuse(request, context):
            await abort(context, detail(pb.WRONG_CLUSTER, "of another cluster"))

        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(refuse, handler.request_deserializer, handler.response_serializer)


@dataclass
class ProducerState:
    epoch: int
    last_sequence: int = -1
    recent: list[tuple[int, int, int]] = field(default_factory=list)  # first, last, base offset


@dataclass
class FakePartition:
    group_id: int
    leader: int
    leader_epoch: int = 1
    followers: list[int] = field(default_factory=list)
    is_pinned: bool = False
    is_led: bool = True
    """Whether descriptions name its leader."""
    ordered: list[int] = field(default_factory=list)
    """The brokers that an operator's move under way has named. A cluster describes them as the replicas from the order on."""
    log_start: int = 0
    batches: list[tuple[int, int, bytes, int]] = field(default_factory=list)  # base offset, count, bytes, append time
    producers: dict[int, ProducerState] = field(default_factory=dict)
    forgotten: set[int] = field(default_factory=set)
    """Producers whose state was expired, although the log may hold their batches."""
    is_queue: bool = False
    queue: FakeQueue = field(default_factory=FakeQueue)
    """The messages of a queue topic's partition."""
    known: list[tuple[int, int, bool]] = field(default_factory=list)
    """The ids of the last batch that were known: position, sequence, and whether the message was replaced."""

    @property
    def replicas(self) -> list[int]:
        """The brokers that hold the partition, the leader first."""
        return [self.leader, *self.followers]

    def move_to(self, brokers: list[int]) -> None:
        """Move the partition to other brokers. The first one leads it."""
        self.leader_epoch += self.leader != brokers[0]
        self.leader, *self.followers = brokers
        self.ordered = []

    def forget_producers(self) -> None:
        """Forget every producer, as after a long time without batches."""
        self.forgotten |= set(self.producers)
        self.producers.clear()

    @property
    def end(self) -> int:
        return self.batches[-1][0] + self.batches[-1][1] if self.batches else self.log_start

    def append(
        self, batch: bytes, append_time_ms: int, fenced: dict[int, int] | None = None
    ) -> tuple[int, pb.ErrorDetail | None]:
        self.known = []
        header = (
            validate_queue(batch, BATCH_BYTES_MAX, QUEUE_LIMITS)[0]
            if self.is_queue
            else validate(batch, BATCH_BYTES_MAX)
        )
        if header.producer_id:
            state = self.producers.setdefault(header.producer_id, ProducerState(header.producer_epoch))
            if header.producer_epoch < state.epoch:
                return -1, detail(pb.PRODUCER_FENCED)
            if header.producer_epoch > state.epoch:
                state = self.producers[header.producer_id] = ProducerState(header.producer_epoch)
            for first, last, base in state.recent:
                if (first, last) == (header.first_sequence, header.last_sequence):
                    return base, None
            if header.last_sequence <= state.last_sequence:
                return -1, None
            if header.first_sequence <= state.last_sequence:
                return -1, detail(pb.SEQUENCE_OVERLAP, last_sequence=state.last_sequence)
            if header.producer_epoch < (fenced or {}).get(header.producer_id, 0):
                return -1, detail(pb.PRODUCER_FENCED)
            if header.first_sequence != state.last_sequence + 1:
                text = f"{header.first_sequence} after {state.last_sequence}"
                is_certain = state.last_sequence >= 0 or header.producer_id not in self.forgotten
                return -1, detail(pb.OUT_OF_ORDER_SEQUENCE, text, is_certain=is_certain)
            state.last_sequence = header.last_sequence
            state.recent = [*state.recent[-4:], (header.first_sequence, header.last_sequence, self.end)]
        base = self.end
        self.batches.append((base, header.record_count, batch, append_time_ms))
        if self.is_queue:
            self.known = self.queue.enqueue(base, batch)
        return base, None


@dataclass
class FakeTopic:
    topic_id: int
    name: str
    partitions: list[FakePartition]
    config: dict[str, str] = field(default_factory=dict)
    replication_factor: int = 1
    kind: str = "log"
    schedule_partitions: int = 1


AppendHook = Callable[[int, "FakeTopic", int, bytes], "pb.ErrorDetail | str | None"]
"""Called with broker id, topic, partition and batch. Returns None (append), an error (refuse), "drop" (append, but never answer the request)
or "swallow" (neither append nor answer)."""


class FakeCluster:
    """An async context manager: ``async with FakeCluster(brokers=2) as cluster``. Its methods notify watchers of changes."""

    def __init__(self, brokers: int = 1, *, has_data_ports: bool = False) -> None:
        self.cluster_id = "fake-cluster"
        self.has_data_ports = has_data_ports
        self.knows_timestamps = True
        """Whether the brokers search for records by their own timestamps. Older ones know append times only."""
        self.revision = 1
        self.metadata_leader = pb.PartitionLeader(group_id=0, broker_id=1, leader_epoch=1)
        self.is_unconfirmed = False
        self.feature_level = 1
        self.topics: dict[str, FakeTopic] = {}
        self.brokers = {n: FakeBroker(self, n) for n in range(1, brokers + 1)}
        self.clusters_called: dict[str, str] = {}
        """The cluster id in the last call of each method."""
        self.append_hook: AppendHook | None = None
        self.append_gate = asyncio.Event()
        self.append_gate.set()
        self.appended = asyncio.Condition()
        self.polled = asyncio.Condition()
        self.append_requests: list[tuple[int, pb.AppendRequest]] = []
        self.poll_requests: list[tuple[int, pb.PollRequest]] = []
        self.deleted_topics: list[int] = []
        self.now_ms = 0
        self._next_topic_id = 1
        self._next_group_id = 1
        self._next_producer_id = 1000
        self.fence_gate = asyncio.Event()
        self.fence_gate.set()
        self.fenced: dict[int, int] = {}  # by producer id: the lowest epoch whose batches are accepted
        self.names: dict[str, tuple[int, int, bytes]] = {}  # id, epoch and stamp of named producers
        self.moves = FakeMoves()
        self.config: dict[int, dict[str, str]] = {}
        """Run-time settings by broker. 0: all brokers."""
        self.losses = FakeLosses()
        self._watchers: set[asyncio.Queue[None]] = set()
        self.queue_streams: dict[FakeStream, None] = {}
        self.held_answers: list[tuple[FakeStream, pb.QueueStreamResponse]] | None = None
        """Answers to settlements, which were applied, until `release_answers`. None: they are not held back."""
        self.queue_changed = asyncio.Condition()
        self.stream_requests: list[tuple[int, pb.QueueStreamRequest]] = []
        self.queue_polls: list[tuple[int, pb.QueuePollRequest]] = []
        self.acks: list[pb.PartitionAck] = []
        """Every PartitionAck, of streams and of unary calls."""
        self.unary_acks: list[pb.AckRequest] = []
        self.ack_hook: AckHook | None = None
        self.silent_poller = 0
        """The broker that answers no poll of a queue, as one that is frozen."""
        self.stream_error: pb.ErrorDetail | None = None
        """The error with which every new PollStream ends."""
        self.jobs: dict[int, int] = {}
        self.job_requests: list[pb.StartJobRequest] = []
        self.is_job_endless = False
        self.cancelled_jobs: list[pb.CancelJobRequest] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.append_gate.set()
        for broker in self.brokers.values():
            await broker.stop()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def create_queue(self, name: str, partitions: int = 1, **config: str) -> list[FakeQueue]:
        """Create a queue topic, and return the messages of its partitions."""
        topic = self.create_topic(name, partitions)
        topic.kind = "queue"
        topic.schedule_partitions = partitions
        topic.config.update({key.replace("_", "."): value for key, value in config.items()})
        for partition in topic.partitions:
            partition.is_queue = True
        self.changed()
        return [partition.queue for partition in topic.partitions]

    def serve_queues(self) -> None:
        """Push messages to the streams that have credit, and wake waiting calls."""
        for stream in list(self.queue_streams):
            stream.push()
        queues = [partition.queue for topic in self.topics.values() for partition in topic.partitions]
        due = [left for queue in queues if (left := queue.next_due_ms()) is not None]
        if due:
            asyncio.get_running_loop().call_later(min(due) / 1000, self.serve_queues)
        self.on_settled()

    def on_settled(self) -> None:
        """Wake the calls and the tests that wait for a change of a queue."""
        task = asyncio.ensure_future(self._notify_queues())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify_queues(self) -> None:
        async with self.queue_changed:
            self.queue_changed.notify_all()

    def release_answers(self, count: int | None = None) -> None:
        """Send answers that are held back: so many, or all, and from then on every answer."""
        held = self.held_answers or []
        released = held[:count] if count is not None else held
        self.held_answers = held[count:] if count is not None else None
        for stream, response in released:
            stream.responses.put_nowait(response)

    def lose_answers(self) -> None:
        """Break the streams whose answers are held back. Later answers are sent."""
        held, self.held_answers = self.held_answers or [], None
        for stream in dict.fromkeys(stream for stream, _ in held):
            stream.break_off()

    async def wait_queue(self, is_true: Callable[[], bool]) -> None:
        """Wait until a queue has changed to some state."""
        async with self.queue_changed:
            await self.queue_changed.wait_for(is_true)

    def create_topic(self, name: str, partitions: int = 1, replication_factor: int = 1) -> FakeTopic:
        made = [self._make_partition(self._next_group_id + n, n, replication_factor) for n in range(partitions)]
        self._next_group_id += partitions
        topic = FakeTopic(self._next_topic_id, name, made, replication_factor=replication_factor)
        self._next_topic_id += 1
        self.topics[name] = topic
        self.changed()
        return topic

    def _make_partition(self, group_id: int, number: int, replication_factor: int) -> FakePartition:
        ids = list(self.brokers)
        leader, *others = (ids[(number + n) % len(ids)] for n in range(len(ids)))
        return FakePartition(group_id, leader, followers=others[: replication_factor - 1])

    def delete_topic(self, name: str) -> None:
        self.deleted_topics.append(self.topics.pop(name).topic_id)
        self.changed()

    def add_partitions(self, name: str, total: int) -> None:
        topic = self.topics[name]
        while len(topic.partitions) < total:
            topic.partitions.append(FakePartition(self._next_group_id, 1))
            self._next_group_id += 1
        self.changed()

    def move_leader(self, topic: str, partition: int, broker: int, *, is_announced: bool = True) -> None:
        moved = self.topics[topic].partitions[partition]
        if broker in moved.followers:
            moved.followers[moved.followers.index(broker)] = moved.leader
        moved.leader = broker
        moved.leader_epoch += 1
        if is_announced:
            self.changed()

    @asynccontextmanager
    async def silence(self) -> AsyncIterator[None]:
        """Notify no watcher during the block, so that clients notice changes only by asking."""
        watchers, self._watchers = self._watchers, set()
        try:
            yield
        finally:
            self._watchers |= watchers
            self.changed()

    def changed(self) -> None:
        self.revision += 1
        for queue in self._watchers:
            queue.put_nowait(None)

    def find(self, topic_id: int) -> FakeTopic | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def table(self) -> pb.TopologyUpdate:
        return pb.TopologyUpdate(
            cluster_id=self.cluster_id,
            metadata_revision=self.revision,
            is_full=True,
            has_brokers=True,
            brokers=[pb.Broker(broker_id=n.broker_id, address=n.address, state="up") for n in self.brokers.values()],
            topics=[topic_message(topic) for topic in self.topics.values()],
            leaders=self.leaders(),
        )

    def leaders(self) -> list[pb.PartitionLeader]:
        return [
            self.metadata_leader,
            *(
                pb.PartitionLeader(group_id=p.group_id, broker_id=p.leader * p.is_led, leader_epoch=p.leader_epoch)
                for topic in self.topics.values()
                for p in topic.partitions
            ),
        ]

    def next_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def time_ms(self) -> int:
        return self.now_ms or int(time.time() * 1000)


def topic_message(topic: FakeTopic) -> pb.Topic:
    return pb.Topic(
        topic_id=topic.topic_id,
        name=topic.name,
        kind=topic.kind,
        replication_factor=topic.replication_factor,
        config=topic.config,
        partitions=[
            pb.Partition(
                partition=n, group_id=p.group_id, replica_brokers=p.ordered or p.replicas, is_pinned=p.is_pinned
            )
            for n, p in enumerate(topic.partitions)
        ],
        schedule_partitions=topic.schedule_partitions,
    )


class FakeBroker(
    FakeMovesService, FakeRecoveryService, FakeConfigService, rpc.LogServicer, rpc.TopologyServicer, rpc.AdminServicer
):
    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.port = 0
        self.server: grpc.aio.Server | None = None
        self.queue = FakeQueueService(self)
        self.data_port = FakeDataPort(self)
        self.open_data_connection = self._open_data_connection
        """The handler of OpenDataConnection. Tests replace it."""
        self.data_opens = 0
        """Number of OpenDataConnection calls."""
        self.streams = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.server = grpc.aio.server(interceptors=[ClusterCheck(self.cluster)], options=[("grpc.so_reuseport", 0)])
        rpc.add_LogServicer_to_server(self, self.server)
        rpc.add_QueueServicer_to_server(self.queue, self.server)
        rpc.add_TopologyServicer_to_server(self, self.server)
        rpc.add_AdminServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        if self.cluster.has_data_ports:
            await self.data_port.start()
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            server, self.server = self.server, None
            await self.data_port.stop()
            await server.stop(None)

    # ------------------------------------------------------------------------------------------------------------ queue

    async def InitProducer(self, request, context):
        if not request.HasField("name"):
            return pb.InitProducerResponse(producer_id=self.cluster.next_producer_id(), epoch=0)
        claimed = self.claim(request, request.epoch if request.HasField("epoch") else None)
        if claimed is None:
            await abort(context, detail(pb.PRODUCER_FENCED))
            return None
        producer_id, epoch, stamp = claimed
        answer = pb.InitProducerResponse(
            producer_id=producer_id, epoch=epoch, stamp=stamp, metadata_revision=self.cluster.revision
        )
        if request.HasField("then") and stamp == request.stamp:
            second = self.claim(request.then, request.then.epoch, request.then.shared_bytes)
            if second is None:
                answer.then.error.CopyFrom(detail(pb.PRODUCER_FENCED))
            else:
                answer.then.stamp = second[2]
        return answer

    def claim(self, request, wanted: int | None, shared: int = 0) -> tuple[int, int, bytes] | None:
        names = self.cluster.names
        producer_id, epoch, stamp = names.get(request.name) or (self.cluster.next_producer_id(), -1, b"")
        is_repeated = bool(request.stamp) and request.stamp == stamp
        wanted = epoch + (not is_repeated) if wanted is None else wanted
        if wanted < epoch:
            return None
        if wanted > epoch or (request.HasField("replaces") and request.replaces == stamp):
            stamp = request.stamp
        elif shared and stamp[:shared] == request.stamp[:shared]:
            longest = max(len(stamp), len(request.stamp))
            rests = (each[shared:].ljust(longest - shared, b"\0") for each in (stamp, request.stamp))
            stamp = stamp[:shared] + bytes(map(operator.or_, *rests))
        names[request.name] = (producer_id, wanted, stamp)
        return names[request.name]

    async def FenceProducer(self, request, context):
        cluster = self.cluster
        await cluster.fence_gate.wait()
        cluster.fenced[request.producer_id] = max(request.epoch, cluster.fenced.get(request.producer_id, 0))
        if request.epoch < cluster.fenced[request.producer_id]:
            await abort(context, detail(pb.PRODUCER_FENCED))
        return pb.FenceProducerResponse(addresses=[broker.address for broker in cluster.brokers.values()])

    async def Append(self, request, context):
        response = await self.append(request)
        if response is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "dropped")
        return response

    async def AppendStream(self, request_iterator, context) -> AsyncIterator[pb.AppendResponse]:
        self.streams += 1
        async for request in request_iterator:
            response = await self.append(request)
            if response is not None:
                yield response

    async def append(self, request: pb.AppendRequest) -> pb.AppendResponse | None:
        cluster = self.cluster
        cluster.append_requests.append((self.broker_id, request))
        async with cluster.appended:
            cluster.appended.notify_all()
        await cluster.append_gate.wait()
        response = pb.AppendResponse(correlation_id=request.correlation_id)
        is_dropped = False
        for part in request.partitions:
            result, drops = self._append_partition(part)
            is_dropped |= drops
            response.partitions.append(result)
        cluster.serve_queues()
        for queue in cluster._watchers:
            queue.put_nowait(None)
        async with cluster.appended:
            cluster.appended.notify_all()
        return None if is_dropped else response

    def _append_partition(self, part: pb.PartitionAppend) -> tuple[pb.PartitionAppendResult, bool]:
        result = pb.PartitionAppendResult()
        topic = self.cluster.find(part.topic_id)
        if topic is None:
            result.error.CopyFrom(detail(pb.UNKNOWN_TOPIC))
            return result, False
        partition = topic.partitions[part.partition]
        if partition.leader != self.broker_id:
            result.error.CopyFrom(self._not_leader(partition))
            return result, False
        drops = False
        for number, batch in enumerate(part.batches):
            verdict = None
            if self.cluster.append_hook is not None:
                verdict = self.cluster.append_hook(self.broker_id, topic, part.partition, batch)
            if isinstance(verdict, pb.ErrorDetail):
                result.error.CopyFrom(verdict)
                break
            if verdict == "swallow":
                drops = True
                continue
            drops |= verdict == "drop"
            base, error = partition.append(batch, self.cluster.time_ms(), self.cluster.fenced)
            if error is not None:
                result.error.CopyFrom(error)
                break
            result.base_offsets.append(base)
            for position, sequence, is_replaced in partition.known:
                result.known_messages.add(batch=number, position=position, sequence=sequence, is_replaced=is_replaced)
        return result, drops

    async def refuse(self, context, code: int) -> None:
        await abort(context, detail(code))

    async def refuse_not_leader(self, context, partition: FakePartition) -> None:
        await abort(context, self._not_leader(partition))

    def _not_leader(self, partition: FakePartition) -> pb.ErrorDetail:
        error = detail(pb.NOT_LEADER)
        leader = self.cluster.brokers.get(partition.leader)
        error.leader.CopyFrom(
            pb.LeaderHint(
                broker_id=partition.leader,
                address=leader.address if leader else "",
                leader_epoch=partition.leader_epoch,
            )
        )
        return error

    async def Poll(self, request, context):
        async with self.cluster.polled:
            self.cluster.poll_requests.append((self.broker_id, request))
            self.cluster.polled.notify_all()
        deadline = time.monotonic() + request.max_wait_ms / 1000
        woken: asyncio.Queue[None] = asyncio.Queue()
        self.cluster._watchers.add(woken)
        try:
            while True:
                response = self._poll_now(request)
                remaining = deadline - time.monotonic()
                if response.partitions or remaining <= 0:
                    return response
                try:
                    async with asyncio.timeout(remaining):
                        await woken.get()
                except TimeoutError:
                    pass
        finally:
            self.cluster._watchers.discard(woken)

    def _poll_now(self, request: pb.PollRequest) -> pb.PollResponse:
        response = pb.PollResponse()
        room = request.max_bytes
        for wanted in request.partitions:
            result = pb.PartitionPollResult(topic_id=wanted.topic_id, partition=wanted.partition)
            topic = self.cluster.find(wanted.topic_id)
            if topic is None:
                result.error.CopyFrom(detail(pb.UNKNOWN_TOPIC))
                response.partitions.append(result)
                continue
            partition = topic.partitions[wanted.partition]
            result.high_watermark, result.log_start_offset = partition.end, partition.log_start
            result.leader_epoch = partition.leader_epoch
            if partition.leader != self.broker_id:
                result.error.CopyFrom(self._not_leader(partition))
                response.partitions.append(result)
                continue
            if wanted.offset < partition.log_start or wanted.offset > partition.end:
                bounds = {"log_start_offset": partition.log_start, "high_watermark": partition.end}
                result.error.CopyFrom(detail(pb.OFFSET_OUT_OF_RANGE, "", **bounds))
                response.partitions.append(result)
                continue
            part_room = wanted.max_bytes or room
            for base, count, batch, append_time in partition.batches:
                if base + count <= wanted.offset:
                    continue
                if result.batches and (len(batch) > part_room or len(batch) > room):
                    break
                result.base_offsets.append(base)
                result.batches.append(batch)
                result.append_times_ms.append(append_time)
                room -= len(batch)
                part_room -= len(batch)
            if result.batches:
                response.partitions.append(result)
        return response

    async def OpenDataConnection(self, request, context):
        self.data_opens += 1
        return await self.open_data_connection(request, context)

    async def _open_data_connection(self, request, context):
        if not self.cluster.has_data_ports:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not implemented!")
        return pb.OpenDataConnectionResponse(
            port=self.data_port.port,
            token=self.data_port.token(),
            version=0 if self.data_port.version == 1 else self.data_port.version,  # the first one did not say
        )

    async def ListOffsets(self, request, context):
        response = pb.ListOffsetsResponse()
        for wanted in request.partitions:
            result = response.partitions.add(topic_id=wanted.topic_id, partition=wanted.partition)
            topic = self.cluster.find(wanted.topic_id)
            if topic is None:
                result.error.CopyFrom(detail(pb.UNKNOWN_TOPIC))
                continue
            partition = topic.partitions[wanted.partition]
            if partition.leader != self.broker_id:
                result.error.CopyFrom(self._not_leader(partition))
            elif wanted.time_ms == -1:
                result.offset = partition.end
            elif wanted.time_ms == -2:
                result.offset = partition.log_start
            elif wanted.time_kind == pb.TIMESTAMP and self.cluster.knows_timestamps:
                first = max(wanted.from_offset, partition.log_start)
                hits = [
                    (max(base, first), at)
                    for base, count, batch, at in partition.batches
                    if base + count > first and parse_header(batch).max_timestamp_ms >= wanted.time_ms
                ]
                result.time_kind = pb.TIMESTAMP
                result.offset, result.append_time_ms = hits[0] if hits else (-1, 0)
            else:
                hits = [(base, at) for base, _, _, at in partition.batches if at >= wanted.time_ms]
                result.offset, result.append_time_ms = hits[0] if hits else (-1, -1)
        return response

    async def DeleteRecords(self, request, context):
        response = pb.DeleteRecordsResponse()
        for wanted in request.partitions:
            partition = self.cluster.find(wanted.topic_id).partitions[wanted.partition]
            before = partition.end if wanted.before_offset < 0 else wanted.before_offset
            result = response.partitions.add(topic_id=wanted.topic_id, partition=wanted.partition)
            if partition.leader != self.broker_id:
                result.error.CopyFrom(self._not_leader(partition))
                continue
            partition.log_start = max(partition.log_start, before)
            partition.batches = [b for b in partition.batches if b[0] + b[1] > partition.log_start]
            result.log_start_offset = partition.log_start
        return response

    # --------------------------------------------------------------------------------------------------------- topology

    async def Watch(self, request, context) -> AsyncIterator[pb.TopologyUpdate]:
        if request.cluster_id and request.cluster_id != self.cluster.cluster_id:
            await abort(context, detail(pb.WRONG_CLUSTER))
        changes: asyncio.Queue[None] = asyncio.Queue()
        self.cluster._watchers.add(changes)
        sent = -1
        try:
            while True:
                if self.cluster.revision != sent:
                    sent = self.cluster.revision
                    yield self.cluster.table()
                await changes.get()
        finally:
            self.cluster._watchers.discard(changes)

    # ------------------------------------------------------------------------------------------------------------ admin

    async def CreateTopic(self, request, context):
        if request.name in self.cluster.topics:
            await abort(context, detail(pb.TOPIC_ALREADY_EXISTS))
        topic = self.cluster.create_topic(request.name, request.partitions or 1, request.replication_factor or 1)
        topic.config.update(request.config)
        topic.kind = request.kind or "log"
        for partition in topic.partitions:
            partition.is_queue = topic.kind == "queue"
        self.cluster.changed()
        return pb.CreateTopicResponse(
            topic_id=topic.topic_id, metadata_revision=self.cluster.revision, topic=topic_message(topic)
        )

    async def DeleteTopic(self, request, context):
        await self._known(request.name, context)
        self.cluster.delete_topic(request.name)
        return pb.DeleteTopicResponse(metadata_revision=self.cluster.revision)

    async def ListTopics(self, request, context):
        topics = [topic_message(topic) for topic in self.cluster.topics.values()]
        return pb.ListTopicsResponse(
            topics=topics, metadata_revision=self.cluster.revision, is_unconfirmed=self.cluster.is_unconfirmed
        )

    async def DescribeTopic(self, request, context):
        topic = await self._known(request.name, context)
        groups = {p.group_id for p in topic.partitions}
        states = self._states(topic) if request.with_states else []
        return pb.DescribeTopicResponse(
            states=states,
            topic=topic_message(topic),
            leaders=[leader for leader in self.cluster.leaders() if leader.group_id in groups],
            effective_config={"retention_ms": "-1"} | topic.config,
            metadata_revision=self.cluster.revision,
            is_unconfirmed=self.cluster.is_unconfirmed,
        )

    def _states(self, topic: FakeTopic) -> list[pb.PartitionState]:
        moves = self.cluster.moves
        is_behind, moves.behind = moves.behind > 0, max(0, moves.behind - 1)
        return [
            pb.PartitionState(
                partition=n,
                in_sync_brokers=[p.leader] if is_behind else p.replicas,
                log_start_offset=p.log_start,
                high_watermark=p.end,
            )
            for n, p in enumerate(topic.partitions)
        ]

    async def AlterTopic(self, request, context):
        topic = await self._known(request.name, context)
        topic.config.update(request.set)
        for name in request.unset:
            topic.config.pop(name, None)
        self.cluster.changed()
        return pb.AlterTopicResponse(metadata_revision=self.cluster.revision)

    async def AddPartitions(self, request, context):
        topic = await self._known(request.name, context)
        if request.total <= len(topic.partitions):
            await abort(context, detail(pb.INVALID_PARTITIONS))
        self.cluster.add_partitions(request.name, request.total)
        return pb.AddPartitionsResponse(metadata_revision=self.cluster.revision, topic=topic_message(topic))

    async def DescribeCluster(self, request, context):
        brokers = [self._described(n) for n in self.cluster.brokers.values()]
        is_late = self.cluster.moves.late_brokers > 0
        if is_late:
            self.cluster.moves.late_brokers -= 1
            for entry in brokers:
                entry.broker.state = "active"
        if self.cluster.moves.idle_leaders > 0:
            self.cluster.moves.idle_leaders -= 1
            brokers[0].leader_count = 0
        return pb.DescribeClusterResponse(
            cluster_id=self.cluster.cluster_id,
            answering_broker_id=self.broker_id,
            metadata_leader_broker_id=self.cluster.metadata_leader.broker_id,
            metadata_revision=0 if is_late else self.cluster.revision,
            brokers=brokers,
            topic_count=len(self.cluster.topics),
            partition_count=sum(len(t.partitions) for t in self.cluster.topics.values()),
            partitions_without_leader=self.cluster.moves.leaderless_count,
            feature_level=self.cluster.feature_level,
            feature_level_max=2,
        )

    def _described(self, broker: FakeBroker) -> pb.ClusterBroker:
        partitions = [p for topic in self.cluster.topics.values() for p in topic.partitions]
        held = [p for p in partitions if broker.broker_id in p.replicas]
        is_draining = broker.broker_id in self.cluster.moves.draining
        state = "draining" if is_draining else "active"
        return pb.ClusterBroker(
            broker=pb.Broker(broker_id=broker.broker_id, address=broker.address, state=state),
            is_metadata_voter=not is_draining or bool(held) or self.cluster.moves.keeps_vote,
            is_connected=broker.broker_id not in self.cluster.moves.unreachable,
            replica_count=len(held),
            leader_count=sum(p.leader == broker.broker_id for p in held),
        )

    async def RemoveBroker(self, request, context):
        if request.broker_id not in self.cluster.brokers:
            await abort(context, detail(pb.UNKNOWN_BROKER))
        if not request.force:
            await abort(context, detail(pb.BROKER_IN_USE))
        return pb.RemoveBrokerResponse(
            metadata_revision=self.cluster.revision,
            replica_count=7,
            without_majority_count=2,
            without_majority=[pb.PartitionName(topic="t", partition=n) for n in (3, 5)],
        )

    async def RaiseFeatureLevel(self, request, context):
        if request.level > 2:
            await abort(context, detail(pb.UNSUPPORTED_VERSION))
        self.cluster.feature_level = request.level or 2
        return pb.RaiseFeatureLevelResponse(metadata_revision=self.cluster.revision, level=self.cluster.feature_level)

    async def _known(self, name: str, context):
        topic = self.cluster.topics.get(name)
        if topic is None:
            await abort(context, detail(pb.UNKNOWN_TOPIC))
        return topic


def records_in(partition: FakePartition) -> list[tuple[bytes | None, bytes | None]]:
    """Return key and value of every record of a partition, in order."""
    from raftmq.client.codec.batch import decode_records

    found = []
    for base, _, batch, _ in partition.batches:
        found += [(r.key, r.value) for r in decode_records(batch, parse_header(batch), "t", 0, base)]
    return found
