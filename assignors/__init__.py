"""Which member of a consumer group gets which partition: pure functions from a group to its assignment."""
