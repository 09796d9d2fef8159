"""A member of a consumer group that follows the protocol: it joins, opens its partitions, reads, commits, releases and leaves.

It is small and strict, so that the answers it receives can be judged. It commits only forward, and reports every answer about
ownership to the invariants immediately. Of the SDK it uses only the resolver.

Source: KIP-848, and the comments of the services Groups and Queue in the protocol.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from raftmq.batch_header import parse_header
from raftmq.client.base.error_details import error_from_detail
from raftmq.client.codec.batch import decode_records
from raftmq.client.connection.leader_calls import LeaderTarget
from raftmq.client.connection.resolver import Resolver
from raftmq.client.connection.transport import Transport
from raftmq.errors import (
    FencedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftMQError,
    UnknownMemberError,
    UnreachableError,
)
from raftmq.methods import (
    COMMIT_OFFSETS,
    FETCH_OFFSETS,
    HEARTBEAT,
    LEAVE,
    OPEN_PARTITIONS,
    POLL,
    RequestT,
    ResponseT,
    UnaryMethod,
)
from raftmq.proto import queue_pb2 as pb
from raftmq.types import Record, TopicPartition

from sim.cluster.checker import Checker
from sim.cluster.invariants.group_ownership import SESSION_SECONDS

HEARTBEAT_SECONDS = 0.5
_CALL_SECONDS = 1.0
_LOOK_SECONDS = 0.5
_PAUSE_SECONDS = 0.1
_POLL_BYTES = 20_000

Part = tuple[int, int]
"""(topic id, partition)."""


@dataclass(slots=True)
class _Held:
    """A partition that the member has opened."""

    owner_epoch: int
    position: int
    committed: int


class Member:
    """A member from its start to its end."""

    def __init__(
        self,
        group: str,
        member_id: str,
        topics: list[str],
        addresses: str,
        transport: Transport,
        checker: Checker,
        rng: random.Random,
        on_event: Callable[[str], None],
        on_error: Callable[[str, RaftMQError], None],
        late_share: float,
    ) -> None:
        self._group = group
        self.member_id = member_id
        self._topics = topics
        self._checker = checker
        self._rng = rng
        self._on_event = on_event
        self._on_error = on_error
        self._late_share = late_share
        self._resolver = Resolver(addresses, transport, rng=random.Random(rng.getrandbits(64)))
        self._epoch = 0
        self._assigned: dict[Part, int] = {}
        self._held: dict[Part, _Held] = {}
        self._heartbeat_now = asyncio.Event()
        self._heard_at: float | None = None
        """The time at which the last answered heartbeat was sent, in the simulation's time."""
        self._targets: dict[Part, LeaderTarget] = {}

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Find the cluster and its topics. Raises `RaftMQError`."""
        await self._resolver.start(_CALL_SECONDS * 3)
        await self.learn_targets()

    async def learn_targets(self, *, is_fresh: bool = False) -> None:
        """Look up the partitions of the topics."""
        for name in self._topics:
            info = await self._resolver.topic(name, _CALL_SECONDS * 3, is_fresh=is_fresh)
            for number, group_id in enumerate(info.group_ids):
                self._targets[info.topic_id, number] = LeaderTarget(
                    TopicPartition(name, number), info.topic_id, group_id
                )

    async def close(self, *, is_orderly: bool) -> None:
        """End the member. An orderly member commits and leaves, any other one just falls silent."""
        if is_orderly:
            self._checker.groups.on_may_go(self.member_id)
            with suppress(RaftMQError):
                for part in list(self._held):
                    await self._commit(part)
                request = pb.LeaveRequest(group=self._group, member_id=self.member_id)
                await self._resolver.call_any(LEAVE, request, _CALL_SECONDS, is_read=True)
        await self._resolver.close()

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Take part in the group until `is_over`. Raises `UnknownMemberError` if the group does not know the member any more."""
        working = asyncio.ensure_future(self._work(is_over))
        heartbeats = asyncio.ensure_future(self._heartbeat(is_over))
        try:
            done, _ = await asyncio.wait((working, heartbeats), return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            working.cancel()
            heartbeats.cancel()
            await asyncio.wait((working, heartbeats))

    def has_all(self, ends: Mapping[int, int]) -> bool:
        """Return whether the member holds every partition of its topics and has read each to its end in `ends`."""
        positions = self.positions
        return all(
            positions.get(self._origin(target), -1) >= ends.get(self._origin(target), 0)
            for target in self._targets.values()
        )

    @property
    def positions(self) -> dict[int, int]:
        """Map from the Raft group of each held partition to the next offset to read."""
        return {self._origin(self._targets[part]): held.position for part, held in self._held.items()}

    def _origin(self, target: LeaderTarget) -> int:
        """Return the group under which the checker knows a partition."""
        return self._checker.origin(target.group_id)

    # ------------------------------------------------------------------------------------------------ heartbeats

    async def _heartbeat(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self._heartbeat_now.clear()
            try:
                await self._heartbeat_once()
            except UnknownMemberError:
                heard_at = float("-inf") if self._heard_at is None else self._heard_at
                self._checker.judge(self._checker.groups.on_unknown, self.member_id, heard_at, self._checker.now)
                raise
            except RaftMQError as error:
                self._on_error("heartbeat", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if self._late_share and self._rng.random() < self._late_share:
                await asyncio.sleep(self._rng.uniform(0.5, 1.5) * SESSION_SECONDS)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._heartbeat_now.wait()

    async def _heartbeat_once(self) -> None:
        sent_at = self._checker.now
        request = pb.HeartbeatRequest(
            group=self._group,
            member_id=self.member_id,
            member_epoch=self._epoch,
            session_timeout_ms=int(SESSION_SECONDS * 1000),
            subscription=pb.Subscription(topics=self._topics),
        )
        by_topic: dict[int, list[int]] = {}
        for topic_id, number in self._held:
            by_topic.setdefault(topic_id, []).append(number)
        for topic_id, numbers in by_topic.items():
            request.owned.add(topic_id=topic_id, partitions=numbers)
        answer = await self._resolver.call_any(HEARTBEAT, request, _CALL_SECONDS, is_read=True)
        self._on_event("heartbeat ok")
        self._heard_at = sent_at
        self._checker.groups.on_heard(self.member_id, sent_at)
        self._resolver.record_revision(answer.metadata_revision)
        if answer.member_epoch < self._epoch or not answer.has_assignment:
            return
        self._epoch = answer.member_epoch
        self._assigned = dict(_assignment(answer))
        for part, owner_epoch in self._assigned.items():
            self._checker.judge(self._checker.groups.on_assigned, self._group, part, owner_epoch, self.member_id)

    # ------------------------------------------------------------------------------------------------ work

    async def _work(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            for part, held in list(self._held.items()):
                if self._assigned.get(part) != held.owner_epoch:
                    await self._give_up(part, held)
            if not self._targets.keys() >= self._assigned.keys():  # topics have got more partitions
                with suppress(RaftMQError):
                    await self.learn_targets(is_fresh=True)
                    self._on_event("partitions learned")
            for part in [part for part in self._assigned if part not in self._held and part in self._targets]:
                await self._guarded(part, self._open)
            for part in list(self._held):
                # this commits records read in the previous round: a member that was frozen since may have lost the partition
                if self._rng.random() < 0.6:
                    await self._guarded(part, self._commit)
                await self._guarded(part, self._read)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _guarded(self, part: Part, step: Callable[[Part], object]) -> None:
        """Do one step for a partition. A failed step is tried again later, and a partition that belongs to another member is released."""
        try:
            await step(part)  # type: ignore[misc]  # the steps are coroutines
        except FencedError:
            self._on_event("fenced")
            self._held.pop(part, None)
            self._heartbeat_now.set()
        except NotLeaderError as error:
            self._resolver.on_not_leader(self._targets[part].group_id, error)
        except OffsetOutOfRangeError as error:
            if part in self._held:
                self._held[part].position = error.log_start_offset or 0
        except RaftMQError as error:
            self._on_error(step.__name__, error)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _give_up(self, part: Part, held: _Held) -> None:
        """Release a partition. If it was assigned again under another epoch, this member must not commit it."""
        if part not in self._assigned:
            await self._guarded(part, self._commit)
        if self._held.get(part) is held:
            del self._held[part]
        self._heartbeat_now.set()

    async def _call(self, part: Part, method: UnaryMethod[RequestT, ResponseT], request: RequestT) -> ResponseT:
        leader = self._resolver.leader(self._targets[part].group_id)
        if leader is None:
            raise UnreachableError("no leader is known")
        connection = self._resolver.connection(self._resolver.address(leader))
        return await connection.call(method, request, _CALL_SECONDS)

    async def _open(self, part: Part) -> None:
        owner_epoch = self._assigned.get(part)
        if owner_epoch is None:
            return  # it was revoked in the meantime
        floor = self._checker.groups.floor(self._group, part)
        request = pb.OpenPartitionsRequest(
            metadata_revision=self._resolver.metadata_revision, group=self._group, member_id=self.member_id
        )
        request.partitions.add(topic_id=part[0], partition=part[1], owner_epoch=owner_epoch)
        answer = await self._call(part, OPEN_PARTITIONS, request)
        assert isinstance(answer, pb.OpenPartitionsResponse)
        (result,) = answer.partitions
        _raise_error(result)
        self._checker.judge(self._checker.groups.on_opened, self._group, part, owner_epoch, result.offset, floor)
        self._on_event("opened")
        if self._assigned.get(part) == owner_epoch:
            start = result.offset if result.offset >= 0 else result.log_start_offset
            self._held[part] = _Held(owner_epoch, max(start, result.log_start_offset), result.offset)

    async def _read(self, part: Part) -> None:
        held = self._held.get(part)
        if held is None:
            return
        request = pb.PollRequest(max_bytes=_POLL_BYTES)
        request.partitions.add(topic_id=part[0], partition=part[1], offset=held.position, max_bytes=_POLL_BYTES)
        answer = await self._call(part, POLL, request)
        assert isinstance(answer, pb.PollResponse)
        for result in answer.partitions:
            _raise_error(result)
            for record in _records(self._targets[part], result, held.position):
                self._checker.judge(self._checker.reads.on_read, self._origin(self._targets[part]), record)
                held.position = record.offset + 1

    async def _commit(self, part: Part) -> None:
        held = self._held.get(part)
        if held is None or held.position <= held.committed:
            return
        offset, fence = held.position, self._checker.groups.fence(self._group, part)
        losses = self._checker.groups.losses(part)
        request = pb.CommitOffsetsRequest(
            metadata_revision=self._resolver.metadata_revision, group=self._group, member_id=self.member_id
        )
        request.partitions.add(topic_id=part[0], partition=part[1], owner_epoch=held.owner_epoch, offset=offset)
        answer = await self._call(part, COMMIT_OFFSETS, request)
        assert isinstance(answer, pb.CommitOffsetsResponse)
        (result,) = answer.partitions
        _raise_error(result)
        held.committed = offset
        self._checker.judge(
            self._checker.groups.on_committed, self._group, part, held.owner_epoch, offset, fence, losses
        )
        self._on_event("committed")

    async def finish(self) -> None:
        """Commit all records read, and check the committed offsets. Raises `RaftMQError`."""
        for part in list(self._held):
            await self._commit(part)
            await self.check_committed(part)

    async def check_committed(self, part: Part) -> None:
        """Ask for the committed offset, which needs no membership, and check it. Raises `RaftMQError`."""
        floor = self._checker.groups.floor(self._group, part)
        request = pb.FetchOffsetsRequest(metadata_revision=self._resolver.metadata_revision, group=self._group)
        request.partitions.add(topic_id=part[0], partition=part[1])
        answer = await self._call(part, FETCH_OFFSETS, request)
        assert isinstance(answer, pb.FetchOffsetsResponse)
        (result,) = answer.partitions
        _raise_error(result)
        self._checker.judge(self._checker.groups.on_fetched, self._group, part, result.offset, floor)


def _assignment(answer: pb.HeartbeatResponse) -> Iterator[tuple[Part, int]]:
    for topic in answer.assignment:
        for number, owner_epoch in zip(topic.partitions, topic.owner_epochs, strict=True):
            yield (topic.topic_id, number), owner_epoch


def _raise_error(result: object) -> None:
    """Raise the error of a partition's result, if it has one."""
    if result.HasField("error"):  # type: ignore[attr-defined]  # every result has the field
        raise error_from_detail(result.error, "")  # type: ignore[attr-defined]


def _records(target: LeaderTarget, result: pb.PartitionPollResult, position: int) -> Iterator[Record]:
    topic, number = target.topic_partition
    for base_offset, batch in zip(result.base_offsets, result.batches, strict=True):
        for record in decode_records(batch, parse_header(batch), topic, number, base_offset):
            if record.offset >= position:
                yield record
