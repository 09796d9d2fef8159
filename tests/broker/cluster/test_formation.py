"""Brokers that wait for a cluster form one on an order, and never two, also after restarts and lost disks (ADR 0021)."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.node import Node
from raftmq.client.admin.admin import Admin
from raftmq.client.admin.formation import form_cluster
from raftmq.errors import ClusterAlreadyFormedError, NotReadyError, RaftMQError, UnreachableError, WrongClusterError
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.whole_nodes import NOBODY, WAIT_SECONDS, Nodes, three_voters, until

NAMES = ("one", "two", "three")


def begin(nodes: Nodes, *names: str, **settings: object) -> list[Node]:
    """Start brokers as a compose file does: all with the peer addresses of all, and each with its number."""
    join = tuple(str(nodes.addresses_of(name)["peer_listen"]) for name in NAMES)
    return [nodes.begin(name, broker_id=NAMES.index(name) + 1, **({"join": join} | settings)) for name in names]


def servers(nodes: Nodes, *names: str) -> str:
    return ",".join(str(nodes.addresses_of(name)["listen"]) for name in names or NAMES)


async def waiting(*brokers: Node) -> None:
    for broker in brokers:
        await until(broker, Reason.JOINING)
        async with asyncio.timeout(WAIT_SECONDS):
            while not broker.view.formation.is_waiting:
                await asyncio.sleep(0.01)


async def one_cluster(*brokers: Node) -> str:
    """Wait until the brokers are ready, and return the id of their only cluster."""
    for broker in brokers:
        await until(broker)
    (cluster_id,) = {broker.view.cluster_id for broker in brokers}
    return cluster_id


async def refusal(broker: Node) -> RequestError:
    """Order a broker to form a cluster, which it must refuse, and return the refusal."""
    with pytest.raises(RequestError) as refused:
        await broker.view.formation.order()
    return refused.value


async def wipe(nodes: Nodes, *brokers: Node) -> None:
    for broker in brokers:
        await nodes.stop(broker)
        shutil.rmtree(broker.config.data_dir)


async def test_init_waits_for_the_last_broker_and_a_second_init_changes_nothing(nodes: Nodes) -> None:
    one, two = begin(nodes, "one", "two")
    await waiting(one, two)
    assert (await refusal(one)).code == pb.NOT_READY
    initializing = asyncio.ensure_future(form_cluster(servers(nodes), WAIT_SECONDS))
    (three,) = begin(nodes, "three")
    formed = await initializing
    assert formed.is_new
    assert await one_cluster(one, two, three) == formed.cluster_id
    assert [int(broker.view.node_id) for broker in (one, two, three)] == [1, 2, 3]
    again = await form_cluster(servers(nodes), WAIT_SECONDS)
    assert (again.cluster_id, again.is_new) == (formed.cluster_id, False)


@pytest.mark.long
async def test_inits_at_all_brokers_simultaneously_form_one_cluster(nodes: Nodes) -> None:
    brokers = begin(nodes, *NAMES)
    orders = [servers(nodes, *NAMES[shift:], *NAMES[:shift]) for shift in range(3)]
    formed = await asyncio.gather(*(form_cluster(order, WAIT_SECONDS) for order in (*orders, *orders)))
    cluster_id = await one_cluster(*brokers)
    assert {one.cluster_id for one in formed} == {cluster_id}
    assert sum(one.is_new for one in formed) == 1


async def test_of_two_orders_at_two_brokers_at_most_one_is_carried_out(nodes: Nodes) -> None:
    brokers = begin(nodes, *NAMES)
    await waiting(*brokers)
    outcomes = await asyncio.gather(*(broker.view.formation.order() for broker in brokers), return_exceptions=True)
    assert sum(isinstance(outcome, str) for outcome in outcomes) <= 1
    assert all(isinstance(outcome, str | RequestError) for outcome in outcomes)
    assert sum(bool(broker.registry.cluster_id) for broker in brokers) <= 1


async def test_an_order_is_refused_while_another_broker_forms_a_cluster(nodes: Nodes) -> None:
    one, two, three = begin(nodes, *NAMES)
    await waiting(one, two, three)
    two.view.formation.describe = lambda: peer_pb.DescribeFormationResponse(is_forming=True)  # type: ignore[method-assign]  # frozen in the middle of an order
    refused = await refusal(one)
    assert (refused.code, "is forming a cluster" in str(refused)) == (pb.NOT_READY, True)
    assert not one.view.formation.describe().is_forming, "it gave up, so that the other one can go on"


@pytest.mark.long
async def test_a_broker_with_a_wiped_volume_joins_its_cluster_and_forms_none(nodes: Nodes) -> None:
    """The founder loses its disk while the other brokers are down: the case in which a repeated --bootstrap forms a second cluster."""
    brokers = begin(nodes, *NAMES)
    cluster_id = (await form_cluster(servers(nodes), WAIT_SECONDS)).cluster_id
    await three_voters(brokers[0])
    await one_cluster(*brokers)
    for broker in brokers[1:]:
        await nodes.stop(broker)
    await wipe(nodes, brokers[0])
    (one,) = begin(nodes, "one")
    await waiting(one)
    with pytest.raises(UnreachableError):
        await form_cluster(servers(nodes), 1.0)
    assert (await refusal(one)).code == pb.NOT_READY, "its peers are down"
    two, three = begin(nodes, "two", "three")
    again = await form_cluster(servers(nodes), WAIT_SECONDS)
    assert (again.cluster_id, again.is_new) == (cluster_id, False)
    assert await one_cluster(one, two, three) == cluster_id
    assert int(one.view.node_id) == 1


@pytest.mark.long
async def test_an_order_is_refused_while_one_broker_remembers_the_cluster(nodes: Nodes) -> None:
    brokers = begin(nodes, *NAMES)
    await form_cluster(servers(nodes), WAIT_SECONDS)
    await three_voters(brokers[0])
    await one_cluster(*brokers)
    await nodes.stop(brokers[2])
    await wipe(nodes, *brokers[:2])
    one, two = begin(nodes, "one", "two")
    await waiting(one, two)
    (three,) = begin(nodes, "three")
    await until(three, Reason.RECOVERING_METADATA)
    refused = await refusal(one)
    assert refused.code == pb.CLUSTER_ALREADY_FORMED
    assert three.registry.cluster_id in str(refused)


@pytest.mark.long
async def test_wiped_volumes_of_all_brokers_lead_to_a_new_cluster_that_old_clients_refuse(nodes: Nodes) -> None:
    brokers = begin(nodes, *NAMES)
    before = await form_cluster(servers(nodes), WAIT_SECONDS)
    await one_cluster(*brokers)
    await wipe(nodes, *brokers)
    brokers = begin(nodes, *NAMES)
    formed = await form_cluster(servers(nodes), WAIT_SECONDS)
    assert formed.is_new
    assert await one_cluster(*brokers) == formed.cluster_id != before.cluster_id
    with pytest.raises(RaftMQError) as refused:
        async with Admin(bootstrap_servers=servers(nodes), cluster_id=before.cluster_id, request_timeout_ms=2000):
            pass
    assert before.cluster_id in str(refused.value)


async def test_a_broker_that_insists_on_its_old_cluster_prevents_a_new_one(nodes: Nodes) -> None:
    """All volumes are wiped, but the cluster's id was written down in the configuration: its data may be somewhere."""
    one, two = begin(nodes, "one", "two")
    (three,) = begin(nodes, "three", cluster_id="the-old-one")
    await waiting(one, two, three)
    assert (await refusal(three)).code == pb.CLUSTER_ALREADY_FORMED
    assert "the-old-one" in str(await refusal(one))
    with pytest.raises(ClusterAlreadyFormedError):
        await form_cluster(servers(nodes), WAIT_SECONDS)


