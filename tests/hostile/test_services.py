"""Pass mutated protocol messages to the services as plain objects: each is answered or refused by type, and the log stays intact.

In `test_client_port` the same messages reach a real broker over the wire.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError, Message
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.call import Call
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import running
from tests.support.hostile.fuzzing import fuzz_async, hostile, is_whole_run
from tests.support.hostile.requests import admin_requests, queue_requests
from tests.support.hostile.samples import opaque_batch

CASES = 9_000
CALL_SECONDS = 0.02
"""Deadline of a call, for the few that would wait forever."""


class Method(NamedTuple):
    parse: Callable[[bytes], Message]
    answer: Callable[[Message, Call], Awaitable[Message]]
    samples: list[bytes]


def _problems(message: Any) -> list[int]:
    """Return the error codes of an answer's parts."""
    parts: Any = getattr(message, "partitions", ())
    return [part.error.code for part in parts if "error" in part.DESCRIPTOR.fields_by_name]


def _tame(rng: Random, request: Any) -> None:
    """Remove the waits of most requests, since there are thousands of them."""
    fields = request.DESCRIPTOR.fields_by_name
    if rng.random() < 0.99:
        if "metadata_revision" in fields:
            request.metadata_revision = 0
        if "max_wait_ms" in fields:
            request.max_wait_ms = 0


async def test_a_hostile_request_is_answered_or_refused_by_name():
    async with running(Limits(partitions_max=20)) as node:
        topic = await node.topic(partitions=2)
        services = (
            node.admin,
            node.nodes,
            node.removal,
            node.feature_levels,
            node.balancing,
            node.placement,
            node.recovery,
            node.health,
            node.producer_ids,
            node.configuration,
        )
        by_name = {
            **{name: getattr(node.log, name) for name in queue_requests(topic.topic_id)},
            **{
                name: next(method for one in services if (method := getattr(one, name, None)) is not None)
                for name in admin_requests()
            },
        }
        methods = [
            Method(type(requests[0]).FromString, by_name[name], [request.SerializeToString() for request in requests])
            for name, requests in (queue_requests(topic.topic_id) | admin_requests()).items()
        ]

        async def case(rng: Random) -> str:
            method = rng.choice(methods)
            data = hostile(rng, method.samples)
            try:
                request = method.parse(data)
            except DecodeError:
                return "malformed"
            _tame(rng, request)
            try:
                answer = await method.answer(request, node.call(CALL_SECONDS))
            except RequestError as error:
                codes: list[int] = [error.code]
            else:
                codes = _problems(answer)
            assert pb.INTERNAL not in codes
            return "refused" if any(codes) else "answered"

        outcomes = await fuzz_async("test_a_hostile_request_is_answered_or_refused_by_name", CASES, case)

        if is_whole_run():
            assert min(outcomes.values()) > CASES // 50, outcomes
        result = await node.append(await node.topic("afterwards"), opaque_batch(2))
        assert list(result.base_offsets) == [0]
