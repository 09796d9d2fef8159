"""RaftMQ as a source and sink of Spark, named ``raftmq``; found by Spark through `pyspark_raftmq`. Imports nothing by itself."""
