"""Lease the messages of queue topics in a streaming query, and settle them."""
