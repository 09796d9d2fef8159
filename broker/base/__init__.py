"""Provide the basis of all other parts of the broker: configuration, limits, clocks, errors, logs and counters."""
