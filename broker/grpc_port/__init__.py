"""Serve the client port: the gRPC server, its methods, its security and its admission control."""
