"""One queue partition on this node: admission, leases, commands and periodic work."""
