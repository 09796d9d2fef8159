"""Simulate the surroundings of a `PartitionTransform` in memory: an input partition with a group's offset, output topics and producer names.

Output partitions use the broker's sequence validator and producer table, and producer names come from the real metadata tables. Every call
takes some turns of the loop and arrives even after its caller has ended. Some answers are lost. Time is a plain number.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from raftmq.batch_header import parse_header
from raftmq.client.codec.batch import decode_records
from raftmq.client.connection.append_stream import SerializedAppend
from raftmq.client.connection.resolver import Leader, TopicInfo
from raftmq.client.producer.partitioner import crc32_partition
from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.client.producer.sequenced_batches import cells_of
from raftmq.client.transformer.handler_calls import Handled
from raftmq.client.transformer.partition_transform import PartitionTransform, TransformParts
from raftmq.client.transformer.routing import MadeOutput
from raftmq.client.transformer.transform_consumer import OpenedPartition
from raftmq.errors import (
    BrokenConnectionError,
    FencedError,
    OffsetOutOfRangeError,
    Outcome,
    ProducerFencedError,
    UnknownTopicError,
)
from raftmq.fsm import codes
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.metadata_producers import init_named_producer
from raftmq.fsm.metadata_tables import MetadataTables
from raftmq.fsm.producer_table import ProducerTable
from raftmq.fsm.sequence_validator import Accept, Duplicate, Fenced, Gap, Overlap, SequenceValidator
from raftmq.methods import APPEND
from raftmq.proto import queue_pb2 as pb
from raftmq.types import LogIndex, Record, TopicPartition

IN = TopicPartition("in", 3)
DAY_S = 86_400
TURNS_MAX = 6
"""Upper limit of the turns of the loop that each direction of a call takes."""


class _Clock:
    now_ms = 0


class OutputPartition:
    """A partition of an output topic on a leader that applies immediately."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.applied_index = LogIndex(0)
        self.expiry = _Clock()
        self.producers = ProducerTable(2)
        self.validate = SequenceValidator(self)  # this class has the part of `AppliedState` that the validator uses
        self.records: list[tuple[str, bytes | None, int]] = []
        """Value, key and generation of each record."""

    def append(self, batch: bytes) -> pb.ErrorDetail | int:
        """Append a batch and return its base offset, or return the refusal."""
        header = parse_header(batch)
        self.expiry.now_ms = self._world.now_s * 1000
        self.producers.expire(self.expiry.now_ms)
        epoch_min = self._world.batch_epoch_min(header.producer_id)
        if header.producer_epoch < epoch_min:
            return pb.ErrorDetail(code=pb.PRODUCER_FENCED, message="by name")
        result = self.validate.validate(header)
        if isinstance(result, Duplicate):
            return max(result.base_offset, 0)
        if isinstance(result, Overlap):
            return pb.ErrorDetail(code=pb.SEQUENCE_OVERLAP, last_sequence=result.last_sequence)
        if isinstance(result, Gap):
            return pb.ErrorDetail(code=pb.OUT_OF_ORDER_SEQUENCE, is_certain=result.is_certain)
        if isinstance(result, Fenced):
            return pb.ErrorDetail(code=pb.PRODUCER_FENCED, message="by the log")
        assert isinstance(result, Accept)
        base_offset = len(self.records)
        for record in decode_records(batch, header, "out", 0, base_offset):
            assert record.value is not None
            self.records.append((record.value.decode(), record.key, header.producer_epoch >> 16))
        self.producers.record(header, base_offset, self.expiry.now_ms)
        return base_offset


@dataclass
class OutputTopic:
    """One incarnation of an output topic."""

    info: TopicInfo
    partitions: list[OutputPartition]


