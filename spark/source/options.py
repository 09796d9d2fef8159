"""Read and check the source's options once, and turn them into small values that travel to the executors.

Must not import Spark or call the cluster. Names, precedence and defaults are the Kafka connector's.
Source: "Structured Streaming + Kafka Integration Guide", options of the source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from raftmq.client.connection.leader_calls import EARLIEST_TIME, LATEST_TIME
from raftmq.spark.base.offsets import GROUP_IDS_KEY, INITIAL_KEY, TOPIC_ID_KEY
from raftmq.spark.base.options import KAFKA_PREFIX, ClientOptions, OptionReader, kind_of, listed, read_client_options
from raftmq.spark.cluster.subscriptions import Assigned, Matching, Named, Subscription
from raftmq.spark.errors import InvalidOptionError
from raftmq.types import TopicPartition

MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
"""Kafka's default."""
POLL_TIMEOUT_MS: Final = 120_000
"""Kafka's default. A task that receives no record for so long fails, and Spark runs it again."""
LOOKUP_PAUSE_MS: Final = 10
"""Kafka's default."""


@dataclass(frozen=True, slots=True)
class Everywhere:
    """Bound every partition at one time. `EARLIEST_TIME` and `LATEST_TIME` are the ends of the log."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Bound each partition at its own offset. -2 is the earliest offset, -1 the latest."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Bound each partition at its own time."""

    times_ms: Mapping[TopicPartition, int]


