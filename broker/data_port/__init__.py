"""The data port: Append and Poll in frames over TCP, beside gRPC."""
