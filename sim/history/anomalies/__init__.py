"""One module for each anomaly: its definition, its `NAME`, and `find`, which yields a finding for each case in a history.

Definitions follow Jepsen's Kafka workload. Where RaftMQ promises more than Kafka (dense offsets, no transactions to abort), they are
stricter.
"""
