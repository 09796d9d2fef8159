"""Simulate the world that a node lives in: its event loop, its network and its disk."""