async def test_a_killed_order_leaves_a_broker_that_waits(nodes: Nodes) -> None:
    one, two, three = begin(nodes, *NAMES)
    await waiting(one, two, three)
    ordering = asyncio.ensure_future(one.view.formation.order())
    await asyncio.sleep(0)
    assert one.view.formation.describe().is_forming
    await nodes.stop(one)
    ordering.cancel()
    (one,) = begin(nodes, "one")
    await waiting(one, two, three)
    formed = await form_cluster(servers(nodes), WAIT_SECONDS)
    assert await one_cluster(one, two, three) == formed.cluster_id


async def test_init_names_the_clusters_when_there_are_several(nodes: Nodes) -> None:
    one = await nodes.serve("one", bootstrap=True)
    two = await nodes.serve("two", bootstrap=True)
    with pytest.raises(WrongClusterError) as refused:
        await form_cluster(servers(nodes, "one", "two"), WAIT_SECONDS)
    assert one.view.cluster_id in str(refused.value)
    assert two.view.cluster_id in str(refused.value)


async def test_a_broker_without_a_list_of_peers_that_answer_forms_nothing(nodes: Nodes) -> None:
    (one,) = begin(nodes, "one", join=(NOBODY,))
    await waiting(one)
    with pytest.raises(NotReadyError) as refused:
        await form_cluster(servers(nodes, "one"), 1.0)
    assert NOBODY in str(refused.value)


async def test_a_restart_among_strangers_does_not_count_the_broker_itself_as_a_member_of_its_cluster(
    nodes: Nodes,
) -> None:
    """With its own address in `join`, a broker could vouch for itself when all others belonged to another cluster."""
    one = await nodes.serve("one", bootstrap=True)
    await nodes.stop(one)
    stranger = await nodes.serve("two", bootstrap=True)
    join = (str(nodes.addresses_of("one")["peer_listen"]), stranger.addresses.peer)
    refused = await nodes.failure(nodes.begin("one", join=join))
    assert isinstance(refused, RequestError)
    assert refused.code == pb.WRONG_CLUSTER
