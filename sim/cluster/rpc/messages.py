"""The types that both sides of simulated gRPC share. Brokers and clients see real handlers and real bytes, without sockets.

`server.py` serves the methods that the production server registers, through the production interceptors. A channel (`channel.py`)
connects when it is first used, fails fast while it cannot connect, and loses its calls when its connection breaks. A cancelled or
overdue call is cancelled at the server when the cancellation arrives there. One packet carries everything that a side sends in one
step, as in gRPC's library: headers with the messages known at the beginning, or a single answer with its status.
"""

# ruff: noqa: ANN401 -- only their creators know the types of handlers, messages and channels

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import grpc
from raftmq.proto import queue_pb2 as pb

Metadata = Sequence[tuple[str, str | bytes]]


class Details(NamedTuple):
    """The details of a call that an interceptor receives."""

    method: str
    invocation_metadata: Metadata


def _has_map(message: Any, seen: tuple[str, ...] = ()) -> bool:
    """Return whether a message may contain a map, at any depth."""
    if message.full_name in seen:
        return False
    deeper = (*seen, message.full_name)
    return any(
        field.message_type is not None
        and (field.message_type.GetOptions().map_entry or _has_map(field.message_type, deeper))
        for field in message.fields
    )


_WITH_MAPS = frozenset(
    f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if _has_map(method.input_type) or _has_map(method.output_type)
)
"""Methods whose messages have maps, which protobuf serializes in an order that differs between processes."""


def witness(method: str, data: bytes) -> bytes:
    """Return the representation of a message in the trace, which must not depend on the process."""
    return bytes(sorted(data)) if method in _WITH_MAPS else data


class Status(NamedTuple):
    """The end of a call."""

    code: grpc.StatusCode
    details: str = ""
    trailing: Metadata = ()


class Caller(Protocol):
    """A client's call, as the server sees it."""

    number: int

    def on_message(self, data: bytes) -> None:
        """Receive an answer."""

    def on_end(self, answer: bytes | None, status: Status) -> None:
        """End the call, with or without an answer."""
