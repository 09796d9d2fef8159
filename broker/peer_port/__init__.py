"""The requests of other brokers, on the port for peers."""
