"""Read records of log topics: batch reads, streaming queries, and their lag."""
