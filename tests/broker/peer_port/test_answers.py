"""A broker answers other brokers with its services: only the listed methods, for the caller's rights, and by one hop."""

import contextlib

import pytest
from raftmq import methods
from raftmq.broker.base import peer_methods
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.grpc_port.methods import ROWS, AnsweredBy
from raftmq.broker.grpc_port.server import GrpcServer
from raftmq.broker.peer_port.answers import PeerAnswers
from raftmq.broker.peer_port.methods import PEER_ROWS
from raftmq.broker.services.call import ANYONE, Call, Principal, Right
from raftmq.broker.services.forwarder import PeerForwarder
from raftmq.methods import UnaryMethod
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID

from tests.support.broker.harness import running
from tests.support.broker.peer_transports import transport

ALICE = Principal("alice", frozenset(Right))


@contextlib.asynccontextmanager
async def answering():
    """Yield a node that answers on a peer port, a forwarder of another node, the other node's transport, and the address."""
    async with running() as node, transport(1) as (one, _, address), transport(2) as (two, _, _):
        server = GrpcServer(node, node.forwarder)
        one.requests.answerer = PeerAnswers(node, server.services, server.metrics)
        two.set_peers({1: address})
        yield node, PeerForwarder(two), two, address


async def code_of(awaitable):
    with pytest.raises(RequestError) as caught:
        await awaitable
    return caught.value.code


async def test_a_forwarded_call_brings_back_the_answer_or_the_error():
    async with answering() as (node, forwarder, *_):
        await node.topic("t")
        request = pb.CreateTopicRequest(name="t")
        error = await code_of(forwarder.forward(1, methods.CREATE_TOPIC, request, node.call()))
        assert error == pb.TOPIC_ALREADY_EXISTS
        answer = await forwarder.forward(1, methods.LIST_GROUPS, pb.ListGroupsRequest(), node.call())
        assert list(answer.groups) == []


async def test_a_call_is_forwarded_by_one_hop_only():
    async with answering() as (node, forwarder, *_):
        node.lose_leadership(METADATA_GROUP_ID, to=3)
        call = forwarder.forward(1, methods.CREATE_TOPIC, pb.CreateTopicRequest(name="u"), node.call())
        assert await code_of(call) == pb.NOT_LEADER
        assert node.forwarder.calls == []


async def test_a_principal_that_this_version_does_not_know_has_no_rights():
    async with answering() as (node, forwarder, *_):
        call = Call(node.call().deadline, ALICE)
        request = pb.CreateTopicRequest(name="t")
        assert await code_of(forwarder.forward(1, methods.CREATE_TOPIC, request, call)) == pb.PERMISSION_DENIED
        assert ANYONE.name_for_peers == ""


async def test_methods_that_brokers_do_not_ask_for_are_unknown():
    async with answering() as (node, forwarder, *_):
        call = forwarder.forward(1, methods.POLL, pb.PollRequest(), node.call())
        assert await code_of(call) == pb.UNSUPPORTED_VERSION


async def test_a_visitor_may_not_ask_for_a_members_methods():
    async with answering() as (node, _, two, address), two.visit(address, node.call().deadline) as visit:
        for path, row in PEER_ROWS.items():
            if not row.is_for_visitors:
                assert await code_of(visit.ask(path, b"")) == pb.PERMISSION_DENIED


async def test_bytes_that_are_no_message_are_refused():
    async with answering() as (node, _, two, _):
        error = await code_of(two.ask(1, methods.CREATE_TOPIC.path, "", b"\xff", node.call().deadline))
        assert error == pb.INVALID_ARGUMENT


async def test_a_report_of_a_stale_broker_id_is_refused():
    async with answering() as (node, forwarder, *_):
        await node.register(2, "uuid-2")
        for request in (
            peer_pb.ReportDamageRequest(broker_id=2, uuid="uuid-of-its-lost-disk"),
            peer_pb.ReportDamageRequest(broker_id=9, uuid="uuid-2"),
        ):
            answer = forwarder.forward(1, peer_methods.REPORT_DAMAGE, request, node.call())
            assert await code_of(answer) == pb.INVALID_ARGUMENT


async def test_a_removed_broker_is_not_answered_on_the_connection_that_it_still_has():
    async with answering() as (node, forwarder, *_):
        await node.register(2, "uuid-2")
        await forwarder.forward(1, methods.LIST_GROUPS, pb.ListGroupsRequest(), node.call())
        await node.removal.remove_node(pb.RemoveBrokerRequest(broker_id=2, force=True), node.call())
        call = forwarder.forward(1, methods.LIST_GROUPS, pb.ListGroupsRequest(), node.call())
        assert await code_of(call) == pb.NOT_READY


async def test_a_broker_that_registers_through_a_removed_one_is_not_told_that_it_is_removed():
    """It would take no part any more, and its operator would be told to give up its directory."""
    async with answering() as (node, forwarder, *_):
        await node.register(2, "uuid-2")
        await node.register(3, "uuid-3")
        await node.removal.remove_node(pb.RemoveBrokerRequest(broker_id=2, force=True), node.call())

        request = peer_pb.RegisterBrokerRequest(uuid="uuid-3", broker_id=3)
        code = await code_of(forwarder.forward(1, peer_methods.REGISTER_BROKER, request, node.call()))

        assert code == pb.NOT_READY, "it asks the next seed"


def test_every_method_between_brokers_and_every_forwarded_call_is_served():
    forwarded = {
        row.method.path
        for row in ROWS
        if row.answered_by
        in (AnsweredBy.METADATA_LEADER, AnsweredBy.PARTITION_LEADER_FORWARDED, AnsweredBy.NAMED_BROKER)
    }
    between = {method.path for method in peer_methods.PEER_METHODS}
    asked = {methods.FETCH_OFFSETS.path, methods.APPEND.path}
    assert set(PEER_ROWS) == forwarded | between | asked
    assert all(isinstance(row.method, UnaryMethod) for row in PEER_ROWS.values())
