"""The data port: Append, Poll and Queue.PollStream in frames over TCP, beside gRPC."""
