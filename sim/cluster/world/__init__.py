"""The simulated world of a node: its event loop, its network and its disk."""
