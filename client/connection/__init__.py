"""Connect to brokers: find the leader of each partition and call it over gRPC."""
