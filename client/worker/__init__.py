"""The worker: runs a handler over the records of a consumer group, at least once each."""
