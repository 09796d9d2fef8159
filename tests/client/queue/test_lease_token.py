"""Messages are settled by their tokens, over fake brokers and real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from raftmq import Queue, errors, sync
from raftmq.client.queue.lease_token import LeaseToken, parse_token

from tests.support.client.fake_broker import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2) as cluster:
        cluster.create_queue("jobs", 2)
        yield cluster


async def leased_token(cluster: FakeCluster, **options: object) -> str:
    """Put a message, lease it in a client of its own, and return its token after that client is closed."""
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        await queue.put(b"work", id="one")
        message = await queue.get(wait_ms=0, **options)
        assert message is not None
        return message.token


def settled(cluster: FakeCluster) -> list[str]:
    return [name for partition in cluster.topics["jobs"].partitions for name, _ in partition.queue.settled]


async def test_another_client_settles_a_message_by_its_token(cluster: FakeCluster) -> None:
    token = await leased_token(cluster)
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        assert [message.state async for message in queue.browse()] == ["leased"]
        assert await queue.settle(token)
        assert [message.id async for message in queue.browse()] == []
        with pytest.raises(errors.LeaseUnknownError):
            await queue.settle(token)
    assert settled(cluster) == ["ACCEPT"]


async def test_a_message_is_renewed_released_and_rejected_by_its_token(cluster: FakeCluster) -> None:
    token = await leased_token(cluster)
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        assert await queue.settle(token, "renew", lease_ms=60_000, progress="half")
        assert [message.progress async for message in queue.browse()] == ["half"]
        assert await queue.settle(token, "release", delay_ms=0, priority=3, error="later")
        found = [(message.state, message.priority, message.error) async for message in queue.browse()]
        assert found == [("ready", 3, "later")]
        with pytest.raises(errors.LeaseLostError):
            await queue.settle(token, "reject")
        again = await queue.get(wait_ms=0)
        assert again is not None
        assert not await queue.settle(again.token, "reject", error="never")
        assert [message.dead_reason async for message in queue.browse("dead")] == ["rejected"]
    assert settled(cluster) == ["RENEW", "RELEASE", "REJECT"]


async def test_a_release_after_the_last_attempt_says_that_the_message_is_dead(cluster: FakeCluster) -> None:
    for partition in cluster.topics["jobs"].partitions:
        partition.queue.attempts_max = 1
    token = await leased_token(cluster)
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        assert not await queue.settle(token, "release")


async def test_a_token_of_a_deleted_topic_settles_nothing_in_the_next_one(cluster: FakeCluster) -> None:
    token = await leased_token(cluster)
    cluster.delete_topic("jobs")
    cluster.create_queue("jobs", 2)
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        await queue.put(b"other", id="one")
        assert (await queue.get(wait_ms=0)) is not None
        with pytest.raises(errors.InvalidArgumentError, match="earlier one"):
            await queue.settle(token)
    assert settled(cluster) == []


async def test_a_message_that_is_done_has_no_token(cluster: FakeCluster) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="auto_accept"):
        await leased_token(cluster, auto_accept=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1-2-3",
        "1-2-3-4-5",
        "a-1-2-3",
        "-1-2-3-4",
        f"{1 << 64}-0-0-1",
        f"1-0-{1 << 63}-1",
        "1-0-0-1\n",
        "١-0-0-1",
    ],
)
async def test_another_text_is_no_token(cluster: FakeCluster, text: str) -> None:
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        with pytest.raises(errors.InvalidArgumentError, match="token"):
            await queue.settle(text)


async def test_another_name_is_no_settlement(cluster: FakeCluster) -> None:
    token = await leased_token(cluster)
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        with pytest.raises(errors.InvalidArgumentError, match="ack, release, reject, renew"):
            await queue.settle(token, "accept")
        with pytest.raises(errors.UnknownPartitionError):
            await queue.settle(str(parse_token(token)._replace(partition=9)))


def test_a_token_is_read_as_it_is_written() -> None:
    token = LeaseToken((1 << 64) - 1, 3, (1 << 63) - 1, 7)
    assert parse_token(str(token)) == token


def test_synchronous_code_has_the_same_call() -> None:
    assert sync.Queue.settle.__kwdefaults__ == Queue.settle.__kwdefaults__
    assert sync.Queue.settle.__defaults__ == Queue.settle.__defaults__
