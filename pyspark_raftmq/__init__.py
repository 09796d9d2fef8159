"""The thin module that Spark discovers by name. Imports nothing; the data source comes with `raftmq.spark`."""
