"""`GroupArguments`: the arguments of a program that reads topics as a member of a consumer group. Pure, apart from creating the consumer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from raftmq.client.base.arguments import check_positive, check_whole
from raftmq.client.base.texts import check_text, check_texts
from raftmq.client.connection.addresses import parse_addresses
from raftmq.client.connection.transport import Transport
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.consumer.consumer_settings import OffsetReset
from raftmq.client.consumer.rebalance_listener import RebalanceListener
from raftmq.errors import InvalidArgumentError

_HEARTBEAT_MS_MAX: Final = 5_000
_HEARTBEATS_PER_SESSION: Final = 3
"""The number of heartbeats per session. A session survives the loss of two."""

ConsumerT = TypeVar("ConsumerT", bound=Consumer)


@dataclass(frozen=True, slots=True)
class GroupArguments:
    """The checked arguments that `Worker` and `Transformer` share with `Consumer`."""

    topics: tuple[str, ...]
    group_id: str
    bootstrap_servers: str | Sequence[str]
    client_id: str
    group_instance_id: str | None
    auto_offset_reset: OffsetReset
    session_timeout_ms: int
    max_poll_interval_ms: int
    assignor: str
    rack: str
    request_timeout_ms: float
    transport: Transport | None

    def make_consumer(
        self,
        consumer_class: type[ConsumerT],
        listener: RebalanceListener,
        max_poll_records: int = 10_000,
    ) -> ConsumerT:
        """Create a consumer of the group without automatic commits."""
        return consumer_class(
            *self.topics,
            bootstrap_servers=self.bootstrap_servers,
            group_id=self.group_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            enable_auto_commit=False,
            auto_offset_reset=self.auto_offset_reset,
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=min(_HEARTBEAT_MS_MAX, self.session_timeout_ms / _HEARTBEATS_PER_SESSION),
            max_poll_interval_ms=self.max_poll_interval_ms,
            max_poll_records=max_poll_records,
            assignor=self.assignor,
            rack=self.rack,
            request_timeout_ms=self.request_timeout_ms,
            listener=listener,
            transport=self.transport,
        )


def check_group_arguments(
    program: str, topic: str | Sequence[str], arguments: GroupArguments, *, needs_group: bool = True
) -> None:
    """Check the arguments of a program, such as "worker", that was given `topic`.

    Raises:
        InvalidArgumentError: A name is missing or not a string, or a number is out of its range.
        TypeError: A number has another type.
    """
    if not arguments.topics or not all(arguments.topics):
        raise InvalidArgumentError(f"a {program} needs one or more topic names, not {topic!r}")
    if needs_group and not arguments.group_id:
        raise InvalidArgumentError(f"a {program} needs a group_id")
    parse_addresses(arguments.bootstrap_servers)
    check_texts(arguments.topics, "topic")
    for name in ("group_id", "client_id", "group_instance_id", "assignor", "rack"):
        check_text(getattr(arguments, name), name)
    check_positive(
        session_timeout_ms=arguments.session_timeout_ms,
        max_poll_interval_ms=arguments.max_poll_interval_ms,
        request_timeout_ms=arguments.request_timeout_ms,
    )
    check_whole(session_timeout_ms=arguments.session_timeout_ms, max_poll_interval_ms=arguments.max_poll_interval_ms)
