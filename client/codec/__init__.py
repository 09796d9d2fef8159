"""Encode and decode record batches."""
