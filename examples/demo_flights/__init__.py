"""Send 336,776 real flights through three brokers, kill one of them on the way, and verify every flight."""
