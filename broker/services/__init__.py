"""Serve the RPCs of a broker: plain objects whose methods take and return protocol messages."""
