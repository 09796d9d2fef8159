"""Exchange frames with the other brokers of the cluster."""
