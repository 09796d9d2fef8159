"""Administer a cluster: topics, brokers and consumer groups."""