@dataclass
class World:
    """The simulated surroundings: input, output topics, producer names and time."""

    chance: random.Random
    lost_answers: float = 0.1
    """The share of append answers that are lost."""
    now_s: int = 1_700_000_000
    records: list[Record] = field(default_factory=list)
    append_times_s: list[int] = field(default_factory=list)
    log_start: int = 0
    committed: tuple[int, str] | None = None
    owner_epoch: int = 100
    group_id: int = 1
    """The Raft group of the input partition."""
    kept_ends: dict[int, int] = field(default_factory=dict)
    """The offsets where recoveries kept the input, by the group that each of them ended."""
    topics: dict[str, OutputTopic] = field(default_factory=dict)
    incarnations: list[OutputTopic] = field(default_factory=list)
    """All output topics, including deleted ones."""
    handler: Callable[[Record], list[MadeOutput]] = field(default=lambda _: [])
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._tables = MetadataTables()
        self._next_group_id = 1
        self._groups: dict[int, OutputPartition] = {}

    # ------------------------------------------------------------------------------------------------ called by the test

    def write(self, count: int) -> None:
        """Append records to the input."""
        for _ in range(count):
            offset = len(self.records)
            key = b"k%d" % self.chance.randrange(4)
            self.records.append(Record(*IN, offset, 1000 + offset, key, b"%d/%d" % (self.group_id, offset)))
            self.append_times_s.append(self.now_s)

    def create(self, name: str, partitions: int) -> None:
        """Create an output topic, replacing one of the same name."""
        topic = OutputTopic(TopicInfo(name, len(self.incarnations) + 1, ()), [])
        self.topics[name] = topic
        self.incarnations.append(topic)
        self.grow(name, partitions)

    def grow(self, name: str, partitions: int) -> None:
        """Give an output topic more partitions."""
        topic = self.topics[name]
        while len(topic.partitions) < partitions:
            topic.partitions.append(OutputPartition(self))
            self._groups[self._next_group_id] = topic.partitions[-1]
            topic.info = TopicInfo(name, topic.info.topic_id, (*topic.info.group_ids, self._next_group_id))
            self._next_group_id += 1

    def reset(self, offset: int) -> None:
        """Reset the group's offset as an operator does."""
        self.owner_epoch += 1
        self.committed = (offset, "")

    def recover(self, end: int, committed: tuple[int, str] | None) -> None:
        """Recover the input from a replica with the records before `end` and this commit."""
        self.kept_ends[self.group_id] = end
        self.group_id += 1
        del self.records[end:], self.append_times_s[end:]
        self.committed = committed

    def kept_end(self, group_id: int) -> int | None:
        """Return the lowest end that recoveries have kept since a group."""
        return min((end for group, end in self.kept_ends.items() if group >= group_id), default=None)

    def assign(self) -> Owner:
        """Open the partition for a new member."""
        self.owner_epoch += 1
        return Owner(self, self.owner_epoch)

    def written(self) -> list[tuple[str, bytes | None, int]]:
        """Return all records of the existing topics."""
        return [one for topic in self.topics.values() for part in topic.partitions for one in part.records]

    # --------------------------------------------------------------------------------------------------------- services

    def batch_epoch_min(self, producer_id: int) -> int:
        return self._tables.producer_names.batch_epoch_min(producer_id)

    async def turns(self) -> None:
        for _ in range(self.chance.randrange(TURNS_MAX)):
            await asyncio.sleep(0)

    async def reach(self, serve: Callable[[], Any], *, may_lose: bool = False) -> Any:
        """Serve a call in a separate task, so that it arrives even if its caller is cancelled."""

        async def arrive() -> Any:
            await self.turns()
            answer = serve()
            await self.turns()
            return answer

        task = asyncio.get_running_loop().create_task(arrive())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        answer = await asyncio.shield(task)
        if may_lose and self.chance.random() < self.lost_answers:
            error = BrokenConnectionError("the answer was lost")
            error.outcome = Outcome.UNKNOWN
            raise error
        return answer

    def serve(self, request: Any) -> Any:
        if isinstance(request, pb.AppendRequest):
            return pb.AppendResponse(partitions=[self._append(part) for part in request.partitions])
        if isinstance(request, pb.InitProducerRequest):
            self._tables.producer_names.expire(self.now_s * 1000)
            command = mc.InitNamedProducer(request.name, request.epoch)
            result = init_named_producer(self._tables, command, self.now_s * 1000)
            if isinstance(result, mc.Rejected):
                assert result.code == codes.PRODUCER_FENCED
                return ProducerFencedError(result.message)
            return pb.InitProducerResponse(producer_id=result.producer_id, epoch=result.epoch)
        raise AssertionError(request)

    def _append(self, part: pb.PartitionAppend) -> pb.PartitionAppendResult:
        result = pb.PartitionAppendResult()
        topic = next((topic for topic in self.topics.values() if topic.info.topic_id == part.topic_id), None)
        for batch in part.batches:
            if topic is None:
                result.error.CopyFrom(pb.ErrorDetail(code=pb.UNKNOWN_TOPIC, message="deleted"))
                break
            answer = topic.partitions[part.partition].append(batch)
            if isinstance(answer, pb.ErrorDetail):
                result.error.CopyFrom(answer)
                break
            result.base_offsets.append(answer)
        return result


