"""Encode and decode record batches, and the messages of queue topics."""
