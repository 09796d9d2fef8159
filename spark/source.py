"""The data source that Spark knows as ``raftmq``: makes readers and writers of options.

Must stay light: Spark imports it in every planning process, through `pyspark_raftmq`. So whatever needs gRPC or Arrow is imported
inside methods.

::

    spark.read.format("raftmq").option("bootstrap.servers", "localhost:9400").option("subscribe", "flights").load()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class RaftMQDataSource(DataSource):
    """See the module; `docs/guides/spark.md` has all options."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "raftmq"

    def schema(self) -> StructType:
        """The Kafka connector's columns, or those asked for."""
        from raftmq.spark.options import OptionReader, listed
        from raftmq.spark.schema import source_schema

        reader = OptionReader(self.options)
        return source_schema(listed(reader.text("columns")), reader.boolean("includeHeaders", False))

    def reader(self, schema: StructType) -> DataSourceReader:
        """``spark.read``. Raises `InvalidOptionError`."""
        from raftmq.spark.readers import BatchReader, PushdownReader
        from raftmq.spark.schema import check_schema
        from raftmq.spark.source_options import read_source_options

        check_schema(schema)
        options, _ = read_source_options(self.options, is_streaming=False)
        return (PushdownReader if options.push_filters else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names, here and below
        """``spark.readStream``. What is wrong with the options, the reader raises: see there."""
        from raftmq.spark.errors import InvalidOptionError
        from raftmq.spark.readers import StreamReader
        from raftmq.spark.schema import check_schema
        from raftmq.spark.source_options import read_source_options

        try:
            check_schema(schema)
            options, _ = read_source_options(self.options, is_streaming=True)
        except InvalidOptionError as error:
            return StreamReader(error, schema)
        return StreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """``df.write``. Raises `InvalidOptionError`."""
        from raftmq.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """``df.writeStream``. Raises `InvalidOptionError`."""
        from raftmq.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
