"""Provide RaftMQ as the Spark source and sink ``raftmq``, which Spark finds through `pyspark_raftmq`. Imports nothing itself."""
