"""Options of a stream that leases messages."""

from __future__ import annotations

import pytest
from raftmq.spark.data_source import RaftMQDataSource
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.leases.options import read_lease_options
from raftmq.spark.source.options import read_source_options

GIVEN = {"bootstrap.servers": "a:1", "subscribe": "q", "kind": "queue"}


def test_defaults() -> None:
    found, _ = read_lease_options(GIVEN)
    assert (found.topics, found.tenants, found.messages_max, found.lease_ms) == (("q",), (), 10_000, 600_000)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("startingOffsets", "earliest", "startingOffsets is for log topics"),
        ("failOnDataLoss", "false", "failOnDataLoss is for log topics"),
        ("maxOffsetsPerTrigger", "5", "a queue topic has maxMessagesPerTrigger"),
        ("subscribePattern", "q.*", "names them with the option subscribe"),
        ("browse", "q", "names them with the option subscribe"),
        ("maxMessagesPerTrigger", "100001", "at most 100000"),
        ("maxMessagesPerTrigger", "0", "at least 1"),
        ("leaseTime", "500ms", "between 1s and 12h"),
        ("maxBatchTime", "13h", "between 1s and 12h"),
        ("tenant", "a..b", "tenant"),
        ("subscribe", ",", "no topic is named"),
        ("kind", "stack", "log or queue"),
    ],
)
def test_options_are_refused_with_the_reason(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        read_lease_options(GIVEN | {name: value})


def test_a_batch_read_leases_nothing() -> None:
    with pytest.raises(InvalidOptionError, match="option browse"):
        read_source_options(GIVEN, is_streaming=False)


def test_the_columns_are_those_of_leased_messages() -> None:
    assert "token" in RaftMQDataSource(GIVEN).schema().fieldNames()
    assert RaftMQDataSource(GIVEN | {"columns": "value,token"}).schema().fieldNames() == ["value", "token"]
    with pytest.raises(InvalidOptionError, match="there is no column 'offset'"):
        RaftMQDataSource(GIVEN | {"columns": "offset"}).schema()
