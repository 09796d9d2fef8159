"""Durable storage: `LogStore` over LMDB and in memory, writer threads, the node's registry, and the disk reserve."""
