"""Coordinate consumer groups: their members, their assignments and their offsets across partitions."""
