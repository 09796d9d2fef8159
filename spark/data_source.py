"""Define the data source that Spark knows as ``raftmq``, which turns options into readers and writers.

Must stay light: Spark imports it in every planning process, through `pyspark_raftmq`. Modules that need gRPC or Arrow are therefore
imported inside methods. Options (``browse``, ``kind``) and not the topic's kind choose the columns of messages: Spark asks for the schema in a
process of its own, which would have to connect for it.

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
    """Create the readers and writers of the format ``raftmq``. `docs/guides/spark.md` lists all options."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "raftmq"

    def schema(self) -> StructType:
        """Return the Kafka connector's columns, those of messages with ``browse`` or ``kind=queue``, or those that the options name."""
        from raftmq.spark.base.options import OptionReader, kind_of, listed
        from raftmq.spark.base.schema import browse_schema, leased_schema, source_schema

        reader = OptionReader(self.options)
        if reader.has("browse"):
            return browse_schema(listed(reader.text("columns")))
        if kind_of(reader) == "queue":
            return leased_schema(listed(reader.text("columns")))
        return source_schema(
            listed(reader.text("columns")),
            reader.boolean("includeHeaders", False),
            include_append_time=reader.boolean("includeAppendTime", False),
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of ``spark.read``. Raises `InvalidOptionError`."""
        from raftmq.spark.base.options import OptionReader

        if OptionReader(self.options).has("browse"):
            return self._browse_reader(schema)
        from raftmq.spark.base.schema import check_schema
        from raftmq.spark.source.options import read_source_options
        from raftmq.spark.source.readers import BatchReader, PushdownReader

        check_schema(schema)
        options, _ = read_source_options(self.options, is_streaming=False)
        return (PushdownReader if options.push_filters else BatchReader)(options, schema)

    def _browse_reader(self, schema: StructType) -> DataSourceReader:
        from raftmq.spark.base.schema import BROWSE_COLUMNS, check_schema
        from raftmq.spark.browse.options import read_browse_options
        from raftmq.spark.browse.reader import BrowseReader

        check_schema(schema, BROWSE_COLUMNS)
        options, _ = read_browse_options(self.options)
        return BrowseReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names, here and below
        """Create the reader of ``spark.readStream``. The reader raises errors of the options, as `StreamReader` explains."""
        from raftmq.spark.base.options import OptionReader, kind_of
        from raftmq.spark.base.schema import check_schema
        from raftmq.spark.errors import InvalidOptionError
        from raftmq.spark.source.options import read_source_options
        from raftmq.spark.source.readers import StreamReader

        try:
            if kind_of(OptionReader(self.options)) == "queue":
                return self._lease_reader(schema)
            options, _ = read_source_options(self.options, is_streaming=True)
            check_schema(schema)
        except InvalidOptionError as error:
            return StreamReader(error, schema)
        return StreamReader(options, schema)

    def _lease_reader(self, schema: StructType) -> DataSourceStreamReader:
        from raftmq.spark.base.schema import LEASED_COLUMNS, check_schema
        from raftmq.spark.leases.options import read_lease_options
        from raftmq.spark.leases.reader import LeaseReader

        options, _ = read_lease_options(self.options)
        check_schema(schema, LEASED_COLUMNS)
        return LeaseReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Create the writer of ``df.write``. Raises `InvalidOptionError`."""
        from raftmq.spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Create the writer of ``df.writeStream``. Raises `InvalidOptionError`."""
        from raftmq.spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)
