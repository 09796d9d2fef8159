"""Spark finds the source by its module name, and the search loads no slow modules."""

import subprocess
import sys

import pytest
from raftmq.spark.base.schema import source_schema
from raftmq.spark.data_source import RaftMQDataSource
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.source.readers import BatchReader, PushdownReader, StreamReader

import pyspark_raftmq

OPTIONS = {"bootstrap.servers": "a:1", "subscribe": "t"}


def test_spark_finds_the_source_by_the_name_of_the_module() -> None:
    """Source: `pyspark.sql.worker.lookup_data_sources`, which treats every `pyspark_*` module in this way."""
    from pyspark.sql.datasource import DataSource

    assert hasattr(pyspark_raftmq, "DefaultSource")
    assert issubclass(pyspark_raftmq.DefaultSource, DataSource)
    assert pyspark_raftmq.DefaultSource.name() == "raftmq"


def modules_after(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_pyspark_raftmq_loads_no_other_module() -> None:
    program = "import sys, typing; before = set(sys.modules); import pyspark_raftmq; print(*set(sys.modules) - before)"
    assert set(modules_after(program)) == {"pyspark_raftmq", "__future__"}


def test_the_source_and_its_schema_need_neither_grpc_nor_arrow() -> None:
    """Spark pickles the class when it looks for sources, and starts a separate process to ask for the schema."""
    program = "import sys, pyspark_raftmq; pyspark_raftmq.DefaultSource({}).schema(); print(*sys.modules)"
    assert {"grpc", "google.protobuf", "pyarrow", "lmdb", "raftmq.client.connection.transport"}.isdisjoint(
        modules_after(program)
    )


def test_without_pyspark_there_is_no_source_and_no_error() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; import pyspark_raftmq;"
        "print(hasattr(pyspark_raftmq, 'DefaultSource'))"
    )
    assert modules_after(program) == ["False"]
    with pytest.raises(AttributeError, match="has no attribute"):
        pyspark_raftmq.__getattr__("Anything")


def test_readers_can_be_pickled() -> None:
    from pyspark import cloudpickle

    source = RaftMQDataSource({**OPTIONS, "pushFilters": "true"})
    schema = source_schema(None, include_headers=False)
    stream = RaftMQDataSource(OPTIONS).streamReader(schema)
    assert isinstance(stream, StreamReader)
    for reader in (source.reader(schema), RaftMQDataSource(OPTIONS).reader(schema), stream):
        assert isinstance(reader, BatchReader | StreamReader)
        copy = cloudpickle.loads(cloudpickle.dumps(reader))
        assert type(copy) is type(reader)
        assert copy.options == reader.options
        assert copy.schema == reader.schema
    assert isinstance(source.reader(schema), PushdownReader)
    assert not isinstance(RaftMQDataSource(OPTIONS).reader(schema), PushdownReader)


@pytest.mark.parametrize(
    "ask", ["initialOffset", "latestOffset", "getDefaultReadLimit", "prepareForTriggerAvailableNow"]
)
def test_the_first_call_of_a_stream_raises_the_error_of_its_options(ask: str) -> None:
    """Spark hides an error that `streamReader` itself raises behind its own `UnboundLocalError`."""
    stream = RaftMQDataSource({**OPTIONS, "failOnDataLoss": "maybe"}).streamReader(source_schema(None, False))
    with pytest.raises(InvalidOptionError, match="failOnDataLoss is true or false"):
        getattr(stream, ask)()
    stream.stop()
