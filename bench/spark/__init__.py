"""Measure how fast Spark reads and writes RaftMQ, beside the bounds. The import is cheap, as pyspark is imported when needed."""
