"""Read the options of a stream that leases the messages of queue topics. Must not import Spark or call the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raftmq.client.base.settings import LEASE_MS_MAX, LEASE_MS_MIN
from raftmq.client.queue.new_message import check_tenant
from raftmq.errors import InvalidArgumentError
from raftmq.spark.base.options import ClientOptions, OptionReader, kind_of, listed, read_client_options
from raftmq.spark.errors import InvalidOptionError

MESSAGES_MAX: Final = 10_000
"""Messages of one batch by default."""
MESSAGES_LIMIT: Final = 100_000
"""The offset of a batch names its messages, so it is some hundred kilobytes long at worst."""
BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of one batch by default. They pass through the driver."""
BYTES_LIMIT: Final = 1024 * 1024 * 1024
LEASE_MS: Final = 10 * 60_000
"""By default a query may be started again for this long without losing the messages of its last batch."""
OPTIONS_OF_LOGS: Final = (
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *(
        "failOnDataLoss",
        "minPartitions",
        "maxRecordsPerPartition",
        "minRecordsPerPartition",
        "includeHeaders",
        "includeAppendTime",
        "pushFilters",
    ),
)
"""Options that mean nothing for a queue topic."""


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """Hold the checked options of one stream. Pickled into every task."""

    client: ClientOptions
    topics: tuple[str, ...]
    tenants: tuple[str, ...]
    """Only messages of these subtrees of tenants. Empty: of all."""
    messages_max: int
    """Messages of a batch."""
    bytes_max: int
    """Bytes of a batch. The last answer of each broker may exceed it."""
    lease_ms: int
    """The length of the leases of a batch that is logged, from each renewal on."""
    batch_ms_max: int
    """The time for which the leases of a batch are renewed."""
    allow_blind_cap: bool
    """Whether a batch may be limited where Spark has no admission control (before 4.2)."""


def read_lease_options(options: Mapping[str, str]) -> tuple[LeaseOptions, OptionReader]:
    """Read and check all options. Also return the reader, which knows all option names. Raises `InvalidOptionError`."""
    reader = OptionReader(options)
    kind_of(reader)
    for name in ("browse", "subscribePattern", "assign"):
        if reader.text(name) is not None:
            raise InvalidOptionError(f"{name}: a stream of queue topics names them with the option subscribe")
    if reader.text("maxOffsetsPerTrigger") is not None:
        raise InvalidOptionError("maxOffsetsPerTrigger is for log topics: a queue topic has maxMessagesPerTrigger")
    for name in OPTIONS_OF_LOGS:
        if reader.text(name) is not None:
            raise InvalidOptionError(
                f"{name} is for log topics: a queue topic has no offsets, and gives out what is ready"
            )
    names = listed(reader.text("subscribe"))
    if names is None:
        raise InvalidOptionError("subscribe: no topic is named")
    reader.text("columns")  # `RaftMQDataSource.schema` reads it
    found = LeaseOptions(
        client=read_client_options(reader),
        topics=tuple(dict.fromkeys(names)),
        tenants=tuple(_tenant(name) for name in listed(reader.text("tenant")) or ()),
        messages_max=_bounded(reader, "maxMessagesPerTrigger", MESSAGES_MAX, MESSAGES_LIMIT),
        bytes_max=_bounded(reader, "maxBytesPerTrigger", BYTES_MAX, BYTES_LIMIT),
        lease_ms=_lease_ms(reader, "leaseTime", LEASE_MS),
        batch_ms_max=_lease_ms(reader, "maxBatchTime", LEASE_MS_MAX),
        allow_blind_cap=reader.boolean("allowCapWithoutAdmissionControl", False),
    )
    reader.finish()
    return found, reader


def _bounded(reader: OptionReader, name: str, default: int, limit: int) -> int:
    number = reader.integer(name) or default
    if number > limit:
        raise InvalidOptionError(f"{name} is at most {limit}, not {number}")
    return number


def _lease_ms(reader: OptionReader, name: str, default: int) -> int:
    found = reader.milliseconds(name, default)
    if not LEASE_MS_MIN <= found <= LEASE_MS_MAX:
        raise InvalidOptionError(f"{name} is between 1s and 12h, not {found} ms")
    return found


def _tenant(text: str) -> str:
    try:
        return check_tenant(text)
    except InvalidArgumentError as error:
        raise InvalidOptionError(str(error)) from error
