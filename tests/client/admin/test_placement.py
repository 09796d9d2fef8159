"""Draining, balancing, moving and the replication factor, against fake brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from raftmq import Admin, BalancingSettings, LeaderTransfer, PartitionMove, TopicPartition, errors, sync
from raftmq.client.admin.descriptions import BrokerDescription
from raftmq.client.admin.move_descriptions import read_move
from raftmq.client.base.loop_thread import LoopThread
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeBroker, FakeCluster, abort, detail
from tests.support.client.fake_moves import MOVE_BYTES
from tests.support.client.memory_transport import MemoryTransport

Call = Callable[[Admin], Coroutine[Any, Any, object]]


@pytest.fixture
def fake() -> FakeCluster:
    """Three brokers, and a topic of three partitions, each on two of them: 1 and 2, 2 and 3, 3 and 1."""
    cluster = FakeCluster(brokers=3)
    cluster.create_topic("t", partitions=3, replication_factor=2)
    return cluster


@pytest.fixture
async def admin(fake: FakeCluster) -> AsyncIterator[Admin]:
    transport = MemoryTransport(fake)
    async with Admin(bootstrap_servers=transport.addresses, transport=transport) as admin:
        yield admin


async def broker(admin: Admin, broker_id: int) -> BrokerDescription:
    return next(one for one in (await admin.describe_cluster()).brokers if one.broker_id == broker_id)


async def test_a_dry_run_of_a_drain_returns_the_moves_and_changes_nothing(admin: Admin, fake: FakeCluster) -> None:
    planned = await admin.drain_broker(3, dry_run=True)
    assert (planned.broker_id, planned.replica_count, planned.leader_count) == (3, 2, 1)
    assert planned.is_metadata_voter
    assert planned.moves == (
        PartitionMove("t", 1, (2, 3), (2, 1), "drain", MOVE_BYTES),
        PartitionMove("t", 2, (3, 1), (2, 1), "drain", MOVE_BYTES),
    )
    assert planned.without_place_count == 0
    assert (await admin.describe_moves()).is_idle
    assert (await broker(admin, 3)).state == "active"


async def test_a_drained_broker_loses_its_replicas_and_leaderships_and_can_be_used_again(
    admin: Admin, fake: FakeCluster
) -> None:
    begun = await admin.drain_broker(3)
    assert (begun.replica_count, begun.leader_count, begun.moves) == (2, 1, ())
    assert (await broker(admin, 3)).state == "draining"
    first = await admin.describe_moves()
    assert [(move.partition, move.copied_bytes) for move in first.moves] == [(1, MOVE_BYTES // 2), (2, 0)]
    assert not first.is_idle
    while not (await admin.describe_moves()).is_idle:
        pass
    empty = await broker(admin, 3)
    assert (empty.replica_count, empty.leader_count, empty.is_metadata_voter) == (0, 0, False)
    assert begun.metadata_revision < (await admin.describe_cluster()).metadata_revision
    ended = await admin.undrain_broker(3)
    assert ended.replica_count == 0
    assert (await broker(admin, 3)).state == "active"


async def test_replicas_without_a_place_are_counted_and_named(admin: Admin, fake: FakeCluster) -> None:
    await admin.set_replication_factor("t", 3)
    while not (await admin.describe_moves()).is_idle:
        pass
    planned = await admin.drain_broker(1, dry_run=True)
    assert (planned.without_place_count, planned.moves) == (3, ())
    fake.moves.without_place = [pb.PartitionName(topic="t", partition=n) for n in (0, 2)]
    fake.moves.rebuilding_count = 4
    found = await admin.describe_moves()
    assert found.without_place == (TopicPartition("t", 0), TopicPartition("t", 2))
    assert (found.without_place_count, found.rebuilding_count) == (2, 4)


async def test_a_rebalance_returns_its_plan(admin: Admin, fake: FakeCluster) -> None:
    data = pb.PartitionMove(topic="t", partition=0, from_broker_ids=[1, 2], to_broker_ids=[1, 3], reason=pb.SPREAD)
    order = pb.PartitionMove(
        topic="t", partition=1, from_broker_ids=[2, 3], to_broker_ids=[3, 2], reason=pb.EVEN_LEADERS
    )
    fake.moves.balance = [data, order]
    planned = await admin.rebalance(dry_run=True)
    assert (planned.replica_move_count, planned.leader_move_count) == (1, 1)
    assert [move.reason for move in planned.moves] == ["spread", "even_leaders"]
    assert (await admin.describe_moves()).is_idle
    assert (await admin.rebalance(dry_run=True, leaders_only=True)).moves == (read_move(order),)
    assert len((await admin.rebalance()).moves) == 2
    assert len((await admin.describe_moves()).moves) == 2


async def test_a_partition_is_moved_to_the_given_brokers(admin: Admin, fake: FakeCluster) -> None:
    planned = await admin.move_partition("t", 0, [3, 2], dry_run=True)
    assert planned == PartitionMove("t", 0, (1, 2), (3, 2), "requested", MOVE_BYTES)
    assert await admin.move_partition("t", 0, [3, 2]) == planned
    assert len((await admin.describe_moves()).moves) == 1
    (moved, *_) = (await admin.describe_topic("t")).partitions
    assert (moved.replica_brokers, moved.leader_broker_id) == ((3, 2), 3)


async def test_a_leadership_is_transferred_to_a_replica_or_back_to_the_preferred_leader(
    admin: Admin, fake: FakeCluster
) -> None:
    assert await admin.transfer_leader("t", 0, 2) == LeaderTransfer("t", 0, 2, 2)
    assert (await admin.transfer_leader("t", 0)).leader_epoch == 3
    with pytest.raises(errors.InvalidArgumentError):
        await admin.transfer_leader("t", 0, 3)


async def test_the_replication_factor_is_raised_and_lowered(admin: Admin) -> None:
    planned = await admin.set_replication_factor("t", 3, dry_run=True)
    assert (planned.topic, planned.replication_factor, planned.move_count) == ("t", 3, 3)
    assert (await admin.describe_topic("t")).replication_factor == 2
    for wanted in (3, 1):
        await admin.set_replication_factor("t", wanted)
        while not (await admin.describe_moves()).is_idle:
            pass
        described = await admin.describe_topic("t")
        assert described.replication_factor == wanted
        assert {len(partition.replica_brokers) for partition in described.partitions} == {wanted}


async def test_only_the_given_settings_of_balancing_change(admin: Admin) -> None:
    assert (await admin.describe_moves()).settings == BalancingSettings(True, 2, 0)
    assert await admin.set_balancing(bytes_per_second=50 << 20) == BalancingSettings(True, 2, 50 << 20)
    assert await admin.set_balancing(False, 8) == BalancingSettings(False, 8, 50 << 20)
    assert await admin.set_balancing(bytes_per_second=0) == BalancingSettings(False, 8, 0)


def test_a_move_of_unknown_size_and_a_reason_of_a_newer_broker_are_told_apart_from_known_ones() -> None:
    newer = pb.PartitionMove.FromString(pb.PartitionMove(topic="t").SerializeToString() + b"\x28\x63")  # reason 99
    assert (read_move(newer).reason, read_move(newer).size_bytes) == ("unknown", None)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda admin: admin.drain_broker(9), errors.UnknownBrokerError),
        (lambda admin: admin.undrain_broker(9), errors.UnknownBrokerError),
        (lambda admin: admin.move_partition("none", 0, [1]), errors.UnknownTopicError),
        (lambda admin: admin.move_partition("t", 3, [1, 2]), errors.UnknownPartitionError),
        (lambda admin: admin.move_partition("t", 0, [1, 9]), errors.UnknownBrokerError),
        (lambda admin: admin.transfer_leader("none", 0), errors.UnknownTopicError),
        (lambda admin: admin.set_replication_factor("t", 4), errors.InvalidReplicationFactorError),
    ],
)
async def test_a_refusal_is_definite(admin: Admin, call: Call, error: type[errors.RaftMQError]) -> None:
    with pytest.raises(error) as refused:
        await call(admin)
    assert refused.value.outcome is errors.Outcome.NOT_APPLIED
    assert (await admin.describe_moves()).is_idle


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda admin: admin.drain_broker(0), ValueError, "broker_id must be positive, not 0"),
        (lambda admin: admin.drain_broker("3"), TypeError, "broker_id must be a whole number, not '3'"),
        (lambda admin: admin.drain_broker(True), TypeError, "broker_id must be a whole number, not True"),
        (lambda admin: admin.drain_broker(3, dry_run="no"), TypeError, "dry_run must be True or False, not 'no'"),
        (lambda admin: admin.undrain_broker(-1), ValueError, "broker_id must be positive, not -1"),
        (lambda admin: admin.rebalance(dry_run=0), TypeError, "dry_run must be True or False, not 0"),
        (lambda admin: admin.rebalance(leaders_only="yes"), TypeError, "leaders_only must be True or False, not 'yes'"),
        (lambda admin: admin.move_partition("t", -1, [1]), ValueError, "partition must be 0 or more, not -1"),
        (lambda admin: admin.move_partition(5, 0, [1]), TypeError, "topic must be a string, not 5"),
        (lambda admin: admin.move_partition("t", 0, []), ValueError, "broker_ids must name at least one broker"),
        (lambda admin: admin.move_partition("t", 0, "1,2"), TypeError, "broker_ids must be a sequence.*not '1,2'"),
        (lambda admin: admin.move_partition("t", 0, 3), TypeError, "broker_ids must be a sequence.*not 3"),
        (lambda admin: admin.move_partition("t", 0, [1, 1]), ValueError, r"each broker once, not \[1, 1\]"),
        (lambda admin: admin.move_partition("t", 0, [1, 0]), ValueError, "an id in broker_ids must be positive, not 0"),
        (lambda admin: admin.move_partition("t", 0, [1], dry_run=None), TypeError, "dry_run must be True or False"),
        (lambda admin: admin.transfer_leader("t", 0, 0), ValueError, "broker_id must be positive, not 0"),
        (lambda admin: admin.transfer_leader("t", 1.5), TypeError, "partition must be a whole number, not 1.5"),
        (lambda admin: admin.set_replication_factor("t", 0), ValueError, "replication_factor must be positive, not 0"),
        (lambda admin: admin.set_replication_factor("\ud800", 1), ValueError, "topic .*surrogate"),
        (lambda admin: admin.set_balancing(), ValueError, "at least one of auto_balance, moves_max and"),
        (lambda admin: admin.set_balancing(1), TypeError, "auto_balance must be True or False, not 1"),
        (lambda admin: admin.set_balancing(moves_max=0), ValueError, "moves_max must be positive, not 0"),
        (lambda admin: admin.set_balancing(moves_max=1 << 40), ValueError, "moves_max must be at most"),
        (lambda admin: admin.set_balancing(bytes_per_second=-1), ValueError, "bytes_per_second must be 0 or more"),
        (lambda admin: admin.set_balancing(bytes_per_second=1 << 63), ValueError, "bytes_per_second must be at most"),
    ],
)
async def test_a_wrong_argument_is_named_with_its_value_and_nothing_is_sent(
    fake: FakeCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch, call: Call, error: type[Exception], words: str
) -> None:
    sent: list[str] = []
    for name in ("DrainBroker", "Rebalance", "MovePartition", "TransferLeader", "SetReplicationFactor", "SetBalancing"):
        monkeypatch.setattr(FakeBroker, name, lambda broker, request, context, name=name: sent.append(name))
    expected = errors.InvalidArgumentError if error is ValueError else error
    with pytest.raises(expected, match=words):
        await call(admin)
    assert sent == []


async def test_a_dry_run_is_repeated_after_a_lost_answer_and_a_change_is_not(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan changes nothing, so its repetition is harmless. A change with an unknown outcome is the caller's to repeat."""
    drain = FakeBroker.DrainBroker
    calls: list[bool] = []

    async def lose_the_first_answer(broker: FakeBroker, request: pb.DrainBrokerRequest, context: Any) -> Any:
        calls.append(request.dry_run)
        if len(calls) == 1:
            await abort(context, detail(pb.REQUEST_TIMED_OUT))
        return await drain(broker, request, context)

    monkeypatch.setattr(FakeBroker, "DrainBroker", lose_the_first_answer)
    assert (await admin.drain_broker(3, dry_run=True)).replica_count == 2
    assert calls == [True, True]
    calls.clear()
    with pytest.raises(errors.RequestTimedOutError) as lost:
        await admin.drain_broker(3)
    assert lost.value.outcome is errors.Outcome.UNKNOWN
    assert calls == [False]


