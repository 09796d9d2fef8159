"""Queue topics in a run: their options, their clients, and the calls by which clients reach partitions."""
