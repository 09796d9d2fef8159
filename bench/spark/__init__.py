"""How fast Spark reads and writes RaftMQ, beside what bounds it. Importing it costs nothing: pyspark is imported when it is needed."""
