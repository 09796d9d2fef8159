"""Run the Spark part: read flights, average their delays in windows of a day, and write each window's results once.

A window is written when the watermark, `LATENESS` behind the newest flight, has passed its end. Later flights of the window are
dropped. `README.md` explains the choice of the lateness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHT: Final = (
    "year INT, month INT, day INT, hour INT, minute INT, dep_delay INT, carrier STRING, origin STRING, time_hour STRING"
)
WINDOW: Final = "1 day"
LATENESS: Final = "5 days"
FLIGHTS_PER_BATCH: Final = 20_000
"""About three weeks of flights. The year takes 17 batches, and the watermark advances with them."""


def delays(flights: DataFrame, lateness: str = LATENESS) -> DataFrame:
    """Return the mean departure delay per day, carrier and airport. Cancelled flights have no delay and do not count."""
    from pyspark.sql import functions as f

    parsed = flights.select(f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight")).select("flight.*")
    return (
        parsed.where("dep_delay IS NOT NULL")
        .withColumn("departure", f.expr("make_timestamp(year, month, day, hour, minute, 0)"))
        .withWatermark("departure", lateness)
        .groupBy(f.window("departure", WINDOW), "carrier", "origin")
        .agg(f.count("*").alias("flights"), f.avg("dep_delay").alias("mean_delay"))
    )


def start(
    spark: SparkSession, servers: str, source: str, target: str, checkpoint: str, lateness: str = LATENESS
) -> StreamingQuery:
    """Start the query. It ends after it has read all existing flights."""
    from pyspark.sql import functions as f

    flights = (
        spark.readStream.format("raftmq")
        .option("bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("columns", "value")
        .option("maxOffsetsPerTrigger", FLIGHTS_PER_BATCH)
        .load()
    )
    result = delays(flights, lateness).select(
        f.concat_ws("/", "carrier", "origin").alias("key"),
        f.to_json(
            f.struct(
                f.date_format("window.start", "yyyy-MM-dd").alias("day"), "carrier", "origin", "flights", "mean_delay"
            )
        ).alias("value"),
    )
    return (
        result.writeStream.format("raftmq")
        .outputMode("append")
        .option("bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
