"""Pages of the messages of model brokers, over changes of leaders and of the topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from raftmq import Queue
from raftmq.client.queue.leader_call import call_leader
from raftmq.errors import ProtocolError, TopicKindMismatchError, UnknownTopicError
from raftmq.proto import queue_pb2 as pb
from raftmq.spark.base.options import ClientOptions
from raftmq.spark.browse import pages as browse_pages
from raftmq.spark.browse.options import BrowseOptions, read_browse_options
from raftmq.spark.browse.pages import Browsed, Page, browsed_partitions, fetch_pages
from raftmq.spark.cluster.cluster import Cluster

from tests.support.client.fake_broker import FakeCluster


@pytest.fixture
async def brokers() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2) as running:
        yield running


@pytest.fixture
async def cluster(brokers: FakeCluster) -> AsyncIterator[Cluster]:
    opened = await asyncio.to_thread(Cluster, ClientOptions(brokers.bootstrap_servers, request_timeout_ms=5000))
    yield opened
    await asyncio.to_thread(opened.close)


def options(brokers: FakeCluster, **given: str) -> BrowseOptions:
    named = {"bootstrap.servers": brokers.bootstrap_servers, "request.timeout.ms": "5000", "browse": "q"}
    return read_browse_options(named | given)[0]


async def put(brokers: FakeCluster, count: int, **fields: Any) -> None:
    async with Queue("q", bootstrap_servers=brokers.bootstrap_servers) as queue:
        for number in range(count):
            await queue.put(b"v%d" % number, **fields)


async def partitions(cluster: Cluster, found: BrowseOptions) -> list[Browsed]:
    return await asyncio.to_thread(browsed_partitions, cluster, found)


async def pages(cluster: Cluster, browsed: Browsed, found: BrowseOptions, *, with_bodies: bool = True) -> list[Page]:
    return await asyncio.to_thread(lambda: list(fetch_pages(cluster, browsed, found, with_bodies=with_bodies)))


def bodies(found: list[Page]) -> list[bytes]:
    return [bytes(body) for page in found for body in page.block.bodies]


async def test_every_message_of_every_partition_is_shown(brokers: FakeCluster, cluster: Cluster) -> None:
    brokers.create_queue("q", partitions=2)
    async with Queue("q", bootstrap_servers=brokers.bootstrap_servers) as queue:
        for number in range(120):
            await queue.put(b"v%d" % number, id=f"i{number}")
    found = options(brokers)
    shown = [await pages(cluster, browsed, found) for browsed in await partitions(cluster, found)]
    assert len(shown) == 2
    assert sorted(bodies([*shown[0], *shown[1]])) == sorted(b"v%d" % n for n in range(120))
    assert all(len(found) == 2 for found in shown)  # of at most 50 messages
    assert all(len(page.statuses) == len(page.block.sequences) for found in shown for page in found)


async def test_state_and_tenant_choose_the_messages(brokers: FakeCluster, cluster: Cluster) -> None:
    brokers.create_queue("q")
    await put(brokers, 2, tenant="acme.eu")
    await put(brokers, 3, tenant="globex", delay_ms=60_000)
    for given, count in (
        ({"tenant": "acme"}, 2),
        ({"tenant": "acme", "state": "delayed"}, 0),
        ({"state": "delayed"}, 3),
        ({"state": "dead"}, 0),
        ({}, 5),
    ):
        found = options(brokers, **given)
        (browsed,) = await partitions(cluster, found)
        assert len(bodies(await pages(cluster, browsed, found, with_bodies=False))) == count


async def test_pages_continue_at_the_next_leader(brokers: FakeCluster, cluster: Cluster) -> None:
    brokers.create_queue("q")
    await put(brokers, 200)
    found = options(brokers)
    (browsed,) = await partitions(cluster, found)
    shown = fetch_pages(cluster, browsed, found, with_bodies=True)
    first = await asyncio.to_thread(next, shown)
    brokers.move_leader("q", 0, broker=2)
    rest = await asyncio.to_thread(lambda: list(shown))
    assert bodies([first, *rest]) == [b"v%d" % n for n in range(200)]


async def test_a_topic_that_was_created_again_is_not_mixed_with_the_planned_one(
    brokers: FakeCluster, cluster: Cluster
) -> None:
    brokers.create_queue("q")
    await put(brokers, 1)
    found = options(brokers)
    (browsed,) = await partitions(cluster, found)
    brokers.delete_topic("q")
    with pytest.raises(UnknownTopicError):
        await pages(cluster, browsed, found)
    brokers.create_queue("q")
    await put(brokers, 1)
    with pytest.raises(UnknownTopicError):
        await pages(cluster, browsed, found)


async def test_a_topic_that_this_process_does_not_know_yet_is_looked_up(brokers: FakeCluster, cluster: Cluster) -> None:
    """The executor's connection may be older than the topic that the driver has planned."""
    async with brokers.silence():
        topic = brokers.create_topic("q")
        topic.kind = "queue"
        topic.partitions[0].is_queue = True
        assert await pages(cluster, Browsed("q", topic.topic_id, 0), options(brokers)) == []


async def test_a_log_topic_and_an_unknown_topic_are_refused(brokers: FakeCluster, cluster: Cluster) -> None:
    brokers.create_topic("log")
    with pytest.raises(TopicKindMismatchError, match=r"'log' is a topic of kind 'log'.*option subscribe"):
        await partitions(cluster, options(brokers, browse="log"))
    with pytest.raises(UnknownTopicError):
        await partitions(cluster, options(brokers, browse="nowhere"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"block": b"garbage"}, "a damaged page"),
        ({"statuses": []}, "0 states for 1 messages"),
        ({"cursor": b"0"}, "do not continue"),
    ],
)
async def test_an_answer_that_contradicts_itself_is_an_error(
    brokers: FakeCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], says: str
) -> None:
    brokers.create_queue("q")
    await put(brokers, 1)
    found = options(brokers)
    (browsed,) = await partitions(cluster, found)

    async def changing(*arguments: Any, **named: Any) -> pb.BrowseResponse:
        answer: pb.BrowseResponse = await call_leader(*arguments, **named)
        for name, value in change.items():
            if name == "statuses":
                answer.ClearField("statuses")
            else:
                setattr(answer, name, value)
        return answer

    monkeypatch.setattr(browse_pages, "call_leader", changing)
    with pytest.raises(ProtocolError, match=says):
        await pages(cluster, browsed, found)
