"""Simulated gRPC between clients and brokers, over the simulated network."""
