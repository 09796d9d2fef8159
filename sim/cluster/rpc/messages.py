"""gRPC as far as brokers and clients see it, over the simulated network: real handlers, real bytes, no sockets.

`server.py` serves what the production server registers, through the production interceptors. A channel (`channel.py`)
connects when it is first used, fails fast while it cannot, and loses its calls when its connection breaks. A cancelled or
overdue call is cancelled at the server when the word of it arrives. What a side says in one step travels as one packet:
headers with the messages that are known at the beginning, a single answer with its status, as gRPC's library writes them.
Here is what both sides say.
"""

# ruff: noqa: ANN401 -- what handlers, messages and channels are is known to those who make them

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import grpc
from raftmq.proto import queue_pb2 as pb

Metadata = Sequence[tuple[str, str | bytes]]


class Details(NamedTuple):
    """What an interceptor hears of a call."""

    method: str
    invocation_metadata: Metadata


def _has_map(message: Any, seen: tuple[str, ...] = ()) -> bool:
    """Whether a message may have a map in it, at whatever depth."""
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
"""Methods whose messages have maps, which protobuf writes in an order that differs from process to process."""


def witness(method: str, data: bytes) -> bytes:
    """What stands for a message in the trace."""
    return bytes(sorted(data)) if method in _WITH_MAPS else data


class Status(NamedTuple):
    """How a call ended."""

    code: grpc.StatusCode
    details: str = ""
    trailing: Metadata = ()


class Caller(Protocol):
    """A call, as the server knows it at the client."""

    number: int

    def on_message(self, data: bytes) -> None:
        """An answer arrived."""

    def on_end(self, answer: bytes | None, status: Status) -> None:
        """It is over, with an answer or without."""
