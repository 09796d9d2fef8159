"""Spark source, sink and jobs. None yet: they come after consumer groups."""