Bound = Everywhere | AtOffsets | AtTimes


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Hold the checked options of one read. Pickled into every task."""

    client: ClientOptions
    subscription: Subscription
    starting: Bound
    ending: Bound
    latest_without_match: bool
    """Whether a starting time after the last record means the latest offset. Otherwise it is an error."""
    columns: tuple[str, ...] | None
    include_headers: bool
    include_append_time: bool
    fail_on_data_loss: bool
    partitions_min: int | None
    task_rows_max: int | None
    """Records per task."""
    task_rows_min: int
    """Records that a task gets before the next one gets any."""
    rows_max: int | None
    """Records per trigger."""
    rows_min: int | None
    trigger_delay_max_ms: int
    poll_timeout_ms: int
    allow_blind_cap: bool
    """Whether limits per trigger are allowed where Spark has no admission control (before 4.2)."""
    push_filters: bool
    reads_batches: bool
    """Whether batches of atomic writers are read as a whole, and not before they are complete."""


def read_source_options(options: Mapping[str, str], *, is_streaming: bool) -> tuple[SourceOptions, OptionReader]:
    """Read and check all options. Also return the reader, which knows all option names.

    Raises:
        InvalidOptionError: an option is missing, malformed, refused or contradicts another.
    """
    reader = OptionReader(options)
    if kind_of(reader) == "queue":
        raise InvalidOptionError(
            "kind=queue is for spark.readStream, which leases messages: look at those of a queue topic with the option browse"
        )
    rows_max = reader.integer("maxOffsetsPerTrigger")
    rows_min = reader.integer("minOffsetsPerTrigger")
    if rows_max is not None and rows_min is not None and rows_min > rows_max:
        raise InvalidOptionError(f"minOffsetsPerTrigger is {rows_min}, above maxOffsetsPerTrigger, which is {rows_max}")
    strategy = reader.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
    ending = _bound(reader, "ending", Everywhere(LATEST_TIME))
    if is_streaming and any(reader.text(f"ending{kind}") for kind in ("Timestamp", "OffsetsByTimestamp", "Offsets")):
        raise InvalidOptionError("a streaming query has no end: endingOffsets and its like are for batch reads")
    found = SourceOptions(
        client=_client(reader),
        subscription=_subscription(reader),
        starting=_bound(reader, "starting", Everywhere(LATEST_TIME if is_streaming else EARLIEST_TIME)),
        ending=ending,
        latest_without_match=strategy == "latest",
        columns=listed(reader.text("columns")),
        include_headers=reader.boolean("includeHeaders", False),
        include_append_time=reader.boolean("includeAppendTime", False),
        fail_on_data_loss=reader.boolean("failOnDataLoss", True),
        partitions_min=reader.integer("minPartitions"),
        task_rows_max=reader.integer("maxRecordsPerPartition"),
        task_rows_min=reader.integer("minRecordsPerPartition", 1) or 1,
        rows_max=rows_max,
        rows_min=rows_min,
        trigger_delay_max_ms=reader.milliseconds("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        poll_timeout_ms=reader.milliseconds("kafkaConsumer.pollTimeoutMs", POLL_TIMEOUT_MS),
        allow_blind_cap=reader.boolean("allowCapWithoutAdmissionControl", False),
        push_filters=reader.boolean("pushFilters", False),
        reads_batches=reader.choice("isolation", "record", ("record", "batch")) == "batch",
    )
    if found.task_rows_min > 1 and found.partitions_min is not None:
        raise InvalidOptionError(
            "minPartitions divides the records among more tasks, minRecordsPerPartition among fewer: set one of them"
        )
    if found.task_rows_max is not None and found.task_rows_min > found.task_rows_max:
        raise InvalidOptionError(
            f"minRecordsPerPartition is {found.task_rows_min}, above maxRecordsPerPartition, which is {found.task_rows_max}"
        )
    if found.reads_batches and rows_max is not None:
        raise InvalidOptionError(
            "isolation=batch reads whole batches, which maxOffsetsPerTrigger would divide: set one of them"
        )
    if found.reads_batches and ending != Everywhere(LATEST_TIME):
        raise InvalidOptionError(
            "isolation=batch reads to the end of the last whole batch: leave out the ending options"
        )
    if not is_streaming and found.starting == Everywhere(LATEST_TIME):
        raise InvalidOptionError("startingOffsets: a batch read from the latest offset would always be empty")
    reader.finish()
    return found, reader


def _client(reader: OptionReader) -> ClientOptions:
    """Read the settings of the connection, and accept the name of a consumer group without effect.

    The name authorizes nothing here. Like the connector, the source commits nothing to a consumer group.
    """
    for name in ("groupIdPrefix", "group.id", KAFKA_PREFIX + "group.id"):
        reader.has(name)
    return replace(
        read_client_options(reader),
        lookup_retries=reader.integer("fetchOffset.numRetries", 0, minimum=0) or 0,
        lookup_pause_ms=reader.milliseconds("fetchOffset.retryIntervalMs", LOOKUP_PAUSE_MS),
    )


def _subscription(reader: OptionReader) -> Subscription:
    subscribe, pattern, assign = (reader.text(name) for name in ("subscribe", "subscribePattern", "assign"))
    if reader.has("browse"):
        raise InvalidOptionError(
            "browse shows the messages that a queue topic has now, which spark.read does. A stream leases and settles them: give"
            " subscribe and kind=queue instead"
        )
    if sum(text is not None for text in (subscribe, pattern, assign)) != 1:
        raise InvalidOptionError("give one of subscribe, subscribePattern and assign, or browse for queue topics")
    if subscribe is not None:
        names = listed(subscribe)
        if names is None:
            raise InvalidOptionError("subscribe: no topic is named")
        return Named(tuple(dict.fromkeys(names)))
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidOptionError(f"subscribePattern: {pattern!r} is not a regular expression: {error}") from error
        return Matching(pattern)
    return Assigned(_assigned(assign or ""))


def _assigned(text: str) -> frozenset[TopicPartition]:
    written = _json_object("assign", text)
    partitions: set[TopicPartition] = set()
    for topic, numbers in written.items():
        if not isinstance(numbers, list) or not numbers or not all(_is_number(number, 0) for number in numbers):
            raise InvalidOptionError(f"assign: partitions of {topic!r} are a list such as [0, 1], not {numbers!r}")
        partitions.update(TopicPartition(topic, number) for number in numbers)
    if not partitions:
        raise InvalidOptionError("assign: no partition is named")
    return frozenset(partitions)


def _bound(reader: OptionReader, side: str, default: Bound) -> Bound:
    """Read the options of one side, by the connector's precedence: one time for all partitions, times, offsets."""
    everywhere = reader.integer(f"{side}Timestamp", minimum=0)
    times = reader.text(f"{side}OffsetsByTimestamp")
    offsets = reader.text(f"{side}Offsets")
    if everywhere is not None:
        return Everywhere(everywhere)
    if times is not None:
        name = f"{side}OffsetsByTimestamp"
        return AtTimes(_per_partition(name, times, lambda number: _is_number(number, 0)))
    if offsets is None:
        return default
    if offsets.lower() == "latest":
        return Everywhere(LATEST_TIME)
    if offsets.lower() == "earliest" and side == "starting":
        return Everywhere(EARLIEST_TIME)
    if not offsets.startswith("{"):
        words = "earliest, latest" if side == "starting" else "latest"
        raise InvalidOptionError(f'{side}Offsets is {words} or JSON such as {{"topic": {{"0": 5}}}}, not {offsets!r}')
    least = EARLIEST_TIME if side == "starting" else LATEST_TIME  # a read cannot end at the earliest offset
    return AtOffsets(_per_partition(f"{side}Offsets", offsets, lambda number: _is_number(number, least)))


def _per_partition(name: str, text: str, is_allowed: Callable[[object], bool]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _json_object(name, text).items():
        if topic == INITIAL_KEY:
            continue  # copied from a query's progress, like the ids below
        if not isinstance(numbers, dict):
            raise InvalidOptionError(f'{name}: {topic!r} has an object such as {{"0": 5}}, not {numbers!r}')
        for partition, number in numbers.items():
            if partition in {TOPIC_ID_KEY, GROUP_IDS_KEY}:
                continue
            if not partition.isdigit() or not is_allowed(number):
                raise InvalidOptionError(f"{name}: {topic} has {partition!r}: {number!r}, which is not allowed")
            found[TopicPartition(topic, int(partition))] = number
    if not found:
        raise InvalidOptionError(f"{name}: no partition is named")
    return found


def _is_number(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _json_object(name: str, text: str) -> dict[str, object]:
    try:
        written = json.loads(text)
    except ValueError as error:
        raise InvalidOptionError(f"{name} is not JSON: {error}") from error
    if not isinstance(written, dict):
        raise InvalidOptionError(f"{name} is a JSON object, not {text!r}")
    return written
