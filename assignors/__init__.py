"""Assignors divide the partitions of a consumer group among its members. They are pure functions of the group."""
