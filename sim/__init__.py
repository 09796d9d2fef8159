"""Deterministic simulators of RaftMQ: one seed, one history, byte for byte."""
