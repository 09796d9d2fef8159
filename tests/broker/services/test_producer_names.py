"""Names of producers run out with an error that is not retriable, and unused ones are removed on request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from raftmq.broker.base.request_error import RETRIABLE_CODES, RequestError
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID

from tests.support.broker.harness import Harness, running


async def named(node: Harness, name: str) -> int:
    answer = await node.producer_ids.init_producer(pb.InitProducerRequest(name=name, epoch=0), node.call())
    assert answer.time_ms == node.now_ms()
    return answer.producer_id


@asynccontextmanager
async def running_with_names(*names: str) -> AsyncIterator[Harness]:
    """Start a node of the highest feature level whose cluster knows these names of producers."""
    async with running() as node:
        await node.register(1, "uuid-1", feature_level_max=FEATURE_LEVEL)
        await node.feature_levels.raise_feature_level(pb.RaiseFeatureLevelRequest(), node.call())
        for name in names:
            await named(node, name)
        yield node


async def test_too_many_names_are_refused_for_good_until_some_are_forgotten(monkeypatch):
    monkeypatch.setattr("raftmq.fsm.metadata_producers.NAMED_PRODUCERS_MAX", 3)
    async with running_with_names("a/1", "a/2") as node:
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


async def test_names_that_were_removed_before_a_failure_are_not_reported_as_kept(monkeypatch):
    monkeypatch.setattr("raftmq.broker.services.producer_ids.FORGOTTEN_NAMES_MAX", 1)
    async with running_with_names("a", "b") as node:
        leader = node.producer_ids.leader
        execute = leader.execute

        async def execute_once(*arguments: object) -> object:
            done = await execute(*arguments)
            node.lose_leadership(METADATA_GROUP_ID)
            return done

        monkeypatch.setattr(leader, "execute", execute_once)
        with pytest.raises(RequestError) as failed:
            await node.producer_ids.forget_names(pb.ForgetProducerNamesRequest(), node.call())
        assert node.metadata.state_machine.producer_name_count == 1
        assert failed.value.detail.outcome == pb.UNKNOWN_OUTCOME


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


@pytest.mark.parametrize(("level", "stamp"), [(9, b"all\x03"), (8, b"all\x01"), (7, b"all\x01")])
async def test_bits_are_added_to_a_second_stamp_only_where_every_broker_can(level, stamp):
    async with running() as node:
        await node.register(1, "uuid-1", feature_level_max=level)
        await node.feature_levels.raise_feature_level(pb.RaiseFeatureLevelRequest(), node.call())

        async def claim(bits: bytes, **more: object) -> bytes:
            then = pb.StampClaim(name="all", epoch=1, stamp=b"all" + bits, shared_bytes=3, **more)
            request = pb.InitProducerRequest(name="task", epoch=1, stamp=b"mine", then=then)
            return (await node.producer_ids.init_producer(request, node.call())).then.stamp

        assert await claim(b"\x01") == b"all\x01"
        assert await claim(b"\x02", replaces=b"all") == stamp
        assert await claim(b"\x04", replaces=stamp) == b"all\x04", "it is the stamp that the claim replaces"


@pytest.mark.parametrize("has_new_level", [True, False])
async def test_a_second_stamp_is_claimed_with_the_first_at_every_feature_level(has_new_level):
    async with running() as node:
        await node.register(1, "uuid-1", feature_level_max=FEATURE_LEVEL)
        if has_new_level:
            await node.feature_levels.raise_feature_level(pb.RaiseFeatureLevelRequest(), node.call())

        async def claim(stamp: bytes, then: pb.StampClaim) -> pb.InitProducerResponse:
            request = pb.InitProducerRequest(name="task", epoch=1, stamp=stamp, then=then)
            return await node.producer_ids.init_producer(request, node.call())

        before = node.metadata.state_machine.revision
        first = await claim(b"mine", pb.StampClaim(name="all", epoch=1, stamp=b"1"))
        assert (first.stamp, first.then.stamp) == (b"mine", b"1")
        assert first.metadata_revision == before + (1 if has_new_level else 2)
        again = await claim(b"mine", pb.StampClaim(name="all", epoch=1, stamp=b"2", replaces=b"1"))
        assert again.then.stamp == b"2"
        lost = await claim(b"other", pb.StampClaim(name="all", epoch=1, stamp=b"3", replaces=b"2"))
        assert (lost.stamp, lost.HasField("then")) == (b"mine", False)
        fenced = pb.StampClaim(name="all", epoch=0)
        if has_new_level:
            answer = await claim(b"mine", fenced)
            assert (answer.stamp, answer.then.error.code) == (b"mine", pb.PRODUCER_FENCED)
        else:
            with pytest.raises(RequestError) as refused:
                await claim(b"mine", fenced)
            assert refused.value.code == pb.PRODUCER_FENCED


async def test_a_claim_that_changes_nothing_is_no_entry_of_the_log(monkeypatch):
    async with running() as node:
        await node.register(1, "uuid-1", feature_level_max=FEATURE_LEVEL)

        async def claim(stamp: bytes, epoch: int = 1, **more: bytes) -> pb.InitProducerResponse:
            request = pb.InitProducerRequest(name="task", epoch=epoch, stamp=stamp, **more)
            return await node.producer_ids.init_producer(request, node.call())

        first = await claim(b"1")
        applied = node.metadata.state_machine.applied_index
        for again in (await claim(b"1"), await claim(b""), await claim(b"2"), await claim(b"2", replaces=b"0")):
            assert again == first
        assert node.metadata.state_machine.applied_index == applied
        assert (await claim(b"2", replaces=b"1")).stamp == b"2"
        assert node.metadata.state_machine.applied_index == applied + 1
        forget = node.producer_ids.forget_names
        found = await forget(pb.ForgetProducerNamesRequest(unused_ms=1, dry_run=True), node.call())
        assert found.forgotten_count == 0, "the name may have been used since the use that is noted"
        monkeypatch.setattr("raftmq.fsm.metadata_producers.USED_TIME_STEP_MS", 0)
        await claim(b"2")
        assert node.metadata.state_machine.applied_index == applied + 2


async def test_a_claim_that_changes_nothing_is_answered_only_when_a_majority_has_confirmed_that(monkeypatch):
    async with running() as node:
        await node.register(1, "uuid-1", feature_level_max=FEATURE_LEVEL)

        async def claim(epoch: int) -> pb.InitProducerResponse:
            request = pb.InitProducerRequest(name="task", epoch=epoch, stamp=b"%d" % epoch)
            return await node.producer_ids.init_producer(request, node.call())

        async def change_meanwhile() -> None:
            monkeypatch.undo()
            await claim(2)

        async def refuse() -> None:
            raise RequestError(pb.NOT_LEADER, "another broker has taken over")

        await claim(1)
        for confirm, code in ((refuse, pb.NOT_LEADER), (change_meanwhile, pb.PRODUCER_FENCED)):
            monkeypatch.setattr(node.metadata, "read_index", confirm)
            with pytest.raises(RequestError) as refused:
                await claim(1)
            assert refused.value.code == code


@pytest.mark.parametrize(
    "request_",
    [
        pb.InitProducerRequest(name="task", then=pb.StampClaim(name="all")),
        pb.InitProducerRequest(then=pb.StampClaim(name="all")),
        pb.InitProducerRequest(name="task", epoch=1, then=pb.StampClaim(name="")),
        pb.InitProducerRequest(name="task", epoch=1, then=pb.StampClaim(name="all", stamp=b"12", shared_bytes=3)),
        pb.InitProducerRequest(name="task", epoch=1, then=pb.StampClaim(name="~copies")),
        pb.InitProducerRequest(name="task", epoch=1, then=pb.StampClaim(name="n" * 250)),
    ],
)
@pytest.mark.parametrize("is_forwarded", [False, True])  # by a broker of an older version, which does not look at it
async def test_a_second_claim_that_no_client_may_make_is_refused_before_the_first_is_made(request_, is_forwarded):
    async with running() as node:
        await node.register(1, "uuid-1", feature_level_max=FEATURE_LEVEL)
        before = node.metadata.state_machine.revision
        with pytest.raises(RequestError) as refused:
            await node.producer_ids.init_producer(request_, node.call(is_forwarded=is_forwarded))
        assert refused.value.code == pb.INVALID_ARGUMENT
        assert node.metadata.state_machine.revision == before