async def test_a_cancelled_call_leaves_the_admin_usable(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def hang(broker: FakeBroker, request: Any, context: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(FakeBroker, "Rebalance", hang)
        call = asyncio.ensure_future(admin.rebalance())
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert (await admin.rebalance()).replica_move_count == 0


async def test_a_call_that_is_not_answered_ends_after_the_time_limit(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(broker: FakeBroker, request: Any, context: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FakeBroker, "MovePartition", hang)
    transport = MemoryTransport(fake)
    servers = transport.addresses
    async with Admin(bootstrap_servers=servers, transport=transport, request_timeout_ms=50) as admin:
        with pytest.raises(errors.RequestTimedOutError):
            await admin.move_partition("t", 0, [1, 2])


async def test_a_transfer_gives_the_broker_less_time_than_the_caller_has(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    async def answer(broker: FakeBroker, request: pb.TransferLeaderRequest, context: Any) -> pb.TransferLeaderResponse:
        given.append(request.timeout_ms)
        return pb.TransferLeaderResponse()

    monkeypatch.setattr(FakeBroker, "TransferLeader", answer)
    await admin.transfer_leader("t", 0)
    assert given == [27_000]


def test_synchronous_methods_pass_their_arguments_on() -> None:
    loop = LoopThread.get()

    async def start() -> FakeCluster:
        cluster = await FakeCluster(brokers=3).__aenter__()
        cluster.create_topic("t", partitions=1, replication_factor=2)
        return cluster

    cluster = loop.run(start())
    try:
        with sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            assert len(admin.drain_broker(1, dry_run=True).moves) == 1
            assert admin.describe_moves().is_idle
            assert admin.drain_broker(1).replica_count == 1
            assert admin.undrain_broker(1).broker_id == 1
            assert admin.rebalance(dry_run=True, leaders_only=True).moves == ()
            assert admin.move_partition("t", 0, [2, 3], dry_run=True).to_broker_ids == (2, 3)
            assert admin.transfer_leader("t", 0, 2).leader_broker_id == 2
            assert admin.set_replication_factor("t", 3, dry_run=True).move_count == 1
            assert admin.set_balancing(False, 3, 4) == BalancingSettings(False, 3, 4)
    finally:
        loop.run(cluster.__aexit__(None, None, None))
