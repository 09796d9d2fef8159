"""Consume, transform, produce: each record's outputs are written exactly once."""
