"""Serve one partition: its records, its committed offsets and its retention."""
