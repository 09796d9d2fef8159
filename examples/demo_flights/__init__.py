"""The demo: 336,776 real flights through three brokers, one of them killed on the way, and every flight accounted for."""
