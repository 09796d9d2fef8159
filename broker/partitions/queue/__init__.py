"""One queue partition on this node: what it accepts, what it leases and to whom, and its periodic work."""
