"""Write rows to topics: exactly once per query, batch and task."""
