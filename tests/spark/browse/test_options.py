from __future__ import annotations

import pytest
from raftmq.spark.base.options import ClientOptions
from raftmq.spark.base.schema import BROWSE_COLUMNS, source_schema
from raftmq.spark.browse.options import BrowseOptions, read_browse_options
from raftmq.spark.browse.reader import BrowseReader
from raftmq.spark.data_source import RaftMQDataSource
from raftmq.spark.errors import InvalidOptionError, RaftMQSparkWarning
from raftmq.spark.source.readers import StreamReader

SERVERS = {"bootstrap.servers": "a:1"}


def read(**options: str) -> BrowseOptions:
    return read_browse_options(SERVERS | options)[0]


def test_topics_states_and_tenants_are_read() -> None:
    client = ClientOptions("a:1", 30_000)
    assert read(browse="jobs") == BrowseOptions(client, ("jobs",), None, "")
    found = read(browse="jobs, mails,jobs", state="Dead", tenant="acme.eu", columns="value")
    assert found == BrowseOptions(client, ("jobs", "mails"), "dead", "acme.eu")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"browse": " "}, "no topic"),
        ({"browse": "jobs", "subscribe": "flights"}, "one of subscribe"),
        ({"browse": "jobs", "state": "waiting"}, "state is any or ready or delayed or leased or dead or blocked"),
        ({"browse": "jobs", "tenant": "acme..eu"}, "tenant 'acme..eu'.*empty level"),
        ({"browse": "jobs", "kafka.ssl.ca": "x"}, "neither encryption nor authentication"),
    ],
)
def test_options_that_name_no_messages_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOptionError, match=says):
        read(**options)


def test_options_of_log_topics_have_no_effect_and_cause_a_warning() -> None:
    with pytest.warns(RaftMQSparkWarning, match="'startingOffsets' has no effect"):
        read(browse="jobs", startingOffsets="earliest")


def test_the_schema_is_that_of_messages() -> None:
    source = RaftMQDataSource(SERVERS | {"browse": "jobs"})
    assert source.schema().fieldNames() == list(BROWSE_COLUMNS)
    assert isinstance(source.reader(source.schema()), BrowseReader)
    some = RaftMQDataSource(SERVERS | {"browse": "jobs", "columns": "tenant, sequence"})
    assert some.schema().fieldNames() == ["tenant", "sequence"]
    with pytest.raises(InvalidOptionError, match="there is no column 'offset'"):
        RaftMQDataSource(SERVERS | {"browse": "jobs", "columns": "offset"}).schema()
    with pytest.raises(InvalidOptionError, match="no such column"):
        source.reader(source_schema(["offset"], False))


def test_a_stream_of_messages_is_refused_with_the_way_to_work_on_a_queue() -> None:
    source = RaftMQDataSource(SERVERS | {"browse": "jobs"})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    with pytest.raises(InvalidOptionError, match="give subscribe and kind=queue instead"):
        reader.initialOffset()