class Owner:
    """A member that owns, or believes that it owns, the input partition: consumer, resolver and connection in one, with its transform."""

    def __init__(self, world: World, owner_epoch: int) -> None:
        self.world = world
        self.owner_epoch = owner_epoch
        self.rng = world.chance
        self.metadata_revision = 0
        self.resolver = self
        found = world.committed
        self._opened = OpenedPartition(found[0] if found else None, found[1] if found else "", owner_epoch)
        self._position = max(found[0] if found else 0, world.log_start)
        self._group_id = world.group_id
        self._commits: list[tuple[int, str, int, asyncio.Future[None]]] = []
        self._committing: asyncio.Task[None] | None = None
        parts = TransformParts("group", self, SequencedAppender(self), self, crc32_partition, 0, 1.0)
        self.transform = PartitionTransform(parts, IN)
        if found is None:
            self.transform.begin_at(self._position)
        self.task = asyncio.get_running_loop().create_task(self.transform.run())
        self.task.add_done_callback(self._on_done)
        self.failure: BaseException | None = None

    def read(self, count: int) -> None:
        """Feed the next `count` records to the transform. Go back first if a recovery has lost records that were read."""
        kept_end = self.world.kept_end(self._group_id)
        self._position = min(self._position, self._position if kept_end is None else kept_end)
        self._group_id = self.world.group_id
        end = min(self._position + count, len(self.world.records))
        if end > self._position:
            self.transform.feed(self.world.records[self._position : end])
            self._position = end

    def crash(self) -> None:
        """End immediately. Calls in flight still arrive."""
        self.task.cancel()

    async def release(self) -> None:
        """End with a last commit, as when a partition is revoked."""
        self.task.cancel()
        await asyncio.wait((self.task,))
        last = self.transform.submit_last()
        if last is not None:
            await asyncio.wait((last,))

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self.transform.close()
        if not task.cancelled():
            self.failure = task.exception()

    # --------------------------------------------------------------------------------------------------------- as a consumer

    def opened(self, _: TopicPartition) -> OpenedPartition:
        return self._opened

    def read_group(self, _: TopicPartition) -> int:
        return self._group_id

    def known_position(self, _: TopicPartition) -> int:
        return self._position

    async def kept_end(self, _: TopicPartition, group_id: int, __: float) -> int | None:
        found: int | None = await self.world.reach(lambda: self.world.kept_end(group_id))
        return found

    async def end_offsets(self, _: object) -> dict[TopicPartition, int]:
        return {IN: len(self.world.records)}

    async def offsets_for_times(
        self, times_ms: dict[TopicPartition, int], *, by_append_time: bool = False
    ) -> dict[TopicPartition, Any]:
        assert by_append_time, "records' own timestamps do not say what brokers remember"
        young = (
            Leader(offset, 0) for offset, at_s in enumerate(self.world.append_times_s) if at_s * 1000 >= times_ms[IN]
        )
        found = next(young, None)
        return {IN: None if found is None else _At(found.broker_id)}

    def submit(self, _: TopicPartition, offset: int, note: str, group_id: int) -> asyncio.Future[None]:
        """Commit an offset as `Committer` does: one commit is in flight at a time, and the last one wins."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._commits.append((offset, note, group_id, future))
        if self._committing is None or self._committing.done():
            self._committing = asyncio.get_running_loop().create_task(self._commit_all())
            self.world.tasks.add(self._committing)
            self._committing.add_done_callback(self.world.tasks.discard)
        return future

    async def _commit_all(self) -> None:
        while self._commits:
            gathered, self._commits = self._commits, []
            offset, note, group_id, _ = gathered[-1]

            def commit(offset: int = offset, note: str = note, group_id: int = group_id) -> Exception | None:
                kept_end = self.world.kept_end(group_id)
                if kept_end is not None and offset > kept_end:
                    return OffsetOutOfRangeError("lost", kept_end_offset=kept_end)
                if self.owner_epoch != self.world.owner_epoch:
                    return FencedError("another's")
                self.world.committed = (offset, note)
                return None

            refusal = await self.world.reach(commit)
            for *_, future in gathered:
                if not future.done():
                    if refusal is None:
                        future.set_result(None)
                    else:
                        future.set_exception(refusal)

    # --------------------------------------------------------------------------------------------------------- as a resolver

    async def topic(self, name: str, _: float, *, partition: int | None = None, is_fresh: bool = False) -> TopicInfo:
        del partition, is_fresh
        if name not in self.world.topics:
            raise UnknownTopicError(name)
        return self.world.topics[name].info

    def leader(self, _: int) -> Leader:
        return Leader(1, 1)

    def address(self, _: Leader) -> str:
        return "broker-1"

    def connection(self, _: str) -> Owner:
        return self

    def check(self) -> None: ...

    def mark_suspect(self, _: str) -> None: ...

    def record_revision(self, _: int) -> None: ...

    def broker_addresses(self) -> list[str]:
        return []

    async def call_any(
        self, _: object, request: Any, __: float, *, is_read: bool, prefers_metadata_leader: bool
    ) -> Any:
        assert is_read
        assert prefers_metadata_leader
        answer = await self.world.reach(lambda: self.world.serve(request))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def call(self, _: object, request: Any, __: float) -> Any:
        return await self.world.reach(lambda: self.world.serve(request), may_lose=True)

    async def append(self, request: SerializedAppend, timeout_seconds: float) -> Any:
        return await self.call(APPEND, pb.AppendRequest.FromString(request.body), timeout_seconds)

    # --------------------------------------------------------------------------------------------------------- as a handler

    async def handle(self, records: list[Record]) -> Handled:
        """Handle the first few records, as a time limit would cut a chunk."""
        count = self.world.chance.randint(1, len(records))
        await self.world.turns()
        return Handled([tuple(self.world.handler(record)) for record in records[:count]], None)


@dataclass
class _At:
    offset: int


def made(topic: str, name: str, key: bytes | None = None, partition: int | None = None) -> MadeOutput:
    """Return an output whose value is its name."""
    return MadeOutput(topic, partition, cells_of(name.encode(), key, 1))


async def settled(world: World, condition: Callable[[], bool], turns: int = 200_000) -> None:
    """Let the loop turn until the condition holds. Raise `AssertionError` after `turns`."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"the condition does not hold after {turns} turns")


Step = Callable[[], Awaitable[None]]
